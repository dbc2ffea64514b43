//! Configurations of small runs against test containers.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use synth_optimizer_core::config::gepa::{ComponentSelector, LeakagePolicy, PipelineMode};
use synth_optimizer_core::config::sections::{DatasetSection, TasksetSection};
use synth_optimizer_core::config::{Config, ResolvedConfig};
use synth_optimizer_service::queue::Submission;

/// How the configuration names rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowNames {
    Seeds,
    TaskIds,
}

/// Returns the configuration of a small run over the first rows of each split.
pub fn small_config(url: &str, names: RowNames, train: u32, heldout: u32, fields: &[&str]) -> Config {
    let mut config = Config::default();
    config.run.output_dir = Utf8PathBuf::from("runs");
    config.run.seed = 7;
    config.container.url = url.to_owned();
    config.container.retry_backoff_ms = 1;
    match names {
        RowNames::Seeds => {
            config.dataset = Some(DatasetSection {
                train_seeds: (0..i64::from(train)).collect(),
                heldout_seeds: (0..i64::from(heldout)).collect(),
                ..DatasetSection::default()
            });
        }
        RowNames::TaskIds => {
            config.taskset = Some(TasksetSection {
                train_ids: (0..train).map(|row| format!("train:{row}")).collect(),
                heldout_ids: (0..heldout).map(|row| format!("test:{row}")).collect(),
                ..TasksetSection::default()
            });
        }
    }
    config.candidate.target_modules = fields.iter().map(|field| (*field).to_owned()).collect();
    config.gepa.max_generations = Some(2);
    // The same schedule with any number of workers.
    config.gepa.pipeline.mode = PipelineMode::SyncSerial;
    config.gepa.proposals_per_generation = 2;
    config.policy.get_or_insert_default().model = Some("gpt-4.1-nano".to_owned());
    config.gepa.component_selector = ComponentSelector::All;
    config.gepa.minibatch_size = Some(3.min(train));
    // The scripted proposer copies words of the rows, which the leakage check would reject.
    config.gepa.leakage.policy = LeakagePolicy::Allow;
    config.gepa.rollout_poll_interval_ms = 5;
    config.gepa.max_total_rollouts = 100_000;
    config
}

/// Writes a configuration file that loads as the same configuration.
pub fn write_config(path: &Utf8Path, config: &Config) -> io::Result<()> {
    std::fs::write(path, toml::to_string(config).map_err(io::Error::other)?)
}

/// Returns the submission of a run that a background worker may claim.
pub fn submission(config: &ResolvedConfig) -> Submission<'_> {
    Submission {
        config,
        config_path: None,
        priority: 0,
        auto_start: true,
        manual_step: false,
        idempotency_key: None,
        body_digest: "",
        max_queued: None,
    }
}

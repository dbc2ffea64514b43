//! The read models of simulated runs show the numbers of the search.

use std::collections::BTreeSet;

use serde_json::json;
use synth_e2e::simulated_run::Simulation;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{PipelineMode, SearchMode};
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_platform::workspace::models::StopRule;
use synth_optimizer_platform::workspace::{Batch, RunRow, StoredEvent, Workspace};
use tempfile::TempDir;

/// Stores a log as the workspace of a run with this configuration.
fn stored(log: &[StoredEvent], config: &Config) -> (TempDir, Workspace) {
    let directory = tempfile::tempdir().unwrap();
    let run = RunRow {
        run_id: "run-1".into(),
        algorithm: "gepa".into(),
        config: json!(config),
        config_digest: "ab".repeat(32),
        container_url: "http://127.0.0.1:1".into(),
        cache_mode: "off".into(),
        cache_namespace: "gepa:run-1".into(),
        cache_path: None,
        output_dir: "/runs".into(),
        run_dir: "/runs/run-1".into(),
        created_at: 1,
    };
    let path = directory.path().join("workspace.sqlite");
    let workspace = Workspace::create(&path, &run, Durability::Process).unwrap();
    workspace.commit_blocking(Batch { events: log.to_vec(), ..Batch::default() }).unwrap();
    (directory, workspace)
}

fn pipelined(config: &mut Config) {
    config.gepa.pipeline.mode = PipelineMode::AsyncPipelined;
    config.gepa.pipeline.max_in_flight_candidates = Some(8);
    config.gepa.max_generations = Some(9);
}

fn sprints(config: &mut Config) {
    let gepa = &mut config.gepa;
    (gepa.search, gepa.max_generations, gepa.max_total_rollouts) = (SearchMode::Sprint, None, 500);
    (gepa.minibatch_size, gepa.proposals_per_generation) = (Some(3), 1);
}

/// Runs that end by different rules.
fn simulations() -> Vec<Simulation> {
    let usual = Simulation { seed: 3, price: Some(2_000_000), ..Simulation::default() };
    let with = |configure: fn(&mut Config)| Simulation { configure: Some(configure), ..usual.clone() };
    vec![
        usual.clone(),
        Simulation { stop_after: Some(60), ..usual.clone() },
        Simulation { invalid: 1.0, ..usual.clone() },
        Simulation { invalid: 1.0, ..with(pipelined) },
        Simulation { proposer_failure: 0.9, invalid: 0.5, ..with(pipelined) },
        Simulation { breaks_at: Some(50), ..usual.clone() },
        Simulation { failure: 0.3, ..with(|config| config.gepa.max_generations = Some(40)) },
        Simulation { forgotten: 0.5, kill_after: Some(90), ..with(pipelined) },
        with(|config| {
            (config.gepa.max_generations, config.gepa.no_improvement_generations) = (None, Some(1));
        }),
        with(|config| {
            (config.gepa.max_generations, config.gepa.no_improvement_generations) = (None, Some(2));
            pipelined(config);
        }),
        with(|config| config.gepa.score_threshold_value = Some(0.2)),
        with(|config| {
            (config.gepa.max_cost_usd, config.gepa.max_generations) = (0.2, None);
            config.gepa.rollout_estimated_cost_usd = Some(0.002);
            config.gepa.proposer_estimated_cost_usd = Some(0.03);
        }),
        with(|config| {
            (config.gepa.max_time_seconds, config.gepa.max_generations) = (Some(4), None);
            config.gepa.rollout_estimated_wall_seconds = Some(0.5);
            config.proposer.timeout_seconds = 1;
        }),
        with(|config| (config.gepa.max_total_tokens, config.gepa.max_generations) = (Some(9_000), None)),
        with(|config| (config.gepa.max_train_rollouts, config.gepa.max_generations) = (Some(70), None)),
        with(sprints),
        Simulation { failure: 0.1, noise: 0.1, ..with(sprints) },
    ]
}

fn stop_of(event: &Event) -> Option<(&'static str, Option<f64>, Option<f64>)> {
    let Event::StopDecided(stop) = event else { return None };
    Some((stop.stopped_by.kind.as_str(), stop.stopped_by.limit, stop.stopped_by.value))
}

/// At the moment at which a rule ends the search, it shows the limit and the value that the search names.
#[test]
fn stop_rules_show_the_values_that_the_search_stops_at() {
    let mut kinds = BTreeSet::new();
    for simulation in simulations() {
        let log = simulation.log();
        let Some(place) = log.iter().position(|stored| stop_of(&stored.event).is_some()) else { continue };
        let (kind, limit, value) = stop_of(&log[place].event).unwrap();
        let (_directory, workspace) = stored(&log[..=place], &simulation.config());
        let rules = workspace.stop_rules().unwrap();
        let stopped: Vec<&StopRule> = rules.iter().filter(|rule| rule.has_stopped).collect();
        assert_eq!(stopped.len(), 1, "{simulation:?}: {rules:#?}");
        assert_eq!(stopped[0].kind.as_str(), kind, "{simulation:?}");
        // A perfect score names neither.
        assert!(limit.is_none() || stopped[0].limit == limit, "{limit:?} in {:?} of {simulation:?}", stopped[0]);
        assert!(value.is_none() || stopped[0].value == value, "{value:?} in {:?} of {simulation:?}", stopped[0]);
        kinds.insert(kind);
    }
    let expected = [
        "circuit_breaker",
        "external",
        "max_cost_usd",
        "max_generations",
        "max_rollouts",
        "max_time_seconds",
        "max_tokens",
        "no_improvement",
        "perfect_score",
        "proposer_exhausted",
        "score_threshold",
    ];
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), expected);
}

//! Realistic configuration files load with the expected values.

use camino::Utf8Path;
use serde_json::json;
use synth_optimizer_core::config::gepa::{
    AcceptanceCriterion, Direction, FrontierType, PipelineMode, Sampler, SearchMode, Selector, StopMetric,
    SubmissionMode,
};
use synth_optimizer_core::config::proposer::{AuthMode, SandboxMode};
use synth_optimizer_core::config::sections::{ApiFamily, CacheMode, CredentialMode, DisableReasoning, ToolCallStyle};
use synth_optimizer_core::config::{effective_caps, pools};

use super::{SMALLEST, read, read_value};

#[test]
fn the_smallest_file_takes_the_documented_defaults() {
    let loaded = read(SMALLEST).unwrap();
    let config = &loaded.config;
    assert_eq!(config.run.run_id.as_deref(), Some("toy-1"));
    assert_eq!(config.run.output_dir, "/base/configs/out");
    assert_eq!(config.dataset.as_ref().unwrap().train_split, "train");
    assert_eq!(config.dataset.as_ref().unwrap().heldout_split, "test");
    assert_eq!(config.seed_candidate["instructions"], "Reply with one label.");
    assert_eq!((config.gepa.max_generations, config.gepa.proposals_per_generation), (None, 1));
    assert_eq!(config.gepa.search, SearchMode::Auto);
    assert_eq!(config.gepa.rollout_submission_mode, SubmissionMode::Sync);
    assert_eq!(config.gepa.score_threshold_metric, StopMetric::TrainScore);
    assert_eq!(effective_caps(config).total, Some(256));
    assert_eq!(loaded.warnings, []);
}

#[test]
fn split_budgets_and_a_pipeline_load() {
    let loaded = read(include_str!("fixtures/split_budgets.toml")).unwrap();
    let config = &loaded.config;
    assert_eq!(config.run.output_dir, "/base/artifacts");
    assert_eq!(config.container.cwd.as_deref(), Some(Utf8Path::new("/base")));
    assert_eq!(config.container.startup_timeout_seconds, 90);
    assert_eq!(config.dataset.as_ref().unwrap().filters["language"], "en");
    assert_eq!(config.proposer.auth_mode, AuthMode::ApiKey);
    assert_eq!(config.proposer.sandbox_mode, Some(SandboxMode::WorkspaceWrite));
    let caps = effective_caps(config);
    assert_eq!((caps.train, caps.heldout, caps.total), (240, 60, None));
    assert_eq!(config.gepa.pipeline.mode, PipelineMode::AsyncPipelined);
    assert_eq!(config.gepa.pipeline.workers.rollout, 16);
    assert_eq!(config.gepa.pipeline.workers.propose, None);
    assert_eq!(config.gepa.pipeline.adaptive_rollout_concurrency.max, Some(32));
    assert_eq!(config.cache.path.as_deref(), Some(Utf8Path::new("/base/artifacts/router-cache.sqlite")));
    assert_eq!(loaded.warnings, []);
}

#[test]
fn a_replay_with_objectives_and_pools_loads() {
    let loaded = read(include_str!("fixtures/replay.toml")).unwrap();
    let config = &loaded.config;
    assert_eq!(config.gepa.frontier_type, FrontierType::PerExampleObjective);
    assert_eq!(config.gepa.acceptance_criterion, AcceptanceCriterion::ProtectedObjectiveGuard);
    assert_eq!(config.gepa.objective_directions["length_penalty"], Direction::Minimize);
    assert_eq!(config.gepa.candidate_selector.name, Selector::TopKPareto);
    assert_eq!(config.gepa.batch_sampler.name, Sampler::Stratified);
    assert_eq!(config.cache.mode, CacheMode::Readonly);
    assert_eq!(config.disk_budget.hard_limit_gb, 40.0);
    let pools = pools(config);
    assert_eq!(pools.pareto, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(pools.minibatch, [0, 1, 2, 3]);
    assert_eq!(pools.reflection, [4, 5, 6, 7]);
    assert_eq!(pools.heldout, [0, 1]);
    // The proposer sees other rows than the screening uses: accepted, with a warning.
    assert_eq!(loaded.warnings.iter().map(|found| found.code).collect::<Vec<_>>(), ["minibatch_without_reflection"]);
}

#[test]
fn every_published_field_loads() {
    let text = include_str!("fixtures/every_field.toml");
    let loaded = read(text).unwrap();
    let config = &loaded.config;
    assert_eq!(config.run.seed, 42);
    let policy = config.policy.as_ref().unwrap();
    assert_eq!(policy.api_family, ApiFamily::Responses);
    assert_eq!(policy.disable_reasoning, DisableReasoning::On);
    assert_eq!(policy.tool_call_style, ToolCallStyle::OpenaiChat);
    assert_eq!(policy.credential_mode, CredentialMode::Proxy);
    assert_eq!(policy.config["temperature"], json!(0.5));
    assert_eq!(config.dataset.as_ref().unwrap().filters["since"], json!("2024-05-01"));
    assert_eq!(config.gepa.max_cost_usd, 3.0);
    assert_eq!(config.gepa.max_prompt_tokens, Some(1_000_000));
    assert_eq!(config.gepa.batch_sampler.name, Sampler::OrderedEpoch);
    assert_eq!(config.seed_candidate["answer"], "Then answer.\nBriefly.");
    assert_eq!(config.disk_budget.path.as_deref(), Some(Utf8Path::new("/base/configs/artifacts/disk")));
    // Options of a method that is not chosen cause a warning, not an error.
    let warnings: Vec<_> = loaded.warnings.iter().map(|found| (found.code, found.field.as_str())).collect();
    assert_eq!(
        warnings,
        [("unused_option", "gepa.candidate_selector.k"), ("unused_option", "gepa.batch_sampler.field")]
    );
    assert_eq!(read(&toml::to_string(config).unwrap()).unwrap().config, *config);
}

#[test]
fn tasks_load_with_and_without_pools() {
    let head = "[container]\nurl = \"http://h\"\n[candidate]\ntarget_modules = [\"m\"]\n";
    let tasks = "[taskset]\ntrain_ids = [\"t:0\", \"t:1\", \"t:2\"]\nheldout_ids = [\"h:0\", \"h:1\"]\n";
    let plain = read(&format!("{head}{tasks}")).unwrap().config;
    assert_eq!(pools(&plain).reflection, [0, 1, 2]);
    let some = "[gepa.task_pools]\npareto = [\"t:2\", \"t:0\"]\nminibatch = [\"t:1\"]\nreflection = [\"t:0\", \"t:1\"]\nheldout = [\"h:1\"]\n";
    let pooled = pools(&read(&format!("{head}{tasks}{some}")).unwrap().config);
    assert_eq!(pooled.pareto, [2, 0]);
    assert_eq!(pooled.minibatch, [1]);
    assert_eq!(pooled.reflection, [0, 1]);
    assert_eq!(pooled.heldout, [1]);
}

#[test]
fn the_same_row_number_in_another_split_is_another_row() {
    let text = SMALLEST.replace("[100, 101, 102]", "[0, 1]");
    assert_eq!(read(&text).unwrap().config.dataset.unwrap().heldout_seeds.known(), [0, 1]);
    let same = text.replace("[dataset]", "[dataset]\ntrain_split = \"all\"\nheldout_split = \"all\"");
    let error = read(&same).unwrap_err();
    assert_eq!(error.findings[0].code, "train_heldout_overlap");
    assert!(error.findings[0].message.starts_with("0, 1 are in both"), "{}", error.findings[0].message);
}

#[test]
fn max_tokens_is_the_total_limit() {
    let limits = "[gepa]\nmax_tokens = 9000\nproposer_estimated_total_tokens = 10\nrollout_estimated_prompt_tokens = 1\nrollout_estimated_completion_tokens = 1\n";
    assert_eq!(read(&format!("{SMALLEST}{limits}")).unwrap().config.gepa.max_total_tokens, Some(9000));
    let both = format!("{SMALLEST}{limits}max_total_tokens = 9000\n");
    assert_eq!(read(&both).unwrap_err().findings[0].code, "conflicting_names");
}

#[test]
fn an_inline_mapping_is_the_same_configuration() {
    let value = json!({
        "run": {"run_id": "toy-1", "output_dir": "out"},
        "container": {"url": "http://127.0.0.1:9100", "cwd": null},
        "dataset": {"train_seeds": [0, 1, 2, 3, 4, 5], "heldout_seeds": [100, 101, 102]},
        "taskset": null,
        "candidate": {"target_modules": ["instructions"]},
        "seed_candidate": {"instructions": "Reply with one label."},
    });
    let loaded = read_value(value.clone()).unwrap();
    assert_eq!(loaded.config, read(SMALLEST).unwrap().config);
    let mut bad = value;
    bad["gepa"] = json!({"k": 1, "max_generations": 1.0, "minibatch_size": "4"});
    bad["policy"] = json!({"config": {"x": null}});
    let error = read_value(bad).unwrap_err();
    let codes: Vec<_> = error.findings.iter().map(|found| (found.code, found.field.as_str())).collect();
    assert_eq!(
        codes,
        [
            ("unknown_key", "gepa.k"),
            ("wrong_type", "gepa.max_generations"),
            ("wrong_type", "gepa.minibatch_size"),
            ("wrong_type", "policy.config.x"),
        ]
    );
    assert!(error.findings.iter().all(|found| found.line.is_none() && found.source == "config"));
    assert_eq!(read_value(json!([1])).unwrap_err().findings.len(), 1);
}

#[test]
fn a_random_seed_may_exceed_the_integers_of_toml() {
    let text = format!("{SMALLEST}\n").replacen("[run]\n", &format!("[run]\nseed = {}\n", u64::MAX), 1);
    assert_eq!(read(&text).unwrap().config.run.seed, u64::MAX);
}

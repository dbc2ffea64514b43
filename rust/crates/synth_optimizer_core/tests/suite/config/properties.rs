//! Properties of the loader for any configuration and any text.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use serde_json::Value;
use synth_optimizer_core::config::gepa::{
    AcceptanceCriterion, Direction, FrontierType, Pipeline, PipelineMode, Sampler, SeedPools, Selector, TaskPools,
};
use synth_optimizer_core::config::proposer::{ProposerBackend, ProposerSection, ReasoningEffort};
use synth_optimizer_core::config::sections::{
    CacheMode, CacheSection, CandidateSection, ContainerSection, DatasetSection, DisableReasoning, DiskBudgetSection,
    Durability, PolicySection, RunSection, TasksetSection,
};
use synth_optimizer_core::config::{Config, render};

use super::read;

const EVERY_FIELD: &str = include_str!("fixtures/every_field.toml");

fn text() -> impl Strategy<Value = String> {
    // Visible characters at both ends, so that no text is blank.
    ("[a-z]", any::<String>()).prop_map(|(first, rest)| first + &rest)
}

fn path() -> impl Strategy<Value = Utf8PathBuf> {
    vec("[a-zA-Z0-9 _é-]{1,8}", 1..4).prop_map(|parts| Utf8PathBuf::from(format!("/{}", parts.join("/"))))
}

fn json(depth: u32) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e12..1e12f64).prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(depth, 8, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::from),
            // Without k and p, so that no name looks like a credential.
            btree_map("[a-jl-oq-z \"'.]{0,6}", inner, 0..3).prop_map(|map| map.into_iter().collect::<Value>()),
        ]
    })
}

fn open_table() -> impl Strategy<Value = BTreeMap<String, Value>> {
    btree_map("[b-d ]{0,6}", json(3), 0..4)
}

fn rows() -> impl Strategy<Value = (Option<DatasetSection>, Option<TasksetSection>, SeedPools, Option<TaskPools>)> {
    let seeds = (btree_set(any::<i64>(), 2..12), open_table(), any::<bool>()).prop_map(|(seeds, filters, pooled)| {
        let (train, heldout): (Vec<_>, Vec<_>) = seeds.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        let numbers = |rows: Vec<(usize, i64)>| rows.into_iter().map(|(_, seed)| seed).collect::<Vec<_>>();
        let (train_seeds, heldout_seeds) = (numbers(train), numbers(heldout));
        let pools = SeedPools {
            minibatch: train_seeds[..1].to_vec(),
            validation: heldout_seeds[..1].to_vec(),
            ..SeedPools::default()
        };
        let pools = if pooled { pools } else { SeedPools::default() };
        let dataset = DatasetSection {
            train_seeds: train_seeds.into(),
            heldout_seeds: heldout_seeds.into(),
            filters,
            ..DatasetSection::default()
        };
        (Some(dataset), None, pools, None)
    });
    let tasks = (btree_set(text(), 2..8), any::<bool>()).prop_map(|(ids, pooled)| {
        let mut train_ids: Vec<_> = ids.into_iter().collect();
        let heldout_ids = train_ids.split_off(1);
        let pools = TaskPools {
            pareto: train_ids.clone(),
            minibatch: train_ids.clone(),
            reflection: train_ids.clone(),
            heldout: heldout_ids.clone(),
        };
        let taskset = TasksetSection {
            train_ids: train_ids.into(),
            heldout_ids: heldout_ids.into(),
            ..TasksetSection::default()
        };
        (None, Some(taskset), SeedPools::default(), pooled.then_some(pools))
    });
    prop_oneof![seeds, tasks]
}

fn proposer() -> impl Strategy<Value = ProposerSection> {
    // A path becomes absolute; a bare program name does not change.
    let command = vec(text().prop_map(|word| word.replace('/', "_")), 0..3);
    let codex = (command, option::of(text())).prop_map(|(command, model)| ProposerSection {
        command,
        model,
        reasoning_effort: Some(ReasoningEffort::Xhigh),
        ..ProposerSection::default()
    });
    let endpoint = (text(), "[A-Z_]{1,9}").prop_map(|(model, variable)| ProposerSection {
        backend: ProposerBackend::OpenaiCompatible,
        base_url: Some("https://host:8443/v1".into()),
        model: Some(model),
        api_key_env: Some(variable),
        ..ProposerSection::default()
    });
    prop_oneof![codex, endpoint]
}

fn config() -> impl Strategy<Value = Config> {
    let run = (option::of("[a-zA-Z0-9_][a-zA-Z0-9._-]{0,20}"), path(), 0..=i64::MAX as u64);
    let places = (path(), option::of(path()), btree_map(any::<String>().prop_map(|s| format!("m{s}")), text(), 0..3));
    let numbers = (
        1..u32::MAX,
        0.0..1e9f64,
        0.0..=1.0f64,
        1..=1_000_000_000u64,
        any::<f64>().prop_filter("finite", |f| f.is_finite()),
    );
    let words = (0..3usize, 0..5usize, 0..6usize, 0..4usize, any::<bool>());
    (run, places, rows(), proposer(), numbers, words, open_table()).prop_map(
        |(
            (run_id, output_dir, seed),
            (cwd, cache_path, seed_candidate),
            rows,
            proposer,
            numbers,
            words,
            policy_config,
        )| {
            let mut config = Config {
                run: RunSection { run_id, output_dir, seed, durability: Durability::Power, ..RunSection::default() },
                container: ContainerSection {
                    url: "http://[::1]:9100/base".into(),
                    command: vec!["a b".into(), "\"quoted\"".into()],
                    cwd: Some(cwd),
                    startup_timeout_seconds: numbers.3,
                    pass_env: vec!["MODEL_HOME".into()],
                    token_env: Some("CONTAINER_TOKEN".into()),
                    ..ContainerSection::default()
                },
                dataset: rows.0,
                taskset: rows.1,
                candidate: CandidateSection {
                    target_modules: vec!["m.x".into(), "\t".to_owned() + "y"],
                    ..CandidateSection::default()
                },
                seed_candidate,
                policy: Some(PolicySection {
                    config: policy_config,
                    disable_reasoning: [DisableReasoning::Auto, DisableReasoning::On, DisableReasoning::Off][words.0],
                    ..PolicySection::default()
                }),
                proposer,
                cache: CacheSection {
                    mode: CacheMode::Readwrite,
                    path: cache_path,
                    namespace: Some("n".into()),
                    max_mb: 7,
                },
                disk_budget: DiskBudgetSection {
                    enabled: false,
                    soft_limit_gb: numbers.4,
                    ..DiskBudgetSection::default()
                },
                ..Config::default()
            };
            let gepa = &mut config.gepa;
            gepa.seed_pools = rows.2;
            gepa.task_pools = rows.3;
            gepa.max_generations = Some(numbers.0);
            gepa.minibatch_accept_margin = numbers.1;
            gepa.rollout_failure_rate_tolerance = numbers.2;
            gepa.max_total_tokens = Some(numbers.3);
            gepa.proposer_estimated_total_tokens = Some(numbers.3);
            gepa.rollout_estimated_total_tokens = Some(1);
            gepa.score_threshold_value = Some(numbers.4);
            gepa.objective_keys = vec!["quality of \"it\"".into(), "cost.usd".into()];
            gepa.objective_directions = [("cost.usd".to_owned(), Direction::Minimize)].into();
            gepa.frontier_type =
                [FrontierType::PerExample, FrontierType::PerObjective, FrontierType::PerExampleObjective][words.0];
            gepa.acceptance_criterion = [
                AcceptanceCriterion::PrimaryImprovement,
                AcceptanceCriterion::ImprovementOrEqual,
                AcceptanceCriterion::PrimaryOrObjective,
                AcceptanceCriterion::AnyObjectiveImproved,
                AcceptanceCriterion::ProtectedObjectiveGuard,
            ][words.1];
            gepa.candidate_selector.name = [
                Selector::ParetoWeighted,
                Selector::UniformPareto,
                Selector::Random,
                Selector::CurrentBest,
                Selector::TopKPareto,
                Selector::EpsilonGreedy,
            ][words.2];
            gepa.batch_sampler.name =
                [Sampler::SeededShuffle, Sampler::EpochShuffled, Sampler::OrderedEpoch, Sampler::Stratified][words.3];
            gepa.pipeline = Pipeline {
                mode: if words.4 { PipelineMode::AsyncPipelined } else { PipelineMode::SyncSerial },
                ..Pipeline::default()
            };
            gepa.merge.enabled = words.4;
            config
        },
    )
}

/// Returns a text with a part removed, doubled or replaced, on character boundaries.
fn mutated(text: &str, at: usize, length: usize, with: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let start = at % chars.len();
    let end = (start + length).min(chars.len());
    chars[..start].iter().copied().chain(with.chars()).chain(chars[end..].iter().copied()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_configuration_reads_back_as_itself(config in config()) {
        let text = toml::to_string(&config).unwrap();
        match read(&text) {
            Ok(loaded) => prop_assert_eq!(loaded.config, config),
            Err(error) => panic!("{}\n{text}", render(&error.findings)),
        }
    }

    #[test]
    fn no_change_of_a_file_makes_the_loader_panic(
        changes in vec((any::<usize>(), 0..12usize, prop_oneof![any::<String>(), Just("\"".into()), Just("[".into()), Just("= 1\n".into())]), 1..6)
    ) {
        let text = changes.iter().fold(EVERY_FIELD.to_owned(), |text, (at, length, with)| mutated(&text, *at, *length, with));
        if let Err(error) = read(&text) {
            assert!(!error.findings.is_empty());
            assert!(!render(&error.findings).is_empty());
        }
    }

    #[test]
    fn no_text_makes_the_loader_panic(text in any::<String>()) {
        let _ = read(&text);
    }
}

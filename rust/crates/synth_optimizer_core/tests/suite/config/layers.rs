//! Tests of the order of the layers and the origin of every value.

use serde_json::{Value, json};
use synth_optimizer_core::config::{EffectiveValue, OVERRIDES, Origin, ResolvedConfig};

use super::{SMALLEST, read, read_with};

fn value<'l>(loaded: &'l ResolvedConfig, path: &str) -> &'l EffectiveValue {
    loaded.values.iter().find(|value| value.path == path).unwrap_or_else(|| panic!("{path} is not listed"))
}

#[test]
fn every_variable_overrides_the_file_and_every_set_overrides_the_variable() {
    let samples = [
        ("run.run_id", "from-env", "from-set"),
        ("run.output_dir", "env/out", "/set/out"),
        ("cache.mode", "off", "ReadOnly"),
        ("cache.path", "env.sqlite", "set.sqlite"),
        ("cache.namespace", "env", "set"),
        ("proposer.backend", "codex_app_server", "codex-app-server"),
    ];
    assert_eq!(OVERRIDES.iter().map(|row| row.field).collect::<Vec<_>>(), samples.map(|row| row.0));
    let file = format!(
        "{SMALLEST}[cache]\nmode = \"readwrite\"\npath = \"file.sqlite\"\nnamespace = \"file\"\n[proposer]\nbackend = \"codex_app_server\"\n"
    );
    let environment: Vec<_> = OVERRIDES.iter().zip(samples).map(|(row, sample)| (row.variable, sample.1)).collect();
    let sets: Vec<_> = samples.iter().map(|(field, _, set)| format!("{field}={set}")).collect();
    let sets: Vec<_> = sets.iter().map(String::as_str).collect();

    let from_file = read(&file).unwrap();
    let from_environment = read_with(&file, &environment, &[]).unwrap();
    let from_set = read_with(&file, &environment, &sets).unwrap();
    for row in OVERRIDES {
        assert!(
            matches!(value(&from_file, row.field).origin, Origin::File { line: Some(_), column: Some(_) }),
            "{row:?}"
        );
        assert_eq!(value(&from_environment, row.field).origin, Origin::Environment { variable: row.variable });
        assert_eq!(value(&from_set, row.field).origin, Origin::Set);
    }
    assert_eq!(value(&from_environment, "run.output_dir").value, "/base/configs/env/out");
    assert_eq!(value(&from_environment, "cache.mode").value, "off");
    assert_eq!(value(&from_set, "run.output_dir").value, "/set/out");
    assert_eq!(value(&from_set, "cache.path").value, "/base/configs/set.sqlite");
    assert_eq!(value(&from_set, "cache.mode").value, "readonly");
    assert_eq!(from_set.config.run.run_id.as_deref(), Some("from-set"));
}

#[test]
fn blank_variables_are_ignored() {
    let environment: Vec<_> = OVERRIDES.iter().map(|row| (row.variable, "  ")).collect();
    assert_eq!(read_with(SMALLEST, &environment, &[]).unwrap(), read(SMALLEST).unwrap());
}

#[test]
fn variables_of_older_versions_cause_a_warning() {
    let loaded = read_with(
        SMALLEST,
        &[
            ("SYNTH_OPTIMIZERS_GEPA_PIPELINE_MODE", "async"),
            ("GEPA_PLATFORM_RUN_ID", "x"),
            ("SYNTH_OPTIMIZERS_TERMINAL", "1"),
        ],
        &[],
    )
    .unwrap();
    assert_eq!(loaded.config, read(SMALLEST).unwrap().config);
    let warnings: Vec<_> = loaded.warnings.iter().map(|found| found.message.as_str()).collect();
    assert_eq!(warnings, ["GEPA_PLATFORM_RUN_ID is ignored", "SYNTH_OPTIMIZERS_GEPA_PIPELINE_MODE is ignored"]);
    assert!(loaded.warnings[1].hint.contains("gepa.pipeline.mode"));
}

/// Returns a valid value of the field that is not its default.
fn other_value(path: &str, default: &Value) -> String {
    match path {
        "run.run_id" | "container.token_env" | "policy.api_key_env" | "proposer.api_key_env" => "other".into(),
        "container.url" | "policy.base_url" | "policy.inference_url" | "proposer.base_url" => "http://other:1".into(),
        "dataset.train_seeds"
        | "gepa.seed_pools.pareto_eval"
        | "gepa.seed_pools.minibatch"
        | "gepa.seed_pools.reflection" => "[0, 1]".into(),
        "dataset.heldout_seeds" | "gepa.seed_pools.validation" => "[100]".into(),
        "dataset.train_split" | "dataset.heldout_split" => "other".into(),
        "gepa.objective_keys" | "gepa.objective_acceptance.protected_objectives" => "[\"outcome_reward\"]".into(),
        "candidate.target_modules" | "container.command" | "proposer.command" => "[\"x\"]".into(),
        "gepa.pipeline.adaptive_rollout_concurrency.overload_status_codes" => "[503]".into(),
        "proposer.copy_host_auth" => "false".into(),
        "proposer.backend" => "codex_app_server".into(),
        "proposer.execution_mode" => "local_process".into(),
        "proposer.sandbox_mode" => "workspace-write".into(),
        "proposer.approval_policy" => "never".into(),
        "proposer.reasoning_effort" => "low".into(),
        "gepa.pipeline.adaptive_rollout_concurrency.min" => "2".into(),
        "gepa.pipeline.adaptive_rollout_concurrency.max" => "121".into(),
        "gepa.minibatch_size" => "9".into(),
        "gepa.max_time_seconds" => "900".into(),
        "gepa.max_total_rollouts" | "gepa.max_train_rollouts" | "gepa.max_heldout_rollouts" => "300".into(),
        "candidate.keep" => "[{ text = \"label\" }]".into(),
        "gepa.guard_ids" => "[1, \"train:2\"]".into(),
        "run.durability" => "power".into(),
        "candidate.sources" => "{ instructions = \"@/prompt.txt\" }".into(),
        "container.pass_env" => "[\"MODEL_HOME\"]".into(),
        "disk_budget.hard_limit_gb" => "11".into(),
        "disk_budget.soft_limit_gb" => "4".into(),
        _ => match default {
            Value::Bool(flag) => (!flag).to_string(),
            Value::Number(number) if number.is_f64() => "0.5".into(),
            Value::Number(number) => (number.as_i64().unwrap() + 1).to_string(),
            Value::String(_)
                if path.contains("mode")
                    || path.contains("gepa.")
                    || path.contains("family")
                    || path.contains("style")
                    || path.contains("reasoning")
                    || path == "proposer.answer"
                    || path == "proposer.edits"
                    || path == "proposer.structured_output" =>
            {
                default.as_str().unwrap().to_owned()
            }
            Value::String(_) => "other".into(),
            Value::Object(_) => "{}".into(),
            Value::Null | Value::Array(_) => "7".into(),
        },
    }
}

#[test]
fn every_field_can_be_set_and_reports_its_origin() {
    let smallest = format!("{SMALLEST}\n[policy]\n");
    let base = read(&smallest).unwrap();
    // Limits require their estimates, so both are set.
    let estimates = [
        "gepa.proposer_estimated_cost_usd=1",
        "gepa.rollout_estimated_cost_usd=1",
        "gepa.rollout_estimated_wall_seconds=1",
        "gepa.proposer_estimated_prompt_tokens=1",
        "gepa.proposer_estimated_completion_tokens=1",
        "gepa.rollout_estimated_prompt_tokens=1",
        "gepa.rollout_estimated_completion_tokens=1",
        "cache.path=c.sqlite",
    ];
    let mut tried = 0;
    for listed in &base.values {
        let path = listed.path.as_str();
        let elsewhere = path.starts_with("taskset.") || path.starts_with("gepa.task_pools.");
        if elsewhere {
            assert_eq!((&listed.value, &listed.origin), (&json!(null), &Origin::Default));
            continue;
        }
        if path == "proposer.instructions_file" {
            // Its text replaces it, which the tests of steering check.
            continue;
        }
        let set = format!("{path}={}", other_value(path, &listed.value));
        let mut sets = estimates.to_vec();
        sets.push(&set);
        let of_endpoints = ["max_output_tokens", "backoff_ms", "backoff_max_seconds", "max_concurrent_requests"];
        if of_endpoints.iter().any(|name| path == format!("proposer.{name}")) {
            sets.extend([
                "proposer.backend=openai_compatible",
                "proposer.base_url=http://127.0.0.1:1/v1",
                "proposer.model=m",
            ]);
        }
        let loaded = read_with(&smallest, &[], &sets).unwrap_or_else(|error| panic!("{set}: {:#?}", error.findings));
        if listed.value.as_object().is_none_or(|map| !map.is_empty()) {
            // An empty table is not listed; the entries of another one are.
            let shown = if path == "candidate.sources" { "candidate.sources.instructions" } else { path };
            assert_eq!(value(&loaded, shown).origin, Origin::Set, "{set}");
        }
        tried += 1;
    }
    assert!(tried > 120, "{tried}");
}

#[test]
fn the_file_origin_is_the_place_of_the_value() {
    let loaded = read(SMALLEST).unwrap();
    assert_eq!(value(&loaded, "run.run_id").origin, Origin::File { line: Some(2), column: Some(10) });
    assert_eq!(value(&loaded, "seed_candidate.instructions").origin, Origin::File { line: Some(16), column: Some(16) });
    assert_eq!(value(&loaded, "gepa.max_generations").origin, Origin::Default);
    assert_eq!(
        value(&loaded, "container.cwd"),
        &EffectiveValue { path: "container.cwd".into(), value: json!(null), origin: Origin::Default }
    );
}

#[test]
fn set_takes_values_as_toml_or_as_plain_text() {
    let sets = [
        "run.run_id=123",
        "seed_candidate.\"odd name\"=It's = \"so\"",
        "policy.config.stop=[\"a\", \"b\"]",
        "policy.config.mode=plain words",
        "policy.disable_reasoning=true",
        "gepa.max_cost_usd=0",
        "dataset.filters.deep.er=1",
    ];
    let config = read_with(SMALLEST, &[], &sets).unwrap().config;
    assert_eq!(config.run.run_id.as_deref(), Some("123"));
    assert_eq!(config.seed_candidate["odd name"], "It's = \"so\"");
    assert_eq!(config.policy.as_ref().unwrap().config["stop"], json!(["a", "b"]));
    assert_eq!(config.policy.as_ref().unwrap().config["mode"], json!("plain words"));
    assert_eq!(config.policy.as_ref().unwrap().disable_reasoning.as_str(), "on");
    assert_eq!(config.dataset.unwrap().filters["deep"], json!({"er": 1}));
    // A later `--set` wins.
    let config = read_with(SMALLEST, &[], &["run.seed=1", "run.seed=2"]).unwrap().config;
    assert_eq!(config.run.seed, 2);
}

#[test]
fn a_bad_value_in_the_file_is_reported_even_when_it_is_overridden() {
    let text = format!("{SMALLEST}[cache]\nmode = \"rw\"\n");
    let error = read_with(&text, &[("SYNTH_OPTIMIZERS_CACHE_MODE", "off")], &[]).unwrap_err();
    assert_eq!(error.findings[0].code, "unknown_value");
}

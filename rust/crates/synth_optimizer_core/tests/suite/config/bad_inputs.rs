//! Snapshots of the findings that users see for a wrong configuration.

use synth_optimizer_core::config::render;
use synth_optimizer_core::model::error::ErrorCode;

use super::{SMALLEST, read, read_with};

/// Returns the findings of all cases as one text.
fn shown(cases: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (name, input) in cases {
        let findings = match read(input) {
            Ok(loaded) => loaded.warnings,
            Err(error) => error.findings,
        };
        text.push_str(&format!("=== {name}\n{}\n", render(&findings)));
    }
    text
}

fn assert_snapshot(name: &str, text: String) {
    let mut settings = insta::Settings::clone_current();
    settings.set_omit_expression(true);
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

fn with(more: &str) -> String {
    format!("{SMALLEST}{more}")
}

fn replaced(from: &str, to: &str) -> String {
    assert!(SMALLEST.contains(from));
    SMALLEST.replace(from, to)
}

#[test]
fn names_and_types() {
    assert_snapshot(
        "names_and_types",
        shown(&[
            ("a misspelt field", with("[gepa]\nminibatch_sise = 4\n")),
            ("a misspelt section", replaced("[dataset]", "[datset]")),
            ("a field of the other way to name rows", replaced("train_seeds", "train_ids")),
            ("a field of another section", with("[proposer]\nminibatch_size = 4\n")),
            (
                "a field of another version",
                with("[gepa.pipeline]\ndelta_max = 2\n[jesterky_workflow]\nenabled = true\n"),
            ),
            ("a number in quotes", with("[gepa]\nminibatch_size = \"4\"\n")),
            ("a float for a whole number", with("[gepa]\nminibatch_size = 4.0\n")),
            ("a boolean for a whole number", with("[gepa]\nmax_generations = true\n")),
            ("a word for a list", replaced("[\"instructions\"]", "\"instructions\"")),
            ("a bad element", replaced("[100, 101, 102]", "[100, \"101\", 102]")),
            ("a value for a section", "gepa = 5\n".to_owned() + SMALLEST),
            (
                "out of range",
                with(
                    "[gepa]\nmax_generations = 0\nrollout_failure_rate_tolerance = 1.5\n[gepa.candidate_selector]\nepsilon = nan\n",
                ),
            ),
            ("beyond 32 bits", with("[gepa]\nmax_total_rollouts = 99999999999\n")),
            ("a misspelt word", with("[cache]\nmode = \"readwirte\"\n")),
            ("a strange word", with("[gepa]\nfrontier_type = \"everything\"\n")),
        ]),
    );
}

#[test]
fn syntax() {
    assert_snapshot(
        "syntax",
        shown(&[
            ("text without quotes", with("[cache]\nmode = readonly\n")),
            (
                "an unclosed section, and a mistake above it",
                SMALLEST.replace("output_dir", "outptu_dir").replace("[candidate]", "[candidate"),
            ),
            ("an unclosed text", replaced("\"Reply with one label.\"", "\"Reply with one label.")),
            (
                "a key twice, and two more",
                with("[gepa]\nmax_generations = 1\nmax_generations = 2\n[cache]\nmode \"off\"\n[cache]\n"),
            ),
        ]),
    );
}

#[test]
fn rows_and_texts() {
    assert_snapshot(
        "rows_and_texts",
        shown(&[
            ("nothing at all", String::new()),
            ("no rows", replaced("train_seeds = [0, 1, 2, 3, 4, 5]", "train_seeds = []")),
            ("a row twice", replaced("[0, 1, 2, 3, 4, 5]", "[0, 1, 1]")),
            ("ranges that overlap", replaced("[0, 1, 2, 3, 4, 5]", "[\"0..5\", \"4..9\", 2]")),
            ("a range that runs backwards", replaced("[0, 1, 2, 3, 4, 5]", "[0, \"9..4\"]")),
            ("a range of ids", replaced("[0, 1, 2, 3, 4, 5]", "\"train:0..5\"")),
            ("a range without an end", replaced("[0, 1, 2, 3, 4, 5]", "\"0..\"")),
            ("a range that is too long", replaced("[0, 1, 2, 3, 4, 5]", "\"0..1000000\"")),
            ("a number instead of a list", replaced("[0, 1, 2, 3, 4, 5]", "5")),
            (
                "a range that has held-out rows",
                replaced("[dataset]", "[dataset]\nheldout_split = \"train\"").replace("[100, 101, 102]", "\"4..9\""),
            ),
            (
                "all rows of one split",
                replaced("[dataset]", "[dataset]\nheldout_split = \"train\"").replace("[100, 101, 102]", "\"all\""),
            ),
            (
                "held-out rows in train",
                replaced("[dataset]", "[dataset]\nheldout_split = \"train\"").replace("[100, 101, 102]", "[9, 4, 5]"),
            ),
            ("seeds and tasks", with("[taskset]\ntrain_ids = [\"a\"]\nheldout_ids = [\"a\"]\n")),
            (
                "pools that do not fit",
                with(
                    "[gepa.seed_pools]\npareto_eval = [0, 77]\nvalidation = [0]\nminibatch = [1, 1]\n[gepa.task_pools]\npareto = [\"x\"]\n",
                ),
            ),
            ("a run id that is a path", replaced("toy-1", "../toy")),
            (
                "a blank text and modules",
                replaced("\"Reply with one label.\"", "\" \"").replace("[\"instructions\"]", "[\"a\", \"\", \"a\"]"),
            ),
        ]),
    );
}

#[test]
fn endpoints_and_credentials() {
    assert_snapshot(
        "endpoints_and_credentials",
        shown(&[
            ("an address without a scheme", replaced("http://127.0.0.1:9100", "127.0.0.1:9100")),
            ("an address with a password", replaced("http://127.0.0.1:9100", "http://me:hunter2@host:9100")),
            ("a key in the policy", with("[policy.config]\ndeep = [{ api_key = \"abc\" }]\naccess_token = \"abc\"\n")),
            ("a key for the name of its variable", with("[proposer]\napi_key_env = \"sk-abcdef0123456789\"\n")),
            ("a proxy without an address", with("[policy]\ncredential_mode = \"proxy\"\n")),
            ("backends of other versions", with("[proposer]\nbackend = \"deepseek_chat\"\nauth_mode = \"chatgpt\"\n")),
            (
                "an endpoint with the settings of a process",
                with(
                    "[proposer]\nbackend = \"openai_compatible\"\ncommand = [\"codex\"]\nsandbox_mode = \"read-only\"\nauth_mode = \"host\"\napi_key_env = \"KEY\"\n",
                ),
            ),
            (
                "what is never allowed",
                with("[proposer]\ncopy_host_auth = true\nsandbox_mode = \"danger-full-access\"\n"),
            ),
            (
                "what only an endpoint takes",
                with("[proposer]\nstructured_output = \"required\"\nmax_output_tokens = 500\n"),
            ),
            ("a manifest in a read-only sandbox", with("[proposer]\nsandbox_mode = \"read-only\"\n")),
            ("two ways to sign in", with("[proposer]\nauth_mode = \"api_key\"\ncodex_home = \"home\"\n")),
            (
                "the sign-in of one provider at the address of another",
                with("[proposer]\nauth_mode = \"host\"\nbase_url = \"http://127.0.0.1:9/v1\"\n"),
            ),
            (
                "a price that is none",
                with(
                    "[proposer.prices.large]\nprompt_usd = -1.0\ncompletion_usd = nan\ncost = 1\n[proposer.prices.small]\nprompt_usd = 1\n",
                ),
            ),
        ]),
    );
}

#[test]
fn search_and_limits() {
    assert_snapshot(
        "search_and_limits",
        shown(&[
            (
                "a limit without estimates",
                with(
                    "[gepa]\nmax_cost_usd = 1.0\nmax_time_seconds = 60\nmax_total_tokens = 5\nproposer_estimated_prompt_tokens = 1\n",
                ),
            ),
            (
                "estimates that are too small or too large",
                with(
                    "[gepa]\nproposer_estimated_cost_usd = 0\nrollout_estimated_cost_usd = 1e7\nrollout_estimated_wall_seconds = 1e-4\nrollout_estimated_total_tokens = 1_000_000_000_000_001\nmax_cost_usd = 1e10\nmax_time_seconds = 1_000_000_001\n[proposer]\ntimeout_seconds = 1_000_000_001\n",
                ),
            ),
            (
                "a budget for less than the seed candidate",
                with("[gepa]\nmax_total_rollouts = 8\nsearch = \"reference\"\n"),
            ),
            (
                "halves that are too small",
                with("[gepa]\nmax_train_rollouts = 5\nmax_total_rollouts = 2\nsearch = \"reference\"\n"),
            ),
            ("a budget for less than the first rows of a sprint", with("[gepa]\nmax_total_rollouts = 6\n")),
            (
                "undeclared objectives",
                with(
                    "[gepa]\nobjective_keys = [\"a\", \"a\"]\n[gepa.objective_directions]\nb = \"min\"\n[gepa.objective_acceptance]\nprotected_objectives = [\"c\"]\n",
                ),
            ),
            (
                "modes of other versions",
                with("[gepa.pipeline]\nmode = \"flash_evolve\"\nstaleness_policy = \"guarded\"\n"),
            ),
            (
                "concurrency upside down",
                with(
                    "[gepa.pipeline.adaptive_rollout_concurrency]\ninitial = 4\nmin = 8\nmax = 2\noverload_status_codes = [429, 42]\n",
                ),
            ),
            (
                "workers that are never used",
                with(
                    "[gepa.pipeline]\nmode = \"async\"\nmax_in_flight_candidates = 6\n[gepa.pipeline.workers]\nrollout = 512\npropose = 8\n[gepa.pipeline.adaptive_rollout_concurrency]\nmax = 120\n[proposer]\nbackend = \"openai_compatible\"\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:1\"\nmax_concurrent_requests = 4\n",
                ),
            ),
            ("no workers", with("[gepa.pipeline.workers]\nrollout = 0\npropose = 0\n")),
            (
                "more workers than a process has files",
                with("[gepa.pipeline.workers]\nrollout = 100000\npropose = 5000\n"),
            ),
            (
                "an epoch that skips rows",
                with("[gepa]\nminibatch_size = 8\n[gepa.batch_sampler]\nepoch_width = 9\nfield = \"a..b\"\n"),
            ),
            ("a replay of nothing", with("[cache]\nmode = \"readonly\"\n[disk_budget]\nhard_limit_gb = 1\n")),
            ("a home directory", replaced("\"out\"", "\"~/out\"")),
            (
                "warnings only",
                with(
                    "[gepa.candidate_selector]\nk = 9\n[gepa]\nproposals_per_generation = 2\nno_improvement_metric = \"heldout_score\"\n[gepa.pipeline]\nmode = \"async\"\nmax_in_flight_candidates = 1\n[proposer]\napproval_policy = \"on-request\"\n",
                ),
            ),
        ]),
    );
}

#[test]
fn limits_and_estimates_have_bounds() {
    const TOKENS: (&str, &str, &str, &str) = ("1", "1000000000000000", "0", "1000000000000001");
    const SECONDS: (&str, &str, &str, &str) = ("1", "1000000000", "0", "1000000001");
    const COST: (&str, &str, &str, &str) = ("1e-9", "1e6", "9e-10", "1000001");
    let fields = [
        ("gepa.rollout_estimated_cost_usd", COST),
        ("gepa.proposer_estimated_cost_usd", COST),
        ("gepa.rollout_estimated_wall_seconds", ("1e-3", "1e7", "9e-4", "10000001")),
        ("gepa.max_cost_usd", ("0", "1e9", "-1", "1000000001")),
        ("gepa.max_time_seconds", SECONDS),
        ("gepa.rollout_async_timeout_seconds", SECONDS),
        ("proposer.timeout_seconds", SECONDS),
        ("container.startup_timeout_seconds", SECONDS),
        ("policy.max_tokens", TOKENS),
        ("gepa.max_prompt_tokens", TOKENS),
        ("gepa.max_completion_tokens", TOKENS),
        ("gepa.max_total_tokens", TOKENS),
        ("gepa.proposer_estimated_prompt_tokens", TOKENS),
        ("gepa.proposer_estimated_completion_tokens", TOKENS),
        ("gepa.proposer_estimated_total_tokens", TOKENS),
        ("gepa.rollout_estimated_prompt_tokens", TOKENS),
        ("gepa.rollout_estimated_completion_tokens", TOKENS),
        ("gepa.rollout_estimated_total_tokens", TOKENS),
    ];
    for (field, (least, most, below, above)) in fields {
        let codes = |value: &str| -> Vec<&str> {
            let found = read_with(SMALLEST, &[], &[&format!("{field}={value}")]).map_err(|error| error.findings);
            found.map_or_else(|found| found.into_iter().map(|found| found.code).collect(), |_| Vec::new())
        };
        for value in [below, above] {
            assert_eq!(codes(value), ["out_of_range"], "{field} = {value}");
        }
        for value in [least, most] {
            assert!(!codes(value).contains(&"out_of_range"), "{field} = {value}");
        }
    }
}

#[test]
fn other_sources() {
    let sets =
        ["gepa.minibatch_sise=4", "gepa.minibatch_size=four", "nonsense", "run.seed=-1", "dataset.heldout_seeds=[]"];
    let environment =
        [("SYNTH_OPTIMIZERS_CACHE_MODE", "rw"), ("SYNTH_OPTIMIZERS_RUN_ID", "a b"), ("GEPA_ROLLOUT_CONCURRENCY", "4")];
    let error = read_with(SMALLEST, &environment, &sets).unwrap_err();
    assert_snapshot("other_sources", format!("{}\n\n{}", error, render(&error.findings)));
}

#[test]
fn everything_at_once() {
    let text = r#"
[run]
run_id = "no spaces"
sed = 3

[container]
url = "ftp://host"
startup_timeout_seconds = 0

[dataset]
train_seeds = [1, 2, 2]
heldout_seeds = [1, 3]
heldout_split = "train"

[candidate]
target_module = ["m"]

[policy]
proxymode = "allow_direct"
config = { token = "abc" }

[proposer]
backend = "local_process_json"
timeout_seconds = "fast"

[gepa]
max_cost_usd = 1
max_generations = -1
frontier_type = "per_exampel"

[cache]
mode = "readonly"

[extra]
x = 1
"#;
    let error = read(text).unwrap_err();
    assert_eq!(error.code, ErrorCode::Config);
    assert!(error.findings.len() >= 15, "{}", error.findings.len());
    let lines: Vec<_> = error.findings.iter().filter_map(|found| found.line).collect();
    assert!(lines.is_sorted(), "{lines:?}");
    assert_snapshot("everything_at_once", format!("{}\n\n{}", error, render(&error.findings)));
}

#[test]
fn a_file_that_is_not_toml_has_its_own_code() {
    assert_eq!(read("a = ").unwrap_err().code, ErrorCode::TomlDecode);
    assert_eq!(read("a = 1").unwrap_err().code, ErrorCode::Config);
}

#[test]
fn one_mistake_is_one_finding() {
    // A misspelt or unreadable field must not also be reported as missing or as too small.
    for text in [
        replaced("[dataset]", "[datset]"),
        replaced("train_seeds", "train_seed"),
        replaced("target_modules", "target_module"),
        replaced("url = \"http://127.0.0.1:9100\"", "url = 9100"),
        replaced("[0, 1, 2, 3, 4, 5]", "\"every\""),
        with("[gepa]\nmax_cost_usd = 1\nproposer_estimated_cost_usd = \"1\"\nrollout_estimated_cost_usd = 1\n"),
        with("[cache]\nmode = \"readonly\"\nnamespace = \"n\"\npath = 5\n"),
        with("[gepa]\nobjective_keys = \"a\"\n[gepa.objective_directions]\na = \"min\"\n"),
    ] {
        let error = read(&text).unwrap_err();
        assert_eq!(error.findings.len(), 1, "{}", render(&error.findings));
    }
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let many: String = (0..20_000).map(|n| format!("unknown_{n} = {n}\n")).collect();
    let error = read(&with(&format!("[gepa]\n{many}"))).unwrap_err();
    assert_eq!(error.findings.len(), 201);
    assert!(error.findings.iter().take(200).enumerate().all(|(n, found)| found.field == format!("gepa.unknown_{n}")));
    let rest = error.findings.last().unwrap();
    assert_eq!((rest.code, rest.line), ("list_truncated", None));
    assert!(rest.message.starts_with("19800 more errors and 0 more warnings"), "{}", rest.message);
    // The position of a finding does not depend on the number of findings before it.
    let lines: Vec<_> =
        error.findings.iter().take(200).map(|found| (found.line.unwrap(), found.column.unwrap())).collect();
    assert!(lines.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1 && pair[1].1 == 1), "{lines:?}");
    let excerpt = error.findings[199].excerpt.as_deref().unwrap();
    assert!(excerpt.contains("unknown_199 = 199"), "{excerpt}");
}

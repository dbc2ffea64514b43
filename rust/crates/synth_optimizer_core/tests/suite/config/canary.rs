//! No output contains a secret, wherever the input contains it.

use proptest::prelude::{ProptestConfig, any, proptest};
use proptest::sample::select;
use serde_json::json;
use synth_optimizer_core::config::render;

use super::{SMALLEST, read_value, read_with};

/// A secret that is recognized only by its name, and two that are recognized only by their shape.
const NAMED: &str = "hunter2";
const SHAPED: &str = "sk-live-Q7w9ZxK2mB4vN8cT1rY6";
const HEX: &str = "9f8a7c6b5d4e3f2a1b0c9d8e7f6a5b4c";

fn outputs(text: &str, environment: &[(&str, &str)], sets: &[&str]) -> String {
    match read_with(text, environment, sets) {
        Ok(loaded) => format!(
            "{:?}\n{}\n{:?}\n{}",
            loaded.values,
            serde_json::to_string(&loaded.values).unwrap(),
            loaded.warnings,
            render(&loaded.warnings)
        ),
        Err(error) => format!(
            "{error}\n{error:?}\n{}\n{}",
            render(&error.findings),
            serde_json::to_string(&error.findings).unwrap()
        ),
    }
}

fn assert_hidden(text: &str, environment: &[(&str, &str)], sets: &[&str]) {
    let shown = outputs(text, environment, sets);
    for secret in [NAMED, SHAPED, HEX] {
        assert!(!shown.contains(secret), "{text}\n{sets:?}\n{shown}");
    }
}

/// Lines that are appended to a valid file: unchanged, broken, and with a mistake on the same line.
const PLACES: &[&str] = &[
    "[policy.config]\napi_key = \"hunter2\"\n",
    "[policy.config]\n\"x-api-key\" = \"hunter2\"\n",
    "[policy.config]\n\"api\\u005fkey\" = \"hunter2\"\n",
    "[policy.config]\napiKey = 'hunter2'\n",
    "[policy]\nconfig = { a = 1, nested = { password = \"hunter2\", b = 2 } }\n",
    "[policy]\nconfig = { list = [{ token = \"hunter2\" }] }\n",
    "[policy.config.authorization]\nvalue = \"hunter2\"\n",
    "[policy.config]\nsecret = \"\"\"\nfirst\nhunter2\n\"\"\"\n",
    "[policy.config]\nsecret = '''\nhunter2'''\n",
    "[policy.config]\ntokens_secret = [\n  \"hunter2\",\n]\n",
    "[policy]\napi_key = \"hunter2\"\n",
    "[policy]\npassword = hunter2\n",
    "[policy]\napi_key \"hunter2\"\n",
    "[policy]\napi_key: hunter2\n",
    "[policy]\napi_key = \"hunter2\n",
    "[policy]\napi_key = \"first\nhunter2\"\n",
    "[policy]\napi_key = [\"hunter2\"\nmodel = 5\n",
    "[policy]\napi_key = \"\"\"\nhunter2\n",
    "[policy]\napi_key = hunter2]hunter2\n",
    "[policy]\nmodel = 5 # password was hunter2\n",
    "# password: hunter2\n[policy]\nmodel = 5\n",
    "[policy.api_key]\nx = 5 hunter2\n",
    "api_key = \"hunter2\"\n",
    "[policy]\nmodel = \"sk-live-Q7w9ZxK2mB4vN8cT1rY6\"\n",
    "[policy]\nmodel = [\"sk-live-Q7w9ZxK2mB4vN8cT1rY6\"]\n",
    "[policy]\nmodel = 5 # sk-live-Q7w9ZxK2mB4vN8cT1rY6\n",
    "[policy]\n\"sk-live-Q7w9ZxK2mB4vN8cT1rY6\" = 5\n",
    "[policy.\"sk-live-Q7w9ZxK2mB4vN8cT1rY6\"]\nx = 5\n",
    "[policy]\napi_family = \"sk-live-Q7w9ZxK2mB4vN8cT1rY6\"\n",
    "[policy]\napi_key_env = \"sk-live-Q7w9ZxK2mB4vN8cT1rY6\"\n",
    "[proposer]\napi_key_env = \"sk-hunter2\"\n",
    "[container]\nurl = \"http://127.0.0.1:1\"\ntoken_env = \"Bearer hunter2\"\n",
    "[proposer]\napi_key_env = \"Bearer hunter2\"\n",
    "[proposer]\nbase_url = \"http://me:hunter2@host/v1\"\n",
    "[policy]\nbase_url = \"http://me:hun/hunter2@host/v1\"\n",
    "[policy]\nbase_url = \"http://host/v1?api_key=hunter2\"\n",
    "[proposer]\nbase_url = \"https://me:hunter2@host/v1\n",
    "[proposer]\ncommand = [\"codex\", \"--api-key\", \"hunter2\", \"--token=hunter2\"]\n",
    "[proposer]\ncommand = [\"codex\", \"--api-key\", \"hunter2\", 5]\n",
    "[proposer]\nmodel = \"Bearer hunter2\"\ntimeout_seconds = \"Bearer hunter2\"\n",
    "[cache]\nnamespace = \"sk-live-Q7w9ZxK2mB4vN8cT1rY6\"\n",
    "[dataset.filters]\npassword = \"hunter2\"\n",
    "[proposer]\nkey = \"hunter2\"\n",
    "[proposer]\nkey = \"9f8a7c6b5d4e3f2a1b0c9d8e7f6a5b4c\"\n",
    "[proposer]\nopenai_key = \"hunter2\"\n",
    "[proposer]\nopenaiKey = 'hunter2'\n",
    "[proposer]\npwd = \"hunter2\"\n",
    "[proposer]\npat = \"hunter2\"\n",
    "[proposer]\nopenai_key_env = \"sk-hunter2\"\n",
    "[proposer]\nmodel = 5 # 9f8a7c6b5d4e3f2a1b0c9d8e7f6a5b4c\n",
    "[proposer]\ncommand = [\"codex\", \"--key\", \"hunter2\", \"--pat=hunter2\"]\n",
    "[policy]\nmodel = \"9f8a7c6b5d4e3f2a1b0c9d8e7f6a5b4c\"\n",
    "[policy]\nbase_url = \"http://host/v1?key=hunter2\"\n",
    "[policy.config]\nkey = \"hunter2\"\n",
    "[policy.config]\n\"x-key\" = \"hunter2\"\n",
    "[policy.config]\nlabel = \"9f8a7c6b5d4e3f2a1b0c9d8e7f6a5b4c\"\n",
    "[policy.config.key]\nvalue = \"hunter2\"\n",
];

#[test]
fn secrets_in_files_never_appear_in_output() {
    for place in PLACES {
        let file = SMALLEST.replace("[dataset]", "[dataset]\nfilters.a = 1");
        let file = if place.starts_with("[dataset.filters]") { SMALLEST.to_owned() } else { file };
        assert_hidden(&format!("{file}{place}"), &[], &[]);
        // The same before the file, so that the line breaks the rest of the file.
        assert_hidden(&format!("{place}{file}"), &[], &[]);
        // Break every line, so that every line has an excerpt.
        let broken: String = place.lines().map(|line| format!("{line} ~\n")).collect();
        assert_hidden(&format!("{file}{broken}"), &[], &[]);
        let half = place.replacen('=', "", 1);
        assert_hidden(&format!("{file}{half}"), &[], &[]);
        assert_hidden(&format!("[a\nx = [\n{place}"), &[], &[]);
    }
}

#[test]
fn an_unclosed_secret_hides_the_text_after_it() {
    let broken = SMALLEST.replace("http://", "\"a'''http://");
    assert_hidden(&format!("{broken}[policy]\napi_key = \"first\nhunter2\"\n"), &[], &[]);
}

#[test]
fn secrets_in_the_file_do_not_hide_everything_else() {
    let shown = outputs(&format!("{SMALLEST}[policy.config]\napi_key = \"hunter2\"\n"), &[], &[]);
    assert!(shown.contains("api_key = *********"), "{shown}");
}

#[test]
fn a_policy_with_a_key_is_refused() {
    for entry in [
        "key = \"a\"",
        "openai_key = \"a\"",
        "\"x-key\" = \"a\"",
        "pwd = \"a\"",
        "pat = \"a\"",
        "label = \"9f8a7c6b5d4e3f2a1b0c9d8e7f6a5b4c\"",
    ] {
        let error = read_with(&format!("{SMALLEST}[policy.config]\n{entry}\n"), &[], &[]).unwrap_err();
        let codes: Vec<_> = error.findings.iter().map(|found| found.code).collect();
        assert_eq!(codes, ["credential_in_config"], "{entry}");
    }
    read_with(&format!("{SMALLEST}[policy.config]\nkeys = 2\nopenai_key_env = \"OPENAI_KEY\"\n"), &[], &[]).unwrap();
}

#[test]
fn secrets_of_the_command_line_and_the_environment_never_appear_in_output() {
    for set in [
        "policy.config.api_key=hunter2",
        "policy.config.api_key=\"hunter2\"",
        "policy.api_key=hunter2",
        "policy.config={ secret = \"hunter2\" }",
        "api_key hunter2",
        "gepa.minibatch_size=Bearer hunter2",
        "gepa.minibatch_size=sk-live-Q7w9ZxK2mB4vN8cT1rY6",
        "run.run_id=sk-live-Q7w9ZxK2mB4vN8cT1rY6",
        "container.url=http://me:hunter2@host",
        "dataset.filters.token=hunter2",
        "policy.api_key_env=sk-hunter2",
        "policy.config.key=hunter2",
        "proposer.pwd=hunter2",
        "run.run_id=9f8a7c6b5d4e3f2a1b0c9d8e7f6a5b4c",
    ] {
        assert_hidden(SMALLEST, &[], &[set]);
    }
    for variable in ["SYNTH_OPTIMIZERS_RUN_ID", "SYNTH_OPTIMIZERS_CACHE_MODE", "SYNTH_OPTIMIZERS_GEPA_PIPELINE_MODE"] {
        assert_hidden(SMALLEST, &[(variable, SHAPED)], &[]);
    }
}

#[test]
fn secrets_in_mappings_never_appear_in_output() {
    for (section, value) in [
        ("policy", json!({"config": {"a": [{"api_key": NAMED}]}})),
        ("policy", json!({"api_key": NAMED})),
        ("policy", json!({"model": {"password": NAMED}, "provider": [SHAPED]})),
        ("container", json!({"url": format!("http://me:{NAMED}@host")})),
        ("api_key", json!(NAMED)),
        (SHAPED, json!(1)),
        ("proposer", json!({"key": NAMED, "model": [HEX]})),
        ("policy", json!({"config": {"pat": NAMED}})),
    ] {
        let error = read_value(json!({section: value})).unwrap_err();
        let shown = format!("{error} {error:?} {}", render(&error.findings));
        assert!([NAMED, SHAPED, HEX].iter().all(|secret| !shown.contains(secret)), "{shown}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// No finding shows a secret, whatever syntax error precedes it.
    #[test]
    fn secrets_below_broken_text_never_appear_in_output(
        place in select(PLACES),
        at in any::<usize>(),
        junk in "[\\[\\]{}\"'=,#\n a-z]{1,8}",
    ) {
        let at = at % SMALLEST.len();
        let text = format!("{}{junk}{}{place}", &SMALLEST[..at], &SMALLEST[at..]);
        if read_with(&text, &[], &[]).is_err() {
            assert_hidden(&text, &[], &[]);
        }
    }
}

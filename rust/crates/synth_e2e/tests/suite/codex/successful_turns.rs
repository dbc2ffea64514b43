//! Successful turns with every way to return an answer.

use synth_e2e::model_server::{manifest, patch, run, say, write_rules};
use synth_optimizer_core::config::proposer::{AnswerMode, ModelPrice, ReasoningEffort, SandboxMode};
use synth_optimizer_platform::proposer::Proposer;

use super::fixture::{CodexFixture, KEY, KEY_VARIABLE, items, request, texts, turn_id};

#[test]
fn a_manifest_is_written_by_a_tool() {
    let mut fixture = CodexFixture::new(write_rules);
    let price = ModelPrice {
        prompt_usd: Some(1.0),
        cached_prompt_usd: Some(0.5),
        completion_usd: Some(10.0),
        ..ModelPrice::default()
    };
    fixture.config.proposer.prices.insert("stub-model".into(), price);
    let answer = fixture.turn().unwrap();
    assert_eq!(texts(&answer), ["Rules: r0 r3"]);
    assert!(answer.problems.is_empty(), "{:?}", answer.problems);
    assert_eq!((answer.requested_model.as_str(), answer.effective_model.as_str()), ("stub-model", "stub-model"));
    // Three responses with 100 input tokens, 40 of them cached, and 20 output tokens each.
    assert_eq!((answer.usage.prompt_tokens, answer.usage.completion_tokens), (Some(300), Some(60)));
    let dollars = (180.0 + 0.5 * 120.0 + 10.0 * 60.0) / 1e6;
    assert!((answer.usage.cost.known().unwrap().usd() - dollars).abs() < 1e-12, "{:?}", answer.usage);
    let requests = fixture.server.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    let tools = requests[0].body["tools"].to_string();
    assert!(tools.contains("apply_patch") && tools.contains("exec_command"), "{tools}");
    assert!(fixture.transcript().contains("turn/completed"));
}

#[test]
fn a_manifest_is_written_by_a_command() {
    let text = manifest(serde_json::json!({ "notes": "Rules: r0 r9" })).to_string();
    let fixture = CodexFixture::new(move |request| {
        items(vec![if request.outputs.is_empty() {
            run(format!("cat > proposal/manifest.json <<'EOF'\n{text}\nEOF"))
        } else {
            say("done")
        }])
    });
    assert_eq!(texts(&fixture.turn().unwrap()), ["Rules: r0 r9"]);
}

#[test]
fn with_a_schema_the_last_message_is_the_manifest() {
    for sandbox in [None, Some(SandboxMode::ReadOnly)] {
        let mut fixture = CodexFixture::new(write_rules);
        fixture.config.proposer.answer = AnswerMode::Structured;
        fixture.config.proposer.sandbox_mode = sandbox;
        fixture.config.proposer.reasoning_effort = Some(ReasoningEffort::High);
        let answer = fixture.turn().unwrap();
        assert_eq!(texts(&answer), ["Rules: r0 r3"]);
        let requests = fixture.server.requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].body["reasoning"]["effort"], "high");
        assert_eq!(requests[0].body["text"]["format"]["schema"]["required"][0], "schema_version");
    }
}

/// With a schema, the last message has the edits; without one, the file has them.
#[test]
fn edits_are_asked_for_and_read_in_every_way_to_return_an_answer() {
    for answer in [AnswerMode::Structured, AnswerMode::Manifest] {
        let mut fixture = CodexFixture::new(|request| {
            let mut text = manifest(serde_json::json!({ "notes": null }));
            text["proposals"][0]["edits"] =
                serde_json::json!({ "notes": [{ "operation": "append", "find": "", "text": "r3" }] });
            let is_structured = request.body.pointer("/text/format/schema").is_some();
            items(vec![match (is_structured, request.outputs.len()) {
                (true, _) => say(text.to_string()),
                (false, 0) => run("cat proposal_schema.md"),
                (false, 1) => patch("proposal/manifest.json", &text.to_string()),
                (false, _) => say("done"),
            }])
        });
        fixture.config.proposer.answer = answer;
        let mut asked = request();
        asked.question.edit_fields = vec!["notes".into()];
        let proposer = fixture.proposer();
        let found = fixture.runtime.block_on(proposer.propose(turn_id(1), asked)).unwrap();
        assert_eq!(found.problems, []);
        assert!(found.proposals[0].fields.is_empty());
        assert_eq!(found.proposals[0].edits["notes"][0].text, "r3");
        let requests = fixture.server.requests();
        let shown = requests.last().unwrap().text();
        let shown = shown + &requests.last().unwrap().outputs.join("\n");
        assert!(shown.contains("Change `notes` with `edits`"), "{shown}");
        let place = "/text/format/schema/properties/proposals/items/properties/edits/properties/notes";
        assert_eq!(requests[0].body.pointer(place).is_some(), answer == AnswerMode::Structured);
    }
}

#[test]
fn one_process_serves_concurrent_turns_and_describes_itself() {
    let fixture = CodexFixture::new(write_rules);
    let proposer = fixture.proposer();
    let mut ready = None;
    fixture.runtime.block_on(async {
        ready = proposer.prepare().await.unwrap();
        proposer.propose(turn_id(1), request()).await.unwrap();
        let turns = [2, 3, 4, 5].map(|id| proposer.propose(turn_id(id), request()));
        let [a, b, c, d] = turns;
        let ended = tokio::join!(a, b, c, d);
        for answer in [ended.0, ended.1, ended.2, ended.3] {
            assert_eq!(texts(&answer.unwrap()), ["Rules: r0 r3"]);
        }
    });
    let processes = fixture.processes();
    let codex: Vec<_> = processes.iter().filter(|(_, line)| line.contains("app-server")).collect();
    assert_eq!(codex.len(), 1, "{processes:?}");
    // Codex inherits no variable of this process.
    let environ = std::fs::read(format!("/proc/{}/environ", codex[0].0)).unwrap();
    let mut names: Vec<String> = String::from_utf8_lossy(&environ)
        .split('\0')
        .filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()))
        .collect();
    names.sort();
    assert!(std::env::var_os("SYNTH_E2E_CODEX").is_some());
    assert_eq!(names, ["CODEX_HOME", "HOME", "LANG", "PATH", "SYNTH_OPTIMIZERS_PROPOSER_LEASE", KEY_VARIABLE]);
    // While codex runs, no command line and no file contains the key.
    assert!(processes.iter().all(|(_, line)| !line.contains(KEY)), "{processes:?}");
    fixture.assert_no_canary();
    fixture.runtime.block_on(proposer.close());
    fixture.assert_clean();
    let ready = ready.unwrap();
    assert_eq!((ready.backend.as_str(), ready.model.as_str()), ("codex_app_server", "stub-model"));
    assert_eq!((ready.source.as_str(), ready.provider.as_str()), ("proposer.command", "loopback"));
    assert_eq!(ready.auth, format!("api_key ({KEY_VARIABLE})"));
    assert!(ready.version.split('.').count() >= 3, "{}", ready.version);
}

#[test]
fn codex_is_found_in_the_package_and_on_the_path() {
    let mut fixture = CodexFixture::new(write_rules);
    let codex = std::mem::take(&mut fixture.config.proposer.command).remove(0);
    fixture.codex_runtime = Some(codex.clone().into());
    let ready = |fixture: &CodexFixture| {
        let proposer = fixture.proposer();
        let ready = fixture.runtime.block_on(proposer.prepare()).unwrap().unwrap();
        fixture.runtime.block_on(proposer.close());
        fixture.assert_clean();
        ready
    };
    assert_eq!(ready(&fixture).source, "openai-codex-cli-bin");
    fixture.codex_runtime = None;
    let dir = codex.rsplit_once('/').unwrap().0;
    fixture.variables.insert("PATH".into(), format!("{dir}:/usr/bin:/bin"));
    assert_eq!(ready(&fixture).source, "PATH");
}

#[test]
fn a_key_in_the_models_output_is_not_stored() {
    let text = manifest(serde_json::json!({ "notes": format!("Rules: r0 {KEY}") })).to_string();
    let fixture = CodexFixture::new(move |request| {
        items(vec![match request.outputs.len() {
            0 => run(format!("echo {KEY} > notes.txt; echo 'token {KEY}'")),
            1 => patch("proposal/manifest.json", &text),
            _ => say(format!("I was told {KEY}.")),
        }])
    });
    assert_eq!(texts(&fixture.turn().unwrap()), ["Rules: r0 [hidden]"]);
    assert!(fixture.transcript().contains("[hidden]"));
    assert!(std::fs::read_to_string(fixture.workspace().join("notes.txt")).unwrap().contains("[hidden]"));
}

#[test]
fn the_sign_in_of_the_host_is_linked_and_unchanged() {
    let mut fixture = CodexFixture::new(write_rules);
    let host = fixture.temp_dir().join("host-codex");
    std::fs::create_dir(&host).unwrap();
    let secret = format!("{{\"OPENAI_API_KEY\":\"{KEY}\"}}");
    std::fs::write(host.join("auth.json"), &secret).unwrap();
    fixture.variables.remove(KEY_VARIABLE);
    fixture.variables.insert("CODEX_HOME".into(), host.to_string());
    (fixture.config.proposer.api_key_env, fixture.config.proposer.base_url) = (None, None);
    fixture.config.proposer.model = None;
    let proposer = fixture.proposer();
    let ready = fixture.runtime.block_on(proposer.prepare()).unwrap().unwrap();
    assert_eq!(ready.auth, "host");
    assert!(!ready.model.is_empty());
    let link = fixture.run_dir().join(".codex_home/auth.json");
    assert_eq!(std::fs::read_link(link).unwrap(), host.join("auth.json"));
    fixture.runtime.block_on(proposer.close());
    assert_eq!(std::fs::read_to_string(host.join("auth.json")).unwrap(), secret);
    fixture.assert_clean();
    std::fs::remove_file(host.join("auth.json")).unwrap();
    let error = fixture.runtime.block_on(fixture.proposer().prepare()).unwrap_err();
    assert!(error.message.contains("no credentials") && error.hint.contains("codex login"), "{error}");
}

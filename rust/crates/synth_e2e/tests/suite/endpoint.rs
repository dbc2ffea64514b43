//! Complete runs with an OpenAI-compatible endpoint as the proposer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{TestDir, assert_consistent, count, finished, stub};
use serde_json::{Value, json};
use synth_e2e::logs::{capture_records, captured_records};
use synth_e2e::model_server::{ModelReply, ModelRequest, chat, manifest, proposed};
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::stub::FIELDS;
use synth_e2e::{ModelServer, RowNames, RunFiles, ScriptedProposer, ServerProcess, read_bill, small_config};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::proposer::{ModelPrice, ProposerBackend};
use synth_optimizer_core::config::sections::{CacheMode, KeepSpan};
use synth_optimizer_core::model::answer::{FailureClass, ProposalAnswer};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{ProposerFailed, ProposerStarted};
use synth_optimizer_core::model::usage::{Cost, NanoUsd};
use synth_optimizer_platform::artifacts::events_replay;
use synth_optimizer_platform::proposer::{OpenAiProposer, ProposalRequest, Proposer, TurnFuture, TurnId};
use synth_optimizer_platform::runtime::{RunControl, RunOutcome, RunSpec, check, execute};
use synth_optimizer_platform::workspace::Reader;

const MODEL: &str = "toy";

struct EndpointFixture {
    place: TestDir,
    _stub: ServerProcess,
    server: ModelServer,
    config: Config,
}

fn fixture(model: impl Fn(&ModelRequest) -> ModelReply + Send + Sync + 'static) -> EndpointFixture {
    let (place, server) = (TestDir::new(), ModelServer::start(model).unwrap());
    let bill = place.path().join("bill");
    let stub = stub(&["--train", "6", "--heldout", "3", "--bill", bill.as_str()]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.run.output_dir = place.path().join("runs");
    config.run.run_id = Some("endpoint-one".into());
    config.cache.path = Some(place.path().join("cache.sqlite"));
    config.cache.namespace = Some("shared".into());
    config.proposer.backend = ProposerBackend::OpenaiCompatible;
    config.proposer.base_url = Some(server.base_url());
    config.proposer.model = Some(MODEL.into());
    config.proposer.backoff_ms = 1;
    EndpointFixture { place, _stub: stub, server, config }
}

fn try_run(config: &Config, proposer: Option<Arc<dyn Proposer>>) -> Result<RunOutcome, OptimizerError> {
    let (_control, receiver) = RunControl::new(100_000);
    let request = RunSpec { proposer, ..RunSpec::new(config.clone()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(execute::<GepaEngine>(request, receiver))
}

/// Executes a run. Without a proposer, the run creates the one that its config names.
fn run(config: &Config, proposer: Option<Arc<dyn Proposer>>) -> (RunOutcome, RunFiles) {
    let outcome = try_run(config, proposer).unwrap();
    let files = RunFiles::new(&config.run.output_dir, config.run.run_id.as_ref().unwrap());
    assert_consistent(&files);
    (outcome, files)
}

fn started_turns(files: &RunFiles) -> Vec<ProposerStarted> {
    let started = |event| match event {
        Event::ProposerStarted(turn) => Some(turn),
        _ => None,
    };
    files.events().unwrap().into_iter().filter_map(started).collect()
}

fn failed_turns(files: &RunFiles) -> Vec<ProposerFailed> {
    let failed = |event| match event {
        Event::ProposerFailed(turn) => Some(turn),
        _ => None,
    };
    files.events().unwrap().into_iter().filter_map(failed).collect()
}

fn writes_rules(request: &ModelRequest) -> ModelReply {
    chat(MODEL, proposed(&request.text()).to_string())
}

#[test]
fn an_endpoint_run_improves_is_priced_and_is_repeated_from_the_cache() {
    let mut fixture = fixture(writes_rules);
    let price = ModelPrice {
        prompt_usd: Some(1.0),
        cached_prompt_usd: None,
        completion_usd: Some(10.0),
        ..ModelPrice::default()
    };
    fixture.config.proposer.prices.insert(MODEL.into(), price);
    let (outcome, first) = run(&fixture.config, None);
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    assert!(finished(&first).heldout_gain.is_some_and(|gain| gain.difference > 0.0));
    let requests = fixture.server.requests();
    assert!(requests.len() >= 2 && requests.iter().all(|request| request.path == "/v1/chat/completions"));
    // No request contains a held-out row.
    assert!(requests.iter().all(|request| !request.text().contains("test:")), "{}", requests[0].text());
    let paid: u64 = first
        .events()
        .unwrap()
        .iter()
        .filter_map(|event| match event {
            Event::ProposerCompleted(turn) => match turn.usage.cost {
                Cost::Known(NanoUsd(nano)) => Some(nano),
                Cost::Unknown => None,
            },
            _ => None,
        })
        .sum();
    assert_eq!(
        paid,
        2_000_000 * requests.len() as u64,
        "1,000 tokens at 1 dollar and 100 at 10 dollars, a million each"
    );

    fixture.config.run.output_dir = fixture.place.path().join("elsewhere");
    fixture.config.run.run_id = Some("endpoint-two".into());
    let (_, second) = run(&fixture.config, None);
    assert_eq!(fixture.server.requests().len(), requests.len(), "the endpoint was asked again");
    for name in COMPARED_FILES {
        assert_eq!(second.comparable(name).unwrap(), first.comparable(name).unwrap(), "{name}");
    }
    fixture.server.stop();
    fixture.config.cache.mode = CacheMode::Readonly;
    fixture.config.run.run_id = Some("endpoint-three".into());
    let (outcome, third) = run(&fixture.config, None);
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    assert_eq!(third.comparable(COMPARED_FILES[0]).unwrap(), first.comparable(COMPARED_FILES[0]).unwrap());
}

#[test]
fn an_unusable_proposer_ends_the_start_before_the_first_rollout() {
    let mut fixture = fixture(writes_rules);
    let status = |code| ModelReply::Status { code, retry_after: None, message: "no".into() };
    let models = |id: &str| ModelReply::Document(json!({ "object": "list", "data": [{ "id": id }] }));
    let start = |fixture: &EndpointFixture, word: &str| {
        let error = try_run(&fixture.config, None).unwrap_err();
        assert_eq!(error.code, ErrorCode::Proposer, "{error}");
        assert!(error.message.contains(word), "{word}: {error}");
        assert!(read_bill(&fixture.place.path().join("bill")).unwrap().is_empty(), "{word}: a rollout was paid");
        assert!(fixture.server.requests().is_empty(), "{word}: a turn was paid");
    };
    for (reply, word) in [(status(401), "401"), (status(403), "403"), (models("another"), "\"toy\"")] {
        fixture.server.set_models(reply);
        start(&fixture, word);
    }
    let known = fixture.config.proposer.base_url.replace("http://127.0.0.1:1/v1".into());
    start(&fixture, "cannot be reached");
    // The same command starts the run once the proposer can be used.
    fixture.config.proposer.base_url = known;
    fixture.server.set_models(models(MODEL));
    let (outcome, _) = run(&fixture.config, None);
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
}

#[test]
fn a_check_and_a_run_warn_about_a_model_that_ends() {
    capture_records();
    let fixture = fixture(writes_rules);
    let entry = json!({ "id": MODEL, "shutdown_date": "2020-01-31" });
    fixture.server.set_models(ModelReply::Document(json!({ "object": "list", "data": [entry] })));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(check::<GepaEngine>(&RunSpec::new(fixture.config.clone()), &[], &[]));
    assert!(report.ok, "{report:?}");
    let [warning] = &report.warnings[..] else { panic!("{report:?}") };
    assert_eq!((warning.code.as_str(), warning.field.as_deref()), ("model_shutdown", Some("proposer.model")));
    let parts = ["\"toy\" ended on 2020-01-31, which is past", "`shutdown_date`"];
    assert!(parts.iter().all(|part| warning.message.contains(part)), "{warning:?}");
    let (outcome, files) = run(&fixture.config, None);
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    assert!(
        captured_records().iter().any(|record| format!("{record:?}").contains("ended on 2020-01-31, which is past"))
    );
    let replay = events_replay(&files.path("events.jsonl")).unwrap();
    assert!(replay.contains(parts[0]), "{replay}");
}

/// A proposer whose turns must use another model than the cached answers.
#[derive(Debug, Default)]
struct OtherModel(ScriptedProposer);

impl Proposer for OtherModel {
    fn identity(&self) -> Value {
        self.0.identity()
    }

    fn adopt_model(&self, model: &str) -> bool {
        model == "other"
    }

    fn propose(&self, turn: TurnId, request: ProposalRequest) -> TurnFuture<'_> {
        let answer = self.0.propose(turn, request);
        Box::pin(async { Ok(ProposalAnswer { effective_model: "other".into(), ..answer.await? }) })
    }
}

#[test]
fn cached_answers_of_another_model_are_not_used() {
    let mut fixture = fixture(writes_rules);
    let (_, first) = run(&fixture.config, Some(Arc::new(ScriptedProposer::default())));
    for (run_id, replaced) in [("other", count(&first, "proposer.completed")), ("again", 0)] {
        fixture.config.run.run_id = Some(run_id.into());
        let (outcome, files) = run(&fixture.config, Some(Arc::new(OtherModel::default())));
        assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
        assert_eq!(count(&files, "cache.damaged"), replaced);
        let turns = files.events().unwrap().into_iter().filter_map(|event| match event {
            Event::ProposerCompleted(turn) => Some((turn.effective_model, turn.cached)),
            _ => None,
        });
        let is_cached = replaced == 0;
        assert!(turns.into_iter().all(|turn| turn == ("other".to_owned(), is_cached)), "{run_id}");
    }
}

#[test]
fn failures_of_an_earlier_run_do_not_affect_the_replay_of_a_later_one() {
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&broken);
    let mut fixture = fixture(move |request| {
        if is_broken.load(Ordering::SeqCst) {
            ModelReply::Status { code: 500, retry_after: None, message: "down".into() }
        } else {
            writes_rules(request)
        }
    });
    fixture.config.proposer.request_retries = 0;
    fixture.config.run.outage_patience_seconds = 0;
    let error = try_run(&fixture.config, None).unwrap_err();
    assert!(error.is_outage && error.message.contains("down"), "{error}");
    broken.store(false, Ordering::SeqCst);
    fixture.config.run.run_id = Some("endpoint-two".into());
    let (_, second) = run(&fixture.config, None);
    assert!(failed_turns(&second).is_empty());
    let request_count = fixture.server.requests().len();
    fixture.config.run.run_id = Some("endpoint-three".into());
    let (_, third) = run(&fixture.config, None);
    assert_eq!(fixture.server.requests().len(), request_count, "the endpoint was asked again");
    for name in COMPARED_FILES {
        assert_eq!(third.comparable(name).unwrap(), second.comparable(name).unwrap(), "{name}");
    }
}

#[test]
fn every_problem_is_reported_back_once_and_repaired() {
    let fixture = fixture(|request| {
        if request.text().contains("What was wrong with your last answer") {
            writes_rules(request)
        } else {
            chat(MODEL, "I would rather not say.")
        }
    });
    let (outcome, files) = run(&fixture.config, None);
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    assert!(finished(&files).heldout_gain.is_some_and(|gain| gain.difference > 0.0));
    let turns = started_turns(&files);
    let repairs: Vec<_> = turns.iter().filter(|turn| !turn.problems.is_empty()).collect();
    assert_eq!(repairs.len() * 2, turns.len(), "{turns:?}");
    assert!(repairs.iter().all(|turn| turn.problems[0].code == "manifest_unreadable"), "{repairs:?}");
    let shown = fixture.server.requests();
    assert!(shown[1].text().contains("manifest_unreadable"), "{}", shown[1].text());
}

#[test]
fn a_persistently_invalid_proposer_ends_the_run_and_keeps_all_results() {
    let mut fixture = fixture(|_| chat(MODEL, "{\"proposals\": [{\"proposed_payload\": {\"no_such_field\": \"x\"}}]}"));
    fixture.config.proposer.max_consecutive_invalid = 2;
    fixture.config.gepa.max_generations = Some(9);
    let (outcome, files) = run(&fixture.config, None);
    assert_eq!(outcome.end.as_str(), "failed");
    assert_eq!(outcome.end.error().unwrap().code, ErrorCode::Proposer);
    // Two turns, each with one repair.
    assert_eq!(started_turns(&files).len(), 4);
    assert_eq!(outcome.totals.counts.rollouts_finished, 6, "the seed was measured and stays so");
    assert!(files.read("result_manifest.json").unwrap().contains("failed"));
}

#[test]
fn another_model_ends_the_run_at_once_and_its_usage_is_recorded() {
    let fixture = fixture(|request| chat("a-cheaper-one", proposed(&request.text()).to_string()));
    let (outcome, files) = run(&fixture.config, None);
    assert_eq!(outcome.end.as_str(), "failed");
    let error = outcome.end.error().unwrap();
    assert!(error.code == ErrorCode::Proposer && error.message.contains("a-cheaper-one"), "{error:?}");
    assert_eq!(fixture.server.requests().len(), 1);
    let failures = failed_turns(&files);
    assert_eq!(failures[0].usage.total_tokens, Some(1100));
    assert_eq!(failures[0].models.as_ref().unwrap().effective.as_deref(), Some("a-cheaper-one"));
    // Later calls of the search were never sent.
    assert!(failures[1..].iter().all(|turn| turn.class == FailureClass::Withdrawn), "{failures:?}");
}

#[test]
fn no_secret_of_environment_container_or_model_is_in_any_file_or_log_record() {
    const KEY: &str = "sk-canary-Q7w9ZxK2mB4vN8cT1rY6";
    const MADE_UP: &str = "ghp_Zz9Yy8Xx7Ww6Vv5Uu4Tt3Ss2Rr1Qq0Pp9";
    let fixture = fixture(|request| {
        assert_eq!(request.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
        // The model repeats the key of the request and invents another one.
        match request.number % 3 {
            0 => ModelReply::Status { code: 500, retry_after: None, message: format!("bad key {KEY}") },
            1 => chat(MODEL, format!("My key is {KEY}, yours {MADE_UP}.")),
            _ => writes_rules(request),
        }
    });
    capture_records();
    let mut config = fixture.config.clone();
    config.proposer.api_key_env = Some("CANARY_KEY".into());
    let run_dir = config.run.output_dir.join("endpoint-one");
    let lookup = |name: &str| (name == "CANARY_KEY").then(|| KEY.to_owned());
    let proposer = OpenAiProposer::new(&config, &run_dir, &lookup).unwrap();
    let (outcome, files) = run(&config, Some(Arc::new(proposer)));
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    assert!(fixture.server.requests().len() > 2);
    let mut looked_at = 0;
    let mut directories = vec![fixture.place.path().to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in directory.read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let mut bytes = std::fs::read(&path).unwrap();
            if path.extension() == Some("zst") {
                bytes = zstd::decode_all(bytes.as_slice()).unwrap();
            }
            for secret in [KEY, MADE_UP] {
                assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()), "{secret} in {path}");
            }
            looked_at += 1;
        }
    }
    assert!(looked_at > 10, "{looked_at}");
    let records: Vec<String> = captured_records().iter().map(|record| format!("{record:?}")).collect();
    assert!(records.iter().any(|record| record.contains("the endpoint is called again")), "{records:?}");
    for record in records {
        assert!(!record.contains(KEY) && !record.contains(MADE_UP), "{record}");
    }
    // Replies are compressed in the workspace.
    let reader = Reader::open(files.path("workspace.sqlite").as_std_path()).unwrap();
    for turn in started_turns(&files) {
        let reply = String::from_utf8(reader.reply(turn.call_id).unwrap().unwrap_or_default()).unwrap();
        assert!(!reply.contains(KEY) && !reply.contains(MADE_UP), "{reply}");
    }
}

/// The first answer loses the text to keep, the repaired one loses a guarded row, and later ones learn from the evidence.
#[test]
fn a_run_obeys_instructions_texts_to_keep_and_guarded_rows() {
    const KEPT: &str = "Answer by the house rules:";
    let mut fixture = fixture(|request| {
        let text = request.text();
        let fields = |text: &str| chat(MODEL, manifest(json!({ FIELDS[0]: text, "unasked": "x" })).to_string());
        if text.contains("kept_text_lost") {
            return fields("Answer by the house rules: r1 r2 r3 r4 r5");
        }
        if text.contains("guarded_row_worse") { writes_rules(request) } else { fields("Obey r0 r1 r2 r3 r4 r5") }
    });
    fixture.config.proposer.instructions = Some("Prefer short sentences.".into());
    fixture.config.candidate.keep = vec![KeepSpan { text: KEPT.into(), field: None }];
    fixture.config.gepa.guard_ids = vec![json!("train:0")];
    fixture.config.gepa.max_candidate_tokens = Some(500);
    fixture.config.gepa.objective_keys = vec!["outcome_reward".into(), "candidate_tokens".into()];
    fixture.config.gepa.proposals_per_generation = 1;
    fixture.config.gepa.max_generations = Some(4);
    let (outcome, files) = run(&fixture.config, None);
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    assert!(finished(&files).heldout_gain.is_some_and(|gain| gain.difference > 0.0));
    let events = files.events().unwrap();
    let refused = events.iter().find_map(|event| match event {
        Event::ProposalRejected(rejected) => Some(rejected.problems[0].message.clone()),
        _ => None,
    });
    assert_eq!(refused, Some(format!("the text must keep {KEPT:?} word for word")));
    let guarded = events.iter().find_map(|event| match event {
        Event::CandidateRejected(decision) if decision.reason == "guarded_row_worse" => decision.detail.clone(),
        _ => None,
    });
    assert_eq!(guarded.as_deref(), Some("worse on guarded row train:0 (1 before, 0 now)"));
    let replay = events_replay(&files.path("events.jsonl")).unwrap();
    for line in
        ["without its change of unasked, which was not requested", "worse on guarded row train:0 (1 before, 0 now)"]
    {
        assert!(replay.contains(line), "{replay}");
    }
    for event in &events {
        match event {
            Event::CandidateRegistered(candidate) => assert!(candidate.payload[FIELDS[0]].contains(KEPT)),
            Event::RolloutFinished(rollout) => assert!(rollout.objectives.contains_key("candidate_tokens")),
            _ => {}
        }
    }
    let requests = fixture.server.requests();
    assert!(requests[1].text().contains("kept_text_lost in `instructions`: the text must keep"));
    for request in &requests {
        for shown in
            ["<file name=\"instructions.md\">", "Prefer short sentences.", "<file name=\"rules.md\">", "train:0", "500"]
        {
            assert!(request.text().contains(shown), "{shown}: {}", request.text());
        }
    }
    // The instructions are part of the run.
    fixture.config.proposer.instructions = Some("Prefer long sentences.".into());
    let error = try_run(&fixture.config, None).unwrap_err();
    assert_eq!(error.code, ErrorCode::Config);
    assert!(error.message.contains("proposer.instructions: \"Prefer short"), "{error}");
}

/// The first answer quotes a line that does not exist, a later one deletes a text to keep. Repaired answers add the missing rules.
#[test]
fn a_run_learns_from_edits_and_repairs_them() {
    const RULES: &str = "# The house rules";
    let initial = format!("Answer every question.\n\n{RULES}\n- r0 applies to all.\n\nBe brief.\nBe kind.\n");
    let mut fixture = fixture(|request| {
        let text = request.text();
        let edits = if text.contains("edit_not_found in") || text.contains("kept_text_lost in") {
            let words: BTreeSet<&str> =
                text.split("missing rule: ").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
            let rules: Vec<String> = words.iter().map(|word| format!("- {word} applies too.")).collect();
            json!([{ "operation": "insert_after", "find": RULES, "text": rules.join("\n").replace('.', " .") }])
        } else if request.number == 0 {
            json!([{ "operation": "insert_after", "find": "# The rules of the house", "text": "- r1" }])
        } else {
            json!([{ "operation": "replace", "find": RULES, "text": "# Rules" }])
        };
        let mut answer = manifest(json!({ FIELDS[0]: null }));
        answer["proposals"][0]["edits"] = json!({ FIELDS[0]: edits });
        chat(MODEL, answer.to_string())
    });
    fixture.config.seed_candidate.insert(FIELDS[0].into(), initial);
    fixture.config.candidate.keep = vec![KeepSpan { text: RULES.into(), field: None }];
    fixture.config.gepa.proposals_per_generation = 1;
    fixture.config.gepa.max_generations = Some(3);
    let (outcome, files) = run(&fixture.config, None);
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    assert!(finished(&files).heldout_gain.is_some_and(|gain| gain.difference > 0.0));

    let mut problems = Vec::new();
    let mut shares = Vec::new();
    for event in files.events().unwrap() {
        match event {
            Event::ProposalRejected(rejected) => {
                problems.extend(rejected.problems.into_iter().map(|problem| (problem.code, problem.message)));
            }
            Event::CandidateRegistered(candidate) if candidate.generation.is_some() => {
                assert!(candidate.payload[FIELDS[0]].contains(&format!("{RULES}\n- r")), "{candidate:?}");
                shares.push(candidate.kept_share);
            }
            _ => {}
        }
    }
    let missed = "edit 1 (insert_after): \"# The rules of the house\" occurs 0 times in the text; the nearest line is \"# The house rules\"";
    assert_eq!(problems[0], ("edit_not_found".into(), missed.into()));
    assert_eq!(problems[1].0, "kept_text_lost");
    assert!(!shares.is_empty() && shares.iter().all(|share| *share == Some(1.0)), "{shares:?}");
    let requests = fixture.server.requests();
    let schema =
        "/response_format/json_schema/schema/properties/proposals/items/properties/edits/properties/instructions";
    assert!(requests.iter().all(|request| request.body.pointer(schema).is_some()));
    assert!(requests.iter().all(|request| request.text().contains("Change `instructions` with `edits`")));
    assert!(
        requests[1].text().contains(&format!("- edit_not_found in `instructions`: {missed}")),
        "{}",
        requests[1].text()
    );
    assert!(requests[1].text().contains("\"find\": \"# The rules of the house\""), "the refused edits are shown");
    let replay = events_replay(&files.path("events.jsonl")).unwrap();
    assert!(replay.contains("keeps 100 % of its lines"), "{replay}");

    // The cached answers have the edits.
    let mut cached = fixture.config.clone();
    cached.run.run_id = Some("endpoint-two".into());
    cached.cache.mode = CacheMode::Readonly;
    let (outcome, again) = run(&cached, None);
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    assert_eq!(fixture.server.requests().len(), requests.len());
    assert_eq!(again.read("events.normalized.jsonl").unwrap(), files.read("events.normalized.jsonl").unwrap());
}

//! A complete run with codex as the proposer, the same run from the cache, and a resumed run whose codex has another model.

use std::sync::Arc;

use synth_e2e::model_server::{ModelReply, write_rules};
use synth_e2e::stub::FIELDS;
use synth_e2e::{ModelServer, RowNames, RunFiles, small_config};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::ProposerReady;
use synth_optimizer_platform::proposer::CodexProposer;
use synth_optimizer_platform::runtime::{RunControl, RunOutcome, RunSpec, execute};

use super::fixture::codex;
use super::hostile::fake_codex;
use crate::harness::{TestDir, assert_consistent, finished, stub};

fn try_run(config: &Config) -> Result<RunOutcome, OptimizerError> {
    let run_dir = config.run.output_dir.join(config.run.run_id.as_ref().unwrap());
    let lookup = Arc::new(|name: &str| std::env::var(name).ok().filter(|_| name == "PATH"));
    let proposer = Arc::new(CodexProposer::new(config, &run_dir, lookup, None).unwrap());
    let (_control, receiver) = RunControl::new(100_000);
    let request = RunSpec { proposer: Some(proposer), ..RunSpec::new(config.clone()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(execute::<GepaEngine>(request, receiver));
    assert!(!run_dir.join(".codex_home").exists());
    outcome
}

fn run(config: &Config) -> RunFiles {
    let outcome = try_run(config).unwrap();
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    let files = RunFiles::new(&config.run.output_dir, config.run.run_id.as_ref().unwrap());
    assert_consistent(&files);
    files
}

fn ready(files: &RunFiles) -> ProposerReady {
    let ready = |event| match event {
        Event::ProposerReady(ready) => Some(ready),
        _ => None,
    };
    files.events().unwrap().into_iter().find_map(ready).unwrap()
}

#[test]
fn a_resumed_run_stops_if_codex_chooses_another_model() {
    let (temp_dir, stub) = (TestDir::new(), stub(&["--train", "6", "--heldout", "3"]));
    let down = |_: &_| ModelReply::Status { code: 503, retry_after: None, message: "down".into() };
    let server = ModelServer::start(down).unwrap();
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.run.output_dir = temp_dir.path().join("runs");
    config.run.run_id = Some("codex-default".into());
    config.run.outage_patience_seconds = 0;
    config.proposer.command = vec![codex()];
    config.proposer.base_url = Some(server.base_url());
    config.proposer.request_retries = 0;
    assert!(try_run(&config).unwrap_err().is_outage);
    let files = RunFiles::new(&config.run.output_dir, "codex-default");
    let first = ready(&files).model;
    let calls = server.requests().len();
    assert!(calls > 0 && server.requests().iter().all(|request| request.body["model"] == first));
    // Another codex chooses another model.
    config.proposer.command = fake_codex(temp_dir.path(), "");
    let error = try_run(&config).unwrap_err();
    assert_eq!(error.code, ErrorCode::Proposer, "{error}");
    assert!(error.message.contains(&format!("model is \"default-model\", not {first:?}")), "{error}");
    assert_eq!(server.requests().len(), calls, "a turn was sent");
    // The first codex can still finish the run.
    let server = ModelServer::start(write_rules).unwrap();
    config.proposer.command = vec![codex()];
    config.proposer.base_url = Some(server.base_url());
    let files = run(&config);
    let turns = files.events().unwrap().into_iter().filter_map(|event| match event {
        Event::ProposerCompleted(turn) => Some((turn.requested_model, turn.effective_model)),
        _ => None,
    });
    let turns: Vec<_> = turns.collect();
    assert!(!turns.is_empty() && turns.iter().all(|turn| *turn == (first.clone(), first.clone())), "{turns:?}");
}

#[test]
fn a_codex_run_improves_and_its_repetition_is_answered_from_the_cache() {
    let (temp_dir, server) = (TestDir::new(), ModelServer::start(write_rules).unwrap());
    let stub = stub(&["--train", "6", "--heldout", "3"]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.run.output_dir = temp_dir.path().join("first");
    config.run.run_id = Some("codex-one".into());
    config.cache.path = Some(temp_dir.path().join("cache.sqlite"));
    config.cache.namespace = Some("shared".into());
    config.cache.mode = CacheMode::Readwrite;
    config.proposer.command = vec![codex()];
    config.proposer.base_url = Some(server.base_url());
    config.proposer.model = Some("stub-model".into());
    let files = run(&config);
    let paid = server.requests().len();
    assert!(paid >= 3, "{paid}");
    assert!(finished(&files).heldout_gain.is_some_and(|gain| gain.difference > 0.0), "{:?}", finished(&files));
    assert_eq!(ready(&files).source, "proposer.command");
    config.run.output_dir = temp_dir.path().join("second");
    config.run.run_id = Some("codex-two".into());
    let again = run(&config);
    assert_eq!(server.requests().len(), paid, "a model was asked again");
    assert_eq!(finished(&again).best_candidate_id, finished(&files).best_candidate_id);
    for name in ["best_candidate.json", "frontier.json", "candidate_registry.json"] {
        assert_eq!(again.comparable(name).unwrap(), files.comparable(name).unwrap(), "{name}");
    }
}

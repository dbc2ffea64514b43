//! A complete run with codex as the proposer, and the same run from the cache.

use std::sync::Arc;

use synth_e2e::model_server::write_rules;
use synth_e2e::stub::FIELDS;
use synth_e2e::{ModelServer, RowNames, RunFiles, small_config};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_platform::proposer::CodexProposer;
use synth_optimizer_platform::runtime::{RunControl, RunSpec, execute};

use super::fixture::codex;
use crate::harness::{TestDir, assert_consistent, finished, stub};

fn run(config: &Config) -> RunFiles {
    let run_id = config.run.run_id.clone().unwrap();
    let run_dir = config.run.output_dir.join(&run_id);
    let lookup = Arc::new(|name: &str| std::env::var(name).ok().filter(|_| name == "PATH"));
    let proposer = Arc::new(CodexProposer::new(config, &run_dir, lookup, None).unwrap());
    let (_control, receiver) = RunControl::new(100_000);
    let request = RunSpec { proposer: Some(proposer), ..RunSpec::new(config.clone()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(execute::<GepaEngine>(request, receiver)).unwrap();
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    let files = RunFiles::new(&config.run.output_dir, &run_id);
    assert_consistent(&files);
    assert!(!run_dir.join(".codex_home").exists());
    files
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
    let ready = files.events().unwrap().into_iter().find_map(|event| match event {
        Event::ProposerReady(ready) => Some(ready),
        _ => None,
    });
    assert_eq!(ready.unwrap().source, "proposer.command");
    config.run.output_dir = temp_dir.path().join("second");
    config.run.run_id = Some("codex-two".into());
    let again = run(&config);
    assert_eq!(server.requests().len(), paid, "a model was asked again");
    assert_eq!(finished(&again).best_candidate_id, finished(&files).best_candidate_id);
    for name in ["best_candidate.json", "frontier.json", "candidate_registry.json"] {
        assert_eq!(again.comparable(name).unwrap(), files.comparable(name).unwrap(), "{name}");
    }
}

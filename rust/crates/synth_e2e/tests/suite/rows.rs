//! Rows that the configuration leaves to the container: a run uses all of them, records which, and keeps them when it resumes.

use std::collections::BTreeSet;

use crate::harness::run_thread::{execute_to_end, run_with_control};
use crate::harness::{TestDir, assert_consistent, stub};
use synth_e2e::stub::FIELDS;
use synth_e2e::{RowNames, ScriptedProposer, ServerProcess, small_config};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::DatasetSection;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::ids::RowId;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::workspace::Reader;

const RUN: &str = "steered";

fn container(test_dir: &TestDir, train: &str, heldout: &str) -> ServerProcess {
    let bill = test_dir.path().join("bill");
    stub(&["--train", train, "--heldout", heldout, "--rules", "8", "--bill", bill.as_str()])
}

/// Returns a configuration that names neither rows nor a policy.
fn config_without_rows(test_dir: &TestDir, url: &str) -> Config {
    let mut config = small_config(url, RowNames::Seeds, 1, 1, &FIELDS[..1]);
    (config.dataset, config.policy, config.gepa.minibatch_size) = (None, None, None);
    config.run.output_dir = test_dir.path().join("runs");
    config.run.run_id = Some(RUN.into());
    config
}

/// Returns the configuration that the run stored.
fn stored_config(config: &Config) -> Config {
    let paths = RunPaths::new(&config.run.output_dir, RUN).unwrap();
    let stored = Reader::open(paths.workspace_db().as_std_path()).unwrap().run_row().unwrap().config;
    serde_json::from_value(stored).unwrap()
}

#[test]
fn a_run_keeps_the_rows_that_the_container_had_when_it_started() {
    let test_dir = TestDir::new();
    let first = container(&test_dir, "12", "6");
    let mut config = config_without_rows(&test_dir, &first.url());
    config.run.interrupt_grace_seconds = 0;
    let wanted: fn(&Event) -> bool = |event| matches!(event, Event::ProposerCompleted(_));
    let away = ControlRequest::interrupt("away");
    let outcome = run_with_control(&test_dir, config.clone(), ScriptedProposer::default(), wanted, away).unwrap();
    assert_eq!(outcome.end.as_str(), "interrupted");
    let stored = stored_config(&config);
    let rows = stored.dataset.as_ref().unwrap();
    assert_eq!((rows.train_seeds.known().len(), rows.heldout_seeds.known().len()), (12, 6));
    assert!(stored.gepa.minibatch_size.is_some(), "a derived size is stored with the run");
    // The dataset has grown.
    let grown = container(&test_dir, "20", "9");
    config.container.url = grown.url();
    assert_eq!(execute_to_end(config.clone()).unwrap().end.as_str(), "completed");
    assert_consistent(&test_dir.files(RUN));
    let events = test_dir.files(RUN).events().unwrap();
    let rows = events.iter().filter_map(|event| match event {
        Event::RolloutsRequested(rollouts) => Some(&rollouts.row_ids),
        _ => None,
    });
    let rows: BTreeSet<&str> = rows.flatten().map(RowId::as_str).collect();
    assert_eq!(rows.len(), 18, "only rows of the start: {rows:?}");
    assert_eq!(stored_config(&config).dataset, stored.dataset);
}

#[test]
fn a_resumed_run_whose_rows_are_gone_says_so() {
    let test_dir = TestDir::new();
    let first = container(&test_dir, "12", "6");
    let mut config = config_without_rows(&test_dir, &first.url());
    config.run.interrupt_grace_seconds = 0;
    let wanted: fn(&Event) -> bool = |event| matches!(event, Event::ProposerCompleted(_));
    let away = ControlRequest::interrupt("away");
    let outcome = run_with_control(&test_dir, config.clone(), ScriptedProposer::default(), wanted, away).unwrap();
    assert_eq!(outcome.end.as_str(), "interrupted");
    // The last train rows, then the last held-out rows are gone.
    for (train, heldout) in [("9", "6"), ("12", "4")] {
        let changed = container(&test_dir, train, heldout);
        config.container.url = changed.url();
        let error = execute_to_end(config.clone()).unwrap_err();
        assert_eq!(error.code, ErrorCode::Container);
        assert_eq!(error.message, "the container's rows changed since the run started", "{:?}", error.detail);
        assert!(error.hint.contains("Restore the rows") && error.hint.contains("run.run_id"), "{}", error.hint);
        assert!(error.detail.is_some(), "what the container answered");
    }
    // An unreachable container is not a changed one.
    drop(first);
    config.container.url = "http://127.0.0.1:1".into();
    config.container.connect_retries = 0;
    assert!(!execute_to_end(config.clone()).unwrap_err().message.contains("changed"));
    let restored = container(&test_dir, "12", "6");
    config.container.url = restored.url();
    assert_eq!(execute_to_end(config).unwrap().end.as_str(), "completed");
}

#[test]
fn a_container_without_the_split_is_an_error_that_names_its_splits() {
    let test_dir = TestDir::new();
    let stub = container(&test_dir, "12", "6");
    let mut config = config_without_rows(&test_dir, &stub.url());
    config.dataset = Some(DatasetSection { heldout_split: "validation".to_owned(), ..DatasetSection::default() });
    let error = execute_to_end(config).unwrap_err();
    assert_eq!(error.code, ErrorCode::Container);
    assert!(error.message.contains("`dataset.heldout_seeds` selects all rows of split \"validation\""), "{error}");
    assert!(error.message.contains("the container has \"test\", \"train\""), "{error}");
}

#[test]
fn rows_are_set_aside_if_the_container_has_train_rows_only() {
    let test_dir = TestDir::new();
    let stub = container(&test_dir, "12", "0");
    let config = config_without_rows(&test_dir, &stub.url());
    assert_eq!(execute_to_end(config.clone()).unwrap().end.as_str(), "completed");
    let rows = stored_config(&config).dataset.unwrap();
    assert_eq!((rows.train_seeds.known().len(), rows.heldout_seeds.known().len()), (6, 6));
    assert_eq!(rows.heldout_split, "train");
    // The same command finds the same rows.
    assert_eq!(execute_to_end(config).unwrap().end.as_str(), "completed");
}

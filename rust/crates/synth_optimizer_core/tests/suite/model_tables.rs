//! Tests of the lifecycles and the error table against a second copy of their rows.
use std::collections::{BTreeMap, BTreeSet};

use synth_optimizer_core::model::error::{ERRORS, ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::{
    CandidateStatus, CandidateTrigger, Lifecycle, RequestState, RequestTrigger, RunState, RunTrigger,
};

const RUN: &[&str] = &[
    "created run_started initializing",
    "initializing container_ready ready",
    "ready proposer_started proposing",
    "ready rollouts_queued rollout_queueing",
    "ready run_completed completed",
    "proposing proposer_finished ready",
    "proposing rollouts_queued rollout_queueing",
    "rollout_queueing rollouts_started rollout_running",
    "rollout_running rollouts_finished evaluating",
    "evaluating evaluation_finished ready",
    "ready pause_requested paused",
    "proposing pause_requested paused",
    "rollout_running pause_requested paused",
    "paused resume_requested ready",
    "created failure_raised failed",
    "initializing failure_raised failed",
    "ready failure_raised failed",
    "proposing failure_raised failed",
    "rollout_queueing failure_raised failed",
    "rollout_running failure_raised failed",
    "evaluating failure_raised failed",
    "paused failure_raised failed",
    "created cancel_requested cancelled",
    "initializing cancel_requested cancelled",
    "ready cancel_requested cancelled",
    "proposing cancel_requested cancelled",
    "rollout_queueing cancel_requested cancelled",
    "rollout_running cancel_requested cancelled",
    "evaluating cancel_requested cancelled",
    "paused cancel_requested cancelled",
];

const REQUEST: &[&str] = &[
    "queued claim leased",
    "leased start running",
    "running complete completed",
    "leased fail failed",
    "running fail failed",
    "queued cancel cancelled",
    "leased cancel cancelled",
    "running cancel cancelled",
    "paused cancel cancelled",
    "queued pause paused",
    "leased pause paused",
    "running pause paused",
    "paused resume queued",
    "leased lease_expired queued",
    "running lease_expired queued",
    "leased release queued",
    "running release queued",
    "paused pause_expired cancelled",
];

const CANDIDATE: &[&str] = &[
    "registered minibatch_done minibatch_evaluated",
    "registered full_train_done full_train_evaluated",
    "registered budget_refused deferred_budget",
    "registered run_stopped deferred_stop",
    "registered supersede superseded",
    "minibatch_evaluated minibatch_lost rejected_minibatch",
    "minibatch_evaluated full_train_done full_train_evaluated",
    "minibatch_evaluated budget_refused deferred_budget",
    "minibatch_evaluated too_many_failures deferred_failures",
    "minibatch_evaluated run_stopped deferred_stop",
    "minibatch_evaluated supersede superseded",
    "full_train_evaluated accept accepted",
    "full_train_evaluated full_train_lost rejected_full_train",
    "full_train_evaluated budget_refused deferred_budget",
    "full_train_evaluated too_many_failures deferred_failures",
    "full_train_evaluated run_stopped deferred_stop",
];

/// Compares a lifecycle with the rows of this file, for every state and every trigger.
fn check<S: Lifecycle>(states: &[&str], triggers: &[S::Trigger], rows: &[&str], terminal: &[&str]) {
    // The list of states is complete and has no duplicates.
    let listed: Vec<String> = S::STATES.iter().map(S::to_string).collect();
    assert_eq!(listed, states);

    let mut expected: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for row in rows {
        let [from, trigger, to] = row.split(' ').collect::<Vec<_>>()[..] else { panic!("{row:?} has three words") };
        assert_eq!(expected.insert((from, trigger), to), None, "{row} is written twice");
    }
    assert_eq!(S::TABLE.len(), expected.len(), "the table has a row twice, or one that is not written here");

    let mut seen = 0;
    for state in S::STATES {
        for trigger in triggers {
            let (from, by) = (&*state.to_string(), &*trigger.to_string());
            match (state.next(*trigger), expected.get(&(from, by))) {
                (Ok(to), Some(wanted)) => {
                    assert_eq!(to.to_string(), *wanted, "{from} + {by}");
                    seen += 1;
                }
                (Err(error), None) => {
                    assert_eq!(error.code.as_str(), "synth_optimizer_state_transition_error");
                    assert!(error.message.contains(from) && error.message.contains(by), "{}", error.message);
                    assert!(error.to_string().starts_with("synth_optimizer_state_transition_error: "));
                }
                (found, wanted) => panic!("{from} + {by} gives {found:?}, expected {wanted:?}"),
            }
        }
    }
    assert_eq!(seen, rows.len(), "a row names a state or trigger that does not exist");

    let ends: Vec<String> = S::STATES.iter().filter(|state| state.is_final()).map(S::to_string).collect();
    assert_eq!(ends, terminal);

    // Every state is reachable, and a final state is reachable from every state.
    let mut reached = BTreeSet::from([S::INITIAL.to_string()]);
    let mut ending: BTreeSet<String> = terminal.iter().map(ToString::to_string).collect();
    for _ in S::STATES {
        for row in S::TABLE {
            if reached.contains(&row.from.to_string()) {
                reached.insert(row.to.to_string());
            }
            if ending.contains(&row.to.to_string()) {
                ending.insert(row.from.to_string());
            }
        }
    }
    assert_eq!(reached.len(), S::STATES.len(), "only {reached:?} can be reached");
    assert_eq!(ending.len(), S::STATES.len(), "only {ending:?} can end");

    // The diagram contains exactly the table.
    let mut lines = vec!["stateDiagram-v2".to_owned(), format!("    [*] --> {}", S::INITIAL)];
    lines.extend(expected.iter().map(|((from, by), to)| format!("    {from} --> {to}: {by}")));
    lines.extend(terminal.iter().map(|state| format!("    {state} --> [*]")));
    let diagram = S::diagram();
    assert!(diagram.starts_with("stateDiagram-v2\n    [*] --> "));
    assert_eq!(diagram.lines().collect::<BTreeSet<_>>(), lines.iter().map(String::as_str).collect());
    assert_eq!(diagram.lines().count(), lines.len());
}

fn all<T>(words: &[&str], read: fn(&str) -> Option<T>) -> Vec<T> {
    words.iter().map(|word| read(word).unwrap()).collect()
}

#[test]
fn a_run_moves_along_its_table_only() {
    let triggers = all(RunTrigger::NAMES, RunTrigger::parse);
    check::<RunState>(RunState::NAMES, &triggers, RUN, &["completed", "failed", "cancelled"]);
    assert_eq!(RunState::INITIAL, RunState::Created);
}

#[test]
fn a_request_moves_along_its_table_only() {
    let triggers = all(RequestTrigger::NAMES, RequestTrigger::parse);
    check::<RequestState>(RequestState::NAMES, &triggers, REQUEST, &["completed", "failed", "cancelled"]);
    assert_eq!(RequestState::INITIAL, RequestState::Queued);
}

#[test]
fn a_candidate_moves_along_its_table_only() {
    let triggers = all(CandidateTrigger::NAMES, CandidateTrigger::parse);
    let terminal = [
        "rejected_minibatch",
        "accepted",
        "rejected_full_train",
        "deferred_budget",
        "deferred_failures",
        "deferred_stop",
        "superseded",
    ];
    check::<CandidateStatus>(CandidateStatus::NAMES, &triggers, CANDIDATE, &terminal);
    assert_eq!(CandidateStatus::INITIAL, CandidateStatus::Registered);
}

#[test]
fn a_run_fails_and_is_cancelled_in_one_way_each() {
    for row in RunState::TABLE {
        assert_eq!(row.to == RunState::Failed, row.trigger == RunTrigger::FailureRaised, "{row:?}");
        assert_eq!(row.to == RunState::Cancelled, row.trigger == RunTrigger::CancelRequested, "{row:?}");
    }
    for state in RunState::STATES.iter().filter(|state| !state.is_final()) {
        assert_eq!(state.next(RunTrigger::FailureRaised).unwrap(), RunState::Failed);
        assert_eq!(state.next(RunTrigger::CancelRequested).unwrap(), RunState::Cancelled);
    }
}

#[test]
fn the_usual_ways_through_a_run() {
    let walk = |triggers: &[RunTrigger]| {
        triggers.iter().fold(RunState::INITIAL, |state, trigger| state.next(*trigger).unwrap())
    };
    use RunTrigger as T;
    let seed = [T::RunStarted, T::ContainerReady, T::RolloutsQueued, T::RolloutsStarted, T::RolloutsFinished];
    let generation =
        [T::EvaluationFinished, T::ProposerStarted, T::RolloutsQueued, T::RolloutsStarted, T::RolloutsFinished];
    let end = [T::EvaluationFinished, T::RunCompleted];
    assert_eq!(walk(&[&seed[..], &end].concat()), RunState::Completed);
    assert_eq!(walk(&[&seed[..], &generation, &generation, &end].concat()), RunState::Completed);
}

#[test]
fn published_names_are_spelled_as_published() {
    let states = [
        "created",
        "initializing",
        "ready",
        "proposing",
        "trial_queueing",
        "rollout_queueing",
        "rollout_running",
        "annotating",
        "verifying",
        "evaluating",
        "waiting_human_input",
        "paused",
        "checkpointing",
        "restoring",
        "completed",
        "failed",
        "cancelled",
    ];
    let triggers = [
        "run_started",
        "container_ready",
        "proposer_started",
        "proposer_finished",
        "rollouts_queued",
        "rollouts_started",
        "rollouts_finished",
        "evaluation_finished",
        "pause_requested",
        "resume_requested",
        "cancel_requested",
        "failure_raised",
        "run_completed",
    ];
    for word in RunState::NAMES {
        assert!(states.contains(word), "{word} is not a published state");
    }
    assert_eq!(RunTrigger::NAMES, triggers);
    assert_eq!(RequestState::NAMES, ["queued", "leased", "running", "paused", "completed", "failed", "cancelled"]);
}

/// Code, class, exit code and HTTP status of every error.
const PUBLISHED: &[(&str, &str, u8, u16)] = &[
    ("synth_optimizer_error", "SynthOptimizerError", 1, 500),
    ("synth_optimizer_config_error", "ConfigError", 2, 422),
    ("synth_optimizer_container_error", "ContainerContractError", 3, 502),
    ("synth_optimizer_proposer_error", "ProposerError", 3, 502),
    ("synth_optimizer_cache_miss", "CacheMissError", 4, 409),
    ("synth_optimizer_cache_full", "CacheFullError", 1, 507),
    ("synth_optimizer_cache_corrupt", "CacheCorruptError", 1, 500),
    ("synth_optimizer_budget_exceeded", "BudgetExceededError", 5, 409),
    ("synth_optimizer_cancelled", "CancelledError", 130, 409),
    ("synth_optimizer_event_compare_failed", "EventCompareError", 1, 409),
    ("synth_optimizer_failed", "RunFailedError", 1, 500),
    ("synth_optimizer_invariant_error", "InvariantError", 1, 500),
    ("synth_optimizer_state_transition_error", "StateTransitionError", 1, 409),
    ("synth_optimizer_io_error", "OptimizerIoError", 1, 500),
    ("synth_optimizer_disk_budget_exceeded", "OptimizerDiskBudgetError", 1, 507),
    ("synth_optimizer_storage_full", "StorageFullError", 1, 507),
    ("synth_optimizer_json_error", "OptimizerJsonError", 1, 400),
    ("synth_optimizer_toml_decode_error", "OptimizerTomlDecodeError", 2, 400),
    ("synth_optimizer_http_error", "OptimizerHttpError", 3, 502),
    ("synth_optimizer_sqlite_error", "OptimizerSqliteError", 1, 500),
];

#[test]
fn the_error_table_is_the_published_one() {
    let table: Vec<_> = ERRORS.iter().map(|row| (row.name, row.class, row.exit, row.http)).collect();
    assert_eq!(table, PUBLISHED);
    let unique = |values: Vec<&str>| values.iter().collect::<BTreeSet<_>>().len();
    assert_eq!(unique(ERRORS.iter().map(|row| row.name).collect()), ERRORS.len());
    assert_eq!(unique(ERRORS.iter().map(|row| row.class).collect()), ERRORS.len());
    assert_eq!(ERRORS.iter().map(|row| row.code).collect::<BTreeSet<_>>().len(), ERRORS.len());
}

#[test]
fn exit_codes_are_those_of_the_help_text() {
    let with = |exit: u8| ERRORS.iter().filter(|row| row.exit == exit).map(|row| row.class).collect::<Vec<_>>();
    assert_eq!(with(0), [""; 0]);
    assert_eq!(with(2), ["ConfigError", "OptimizerTomlDecodeError"]);
    assert_eq!(with(3), ["ContainerContractError", "ProposerError", "OptimizerHttpError"]);
    assert_eq!(with(4), ["CacheMissError"]);
    assert_eq!(with(5), ["BudgetExceededError"]);
    assert_eq!(with(130), ["CancelledError"]);
    assert!(ERRORS.iter().all(|row| (400..600).contains(&row.http)));
}

#[test]
fn every_error_has_a_hint_and_can_be_parsed_from_its_code() {
    for row in ERRORS {
        assert!(row.hint.ends_with('.') && row.hint.len() > 20, "{}: {:?}", row.name, row.hint);
        assert!(row.hint.starts_with(char::is_uppercase), "{}: {:?}", row.name, row.hint);
        assert_eq!(row.code.row(), row);
        assert_eq!(row.code.as_str(), row.name);
        assert_eq!(ErrorCode::parse(row.name), Some(row.code));
        let line = serde_json::to_string(&row.code).unwrap();
        assert_eq!(line, format!("{:?}", row.name));
        assert_eq!(serde_json::from_str::<ErrorCode>(&line).unwrap(), row.code);
    }
    assert_eq!(ErrorCode::parse("synth_optimizer_unheard_of"), None);
    assert_eq!(ErrorCode::parse(""), None);
    let refused = serde_json::from_str::<ErrorCode>("\"nonsense\"").unwrap_err().to_string();
    assert!(refused.contains("nonsense"), "{refused}");
}

#[test]
fn errors_show_the_code_first_and_accept_a_specific_hint() {
    let plain = OptimizerError::new(ErrorCode::Io, "cannot read rows.json");
    assert_eq!(plain.to_string(), "synth_optimizer_io_error: cannot read rows.json");
    assert_eq!(plain.hint, ErrorCode::Io.row().hint);
    assert_eq!((plain.detail.as_deref(), plain.findings.len()), (None, 0));
    let full = plain.clone().with_hint("Make the file readable.").with_detail("permission denied");
    assert_eq!(full.hint, "Make the file readable.");
    assert_eq!(full.detail.as_deref(), Some("permission denied"));
    assert_eq!(full.to_string(), plain.to_string());
}

#[test]
fn a_cause_does_not_change_the_message() {
    use std::error::Error as _;
    let cause = std::io::Error::other("the disk is gone");
    let error = OptimizerError::from_cause(ErrorCode::Io, "cannot read run.json", cause);
    assert_eq!(error.message, "cannot read run.json: the disk is gone");
    assert_eq!(error.source().unwrap().to_string(), "the disk is gone");
    assert!(error.clone().with_hint("other").source().is_some());
    assert_eq!(error, OptimizerError::new(ErrorCode::Io, "cannot read run.json: the disk is gone"));
    assert_ne!(error, OptimizerError::new(ErrorCode::Io, "cannot read run.json"));
}

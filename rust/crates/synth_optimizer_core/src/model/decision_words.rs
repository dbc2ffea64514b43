//! Says in words why a candidate was promoted, accepted, rejected, deferred or superseded.

use super::event::{Event, counted};
use super::event_fields::{CandidateDecided, CandidateSuperseded, Stage};
use super::lifecycle::CandidateTrigger;
use super::score::Comparison;

/// Returns a decision about a candidate as a sentence, or `None` if the event is no such decision.
pub fn decision_in_words(event: &Event) -> Option<String> {
    match event {
        Event::CandidatePromoted(made) => Some(decided("passed", made)),
        Event::CandidateAccepted(made) => Some(decided("accepted after", made)),
        Event::CandidateRejected(made) => Some(decided("rejected after", made)),
        Event::CandidateDeferred(made) => Some(format!("not decided: {}", deferred(made.reason))),
        Event::CandidateSuperseded(made) => Some(superseded(made)),
        _ => None,
    }
}

fn decided(verb: &str, made: &CandidateDecided) -> String {
    let (evaluation, other) = compared(made.stage);
    let why = match made.reason.as_str() {
        "seed" => return "the initial candidate".to_owned(),
        "primary_improved" => "better",
        "primary_not_worse" => "not worse",
        "primary_not_improved" | "not_better" => "not better",
        "primary_worse" | "glance_lost" => "worse",
        "objective_improved" => "an objective improved",
        "no_objective_improved" => "no objective improved",
        "protected_objective_lost" => "a protected objective lost too much",
        "check_adopted" => "the check adopted it",
        "check_rolled_back" => "the check rolled it back",
        "guarded_row_worse" => "a guarded row got worse",
        "guarded_row_missing" => "a guarded row has no score",
        // A reason of another version.
        code => &code.replace('_', " "),
    };
    let by = made.comparison.as_ref().map_or(String::new(), |found| format!(", {}", difference(found, other)));
    let detail = made.detail.as_ref().map_or(String::new(), |detail| format!("; {detail}"));
    format!("{verb} {evaluation}: {why}{by}{detail}")
}

/// Returns the evaluation of a stage, and the candidate that it compares with.
const fn compared(stage: Stage) -> (&'static str, &'static str) {
    match stage {
        Stage::ParentMinibatchReference | Stage::CandidateMinibatch => ("its screening", "its parent"),
        Stage::Glance => ("a glance at other rows", "its parent"),
        Stage::Check => ("a check", "the best candidate"),
        Stage::SeedFullTrain | Stage::CandidateFullTrain => ("its full evaluation", "the best candidate"),
        Stage::Repeat => ("repeated rollouts", "itself"),
        Stage::Heldout => ("the held-out evaluation", "the initial candidate"),
    }
}

fn difference(found: &Comparison, other: &str) -> String {
    format!("{:+.4} against {other} on {}", found.primary_delta, counted(found.rows as usize, "row"))
}

const fn deferred(reason: CandidateTrigger) -> &'static str {
    match reason {
        CandidateTrigger::BudgetRefused => "a limit refused the rollouts that it needs",
        CandidateTrigger::TooManyFailures => "too many of its rollouts failed",
        CandidateTrigger::RunStopped => "the search ended before",
        CandidateTrigger::MinibatchDone
        | CandidateTrigger::MinibatchLost
        | CandidateTrigger::FullTrainDone
        | CandidateTrigger::Accept
        | CandidateTrigger::FullTrainLost
        | CandidateTrigger::Supersede => reason.as_str(),
    }
}

fn superseded(made: &CandidateSuperseded) -> String {
    match &made.by {
        Some(by) => format!("superseded by {by}: {}", made.reason),
        None => format!("superseded: {}", made.reason),
    }
}

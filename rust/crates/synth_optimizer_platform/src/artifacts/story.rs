//! A run told to a person: which events are worth a line, and its words.

use std::collections::BTreeMap;

use super::evaluations::Evaluations;
use super::story_words::{bill, counted, ending, gain, happened, quoted, score};
use crate::model::event::Event;
use crate::model::event_fields::{
    CandidateDecided, CandidateRegistered, EvaluationCompleted, GenerationStarted, Operation, ProposerCompleted,
    RunFinished, StoppedBy,
};
use crate::model::ids::{CandidateId, RequestId};
use crate::model::message::message;

/// Follows the events of a run.
#[derive(Debug, Default)]
pub(super) struct Story {
    generation_of: BTreeMap<CandidateId, u32>,
    evaluations: Evaluations,
    /// When each turn of the proposer began.
    turns: BTreeMap<RequestId, u64>,
    over: bool,
}

/// One line, and the generation that it belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) generation: Option<u32>,
    pub(super) text: String,
}

impl Story {
    /// The lines of an event; none for what is summed up later or only tells how the machinery moves.
    pub(super) fn tell(&mut self, event: &Event, millis: u64) -> Vec<Told> {
        match event {
            Event::StateTransitioned(_) | Event::ClockObserved(_) => Vec::new(),
            Event::RolloutsRequested(batch) => {
                self.evaluations.requested(batch);
                Vec::new()
            }
            Event::RolloutFinished(rollout) => {
                self.evaluations.finished(rollout);
                Vec::new()
            }
            Event::RolloutFailed(rollout) => {
                self.evaluations.failed(rollout);
                Vec::new()
            }
            Event::ProposerStarted(turn) => {
                self.turns.insert(turn.request, millis);
                if turn.problems.is_empty() { Vec::new() } else { at(turn.generation, message(event)) }
            }
            Event::FrontierUpdated(update) if !update.joined && update.left.is_empty() => Vec::new(),

            Event::RunStarted(run) => alone(format!(
                "{} with seed {} against {}, config {}",
                run.algorithm,
                run.seed,
                run.container_url,
                run.config_digest.get(..12).unwrap_or(&run.config_digest)
            )),
            Event::CandidateRegistered(candidate) => self.registered(candidate),
            Event::GenerationStarted(generation) => alone(started(generation)),
            Event::ProposerCompleted(turn) => {
                let began = self.turns.remove(&turn.request);
                at(turn.generation, proposed(turn, began.map(|began| millis.saturating_sub(began))))
            }
            Event::ProposerFailed(turn) => {
                self.turns.remove(&turn.request);
                at(turn.generation, format!("{}: {}", message(event), quoted(&turn.message)))
            }
            Event::SeedEvaluated(done) => self.evaluated("seed", done),
            Event::ReferenceCompleted(done) => self.evaluated("parent on the minibatch", done),
            Event::MinibatchEvaluated(done) => self.evaluated("screened", done),
            Event::FullTrainEvaluated(done) => self.evaluated("fully evaluated", done),
            Event::HeldoutCompleted(done) => self.evaluated("on held-out rows", done),
            Event::CandidatePromoted(decision) => self.decided("promoted", decision),
            Event::CandidateAccepted(decision) => self.decided("ACCEPTED", decision),
            Event::CandidateRejected(decision) => self.decided("rejected", decision),
            Event::CandidateDeferred(deferred) => self.about(&deferred.candidate_id, message(event)),
            Event::LeakageDetected(leak) => self.about(&leak.candidate_id, message(event)),
            Event::FrontierUpdated(update) => {
                let left =
                    if update.left.is_empty() { String::new() } else { format!(", {} pushed out", update.left.len()) };
                self.about(&update.candidate_id, format!("{}{left}", message(event)))
            }
            Event::ProposalRejected(rejected) => at(rejected.generation, message(event)),
            Event::DuplicateSkipped(skip) => at(skip.generation, message(event)),
            Event::GenerationCompleted(done) => alone(format!(
                "generation {} done: {} of {} accepted; best {} {}; frontier of {}",
                done.generation,
                done.accepted,
                done.registered,
                done.best_candidate_id,
                done.best_train_score.as_ref().map_or("unknown".to_owned(), score),
                done.frontier_size
            )),
            Event::StopDecided(stop) => alone(stopped(&stop.stopped_by)),
            Event::TaskInfoMissing(why)
            | Event::StopRequested(why)
            | Event::CancelRequested(why)
            | Event::RunInterrupted(why)
            | Event::EchoMissing(why)
            | Event::HeldoutSkipped(why) => alone(happened(event, &why.reason)),
            Event::FailureRaised(failure) => alone(happened(event, &failure.message)),
            Event::TransportFallback(fallback) => alone(happened(event, &fallback.reason)),
            Event::RunFinished(run) => self.end(finished(run)),
            Event::RunFailed(run) => {
                let first = happened(event, &run.message);
                let best = run.best_candidate_id.as_ref();
                self.end(ending(first, best, &run.rollouts, &run.bill))
            }
            Event::RunCancelled(run) => {
                let first = happened(event, &run.reason);
                self.end(ending(first, run.best_candidate_id.as_ref(), &run.rollouts, &run.bill))
            }
            Event::ContractVerified(_)
            | Event::TaskInfoLoaded(_)
            | Event::RowsMapped(_)
            | Event::ProgramLoaded(_)
            | Event::RowsLoaded(_)
            | Event::ObjectiveSetDeclared(_)
            | Event::MinibatchSkipped(_)
            | Event::BudgetRefused(_)
            | Event::CircuitBreakerTripped(_)
            | Event::RunResumed(_)
            | Event::ProposerReady(_)
            | Event::ConcurrencyAdjusted(_)
            | Event::CacheDamaged(_)
            | Event::HeldoutStarted(_)
            | Event::HeldoutPartial(_) => alone(message(event)),
        }
    }

    /// What is left to say when the feed ends.
    pub(super) fn close(&self, events: u64) -> Vec<Told> {
        let mut lines = Vec::new();
        let cut = self.evaluations.cut_short();
        if cut > 0 {
            lines.extend(alone(format!("{} of evaluations that did not come to their end", counted(cut, "rollout"))));
        }
        if !self.over {
            lines.extend(alone(format!("the feed ends here, after {events} events; the run is not over")));
        }
        lines
    }

    fn end(&mut self, lines: Vec<String>) -> Vec<Told> {
        self.over = true;
        lines.into_iter().map(|text| Told { generation: None, text }).collect()
    }

    fn registered(&mut self, candidate: &CandidateRegistered) -> Vec<Told> {
        if let Some(generation) = candidate.generation {
            self.generation_of.insert(candidate.candidate_id.clone(), generation);
        }
        let how = match candidate.operation {
            Operation::Seed => "is the seed".to_owned(),
            Operation::Mutate => format!("changes {}", candidate.changed_fields.join(", ")),
            Operation::Merge => {
                let parents: Vec<&str> = candidate.parent_ids.iter().map(CandidateId::as_str).collect();
                format!("merges {}", parents.join(" and "))
            }
        };
        let why =
            if candidate.rationale.is_empty() { String::new() } else { format!(": {}", quoted(&candidate.rationale)) };
        self.about(&candidate.candidate_id, format!("{} {how}{why}", candidate.candidate_id))
    }

    fn evaluated(&mut self, what: &str, done: &EvaluationCompleted) -> Vec<Told> {
        let rollouts = self.evaluations.completed(done.evaluation).words();
        let found = done.score.as_ref().map_or("no score".to_owned(), score);
        let missing =
            if done.failed > 0 { format!(", {} of {} rows missing", done.failed, done.rows) } else { String::new() };
        let text = format!("{} {what}: {found}{missing} ({rollouts})", done.candidate_id);
        vec![Told { generation: done.generation, text }]
    }

    fn decided(&self, what: &str, decision: &CandidateDecided) -> Vec<Told> {
        let against = decision.comparison.as_ref().map_or(String::new(), |found| {
            format!(
                " ({:+.4}: {:.4} against {:.4} on {} rows)",
                found.primary_delta, found.candidate_score, found.incumbent_score, found.rows
            )
        });
        self.about(&decision.candidate_id, format!("{} {what}: {}{against}", decision.candidate_id, decision.reason))
    }

    /// A line under the generation of a candidate.
    fn about(&self, candidate: &CandidateId, text: String) -> Vec<Told> {
        vec![Told { generation: self.generation_of.get(candidate).copied(), text }]
    }
}

fn alone(text: String) -> Vec<Told> {
    vec![Told { generation: None, text }]
}

fn at(generation: u32, text: String) -> Vec<Told> {
    vec![Told { generation: Some(generation), text }]
}

fn started(generation: &GenerationStarted) -> String {
    let parents: Vec<&str> = generation.parent_ids.iter().map(CandidateId::as_str).collect();
    let why = generation.selection.as_ref().map_or(String::new(), |chosen| {
        format!(
            " by {} ({} of {} weight, frontier of {})",
            chosen.selector.word(),
            chosen.cells_won,
            chosen.total_weight,
            chosen.frontier_size
        )
    });
    format!(
        "generation {}: {} {}{why}; {} rows; may change {}",
        generation.generation,
        generation.operation.word(),
        parents.join(" and "),
        generation.minibatch.len(),
        generation.components.join(", ")
    )
}

fn proposed(turn: &ProposerCompleted, millis: Option<u64>) -> String {
    let took = millis.map_or(String::new(), |millis| format!(" in {:.1} s", millis as f64 / 1000.0));
    let model = if turn.requested_model == turn.effective_model {
        turn.effective_model.clone()
    } else {
        format!("{} (asked for {})", turn.effective_model, turn.requested_model)
    };
    let paid = if turn.cached { "from the cache".to_owned() } else { format!("cost {}", turn.usage.cost) };
    let ignored = if turn.ignored > 0 { format!(", {} more ignored", turn.ignored) } else { String::new() };
    format!("{}{ignored} by {model}{took}, {paid}", counted(turn.proposal_count, "proposal"))
}

fn stopped(by: &StoppedBy) -> String {
    let mut text = format!("search ends: {}", by.kind.word());
    if let (Some(value), Some(limit)) = (by.value, by.limit) {
        text.push_str(&format!(" ({value} of {limit})"));
    }
    if let Some(reason) = &by.reason {
        text.push_str(&format!(": {}", quoted(reason)));
    }
    text
}

fn finished(run: &RunFinished) -> Vec<String> {
    let mut lines = vec![format!(
        "run finished with {} after {} generations and {} candidates ({})",
        run.best_candidate_id,
        run.generations,
        run.candidates,
        run.stopped_by.kind.word()
    )];
    lines.extend(
        run.scores.iter().map(|named| {
            format!("  {} on {}: {} {}", named.role, named.split, named.candidate_id, score(&named.score))
        }),
    );
    for (split, found) in [("train", &run.train_gain), ("heldout", &run.heldout_gain)] {
        lines.extend(found.iter().map(|found| format!("  gain on {split}: {}", gain(found))));
    }
    lines.extend(bill(&run.rollouts, &run.bill));
    lines
}

//! Events in words. Messages hold no volatile value, so that normalized feeds can keep them.

use super::event::Event;
use super::event_fields::{CandidateDecided, EvaluationCompleted};

/// One sentence about an event.
pub fn message(event: &Event) -> String {
    match event {
        Event::RunStarted(run) => format!("run started with seed {}", run.seed),
        Event::StateTransitioned(change) => format!("{} -> {}", change.from.word(), change.to.word()),
        Event::ContractVerified(contract) => {
            format!("container speaks {} ({})", contract.version, contract.dialects.join(" and "))
        }
        Event::TaskInfoLoaded(_) => "the container describes its task".to_owned(),
        Event::TaskInfoMissing(_) => "the container does not describe its task".to_owned(),
        Event::RowsMapped(map) => format!("{} seeds are known by task id", map.train.len() + map.heldout.len()),
        Event::ProgramLoaded(program) => {
            format!("program {} with fields {}", program.program_id, program.target_fields.join(", "))
        }
        Event::RowsLoaded(rows) => format!("{} train rows, {} held-out rows", rows.train_rows, rows.heldout_rows),
        Event::ObjectiveSetDeclared(set) => format!("{} decides", set.selection_objective),
        Event::CandidateRegistered(candidate) => {
            format!("candidate {} registered ({})", candidate.candidate_id, candidate.operation.word())
        }
        Event::RolloutsRequested(batch) => {
            format!("{} rollouts of {} for {}", batch.row_ids.len(), batch.candidate_id, batch.stage.word())
        }
        Event::RolloutFinished(rollout) => {
            format!("{} on {}: {}", rollout.candidate_id, rollout.row_id, number(rollout.reward))
        }
        Event::RolloutFailed(rollout) => {
            let next = if rollout.retried { "; trying again" } else { "; no score" };
            format!("{} on {}: {}{next}", rollout.candidate_id, rollout.row_id, rollout.class.word())
        }
        Event::SeedEvaluated(done) => evaluated("seed evaluated", done),
        Event::ReferenceCompleted(done) => evaluated("parent measured on the minibatch", done),
        Event::MinibatchEvaluated(done) => evaluated("screened", done),
        Event::FullTrainEvaluated(done) => evaluated("fully evaluated", done),
        Event::HeldoutCompleted(done) => evaluated("measured on held-out rows", done),
        Event::CandidatePromoted(decision) => decided("promoted", decision),
        Event::CandidateAccepted(decision) => decided("accepted", decision),
        Event::CandidateRejected(decision) => decided("rejected", decision),
        Event::CandidateDeferred(deferred) => {
            format!("{} deferred: {}", deferred.candidate_id, deferred.reason.word())
        }
        Event::GenerationStarted(generation) => {
            let parents: Vec<&str> = generation.parent_ids.iter().map(|id| id.as_str()).collect();
            format!(
                "generation {} ({}) from {}",
                generation.generation,
                generation.operation.word(),
                parents.join(" and ")
            )
        }
        Event::MinibatchSkipped(skip) => {
            format!("{} has nothing to gain on these {} rows; drawing again", skip.parent_id, skip.rows)
        }
        Event::ProposerStarted(turn) if turn.problems.is_empty() => {
            format!("asked for {} proposals for generation {}", turn.proposal_count, turn.generation)
        }
        Event::ProposerStarted(turn) => {
            format!("asked to repair {} problems for generation {}", turn.problems.len(), turn.generation)
        }
        Event::ProposerCompleted(turn) => {
            format!("{} proposals for generation {}", turn.proposal_count, turn.generation)
        }
        Event::ProposerFailed(turn) => {
            let next = if turn.retried { "; trying again" } else { "" };
            format!("proposer {} for generation {}{next}", turn.class.word(), turn.generation)
        }
        Event::ProposalRejected(rejected) => {
            let codes: Vec<&str> = rejected.problems.iter().map(|problem| problem.code.as_str()).collect();
            format!("proposal {} of generation {} refused: {}", rejected.index, rejected.generation, codes.join(", "))
        }
        Event::DuplicateSkipped(skip) => format!("proposal {} repeats {}", skip.index, skip.candidate_id),
        Event::LeakageDetected(leak) => {
            format!("{} repeats {} characters of row {} in {}", leak.candidate_id, leak.chars, leak.row_id, leak.field)
        }
        Event::FrontierUpdated(update) => {
            format!("{} holds {} cells; frontier of {}", update.candidate_id, update.cells_won, update.size)
        }
        Event::GenerationCompleted(done) => format!(
            "generation {} done: {} of {} accepted, best {}",
            done.generation,
            done.accepted,
            done.registered,
            done.best_train_score.map_or("unknown".to_owned(), |score| number(score.mean))
        ),
        Event::BudgetRefused(refused) => format!(
            "{} left of {}, {} wanted for {}",
            refused.available,
            refused.dimension.word(),
            refused.wanted,
            refused.purpose
        ),
        Event::CircuitBreakerTripped(breaker) => {
            format!("{} of the last {} rollouts failed", breaker.failures, breaker.window)
        }
        Event::StopDecided(stop) => format!("search ends: {}", stop.stopped_by.kind.word()),
        Event::StopRequested(_) => "early finish requested".to_owned(),
        Event::CancelRequested(_) => "cancel requested".to_owned(),
        Event::FailureRaised(failure) => format!("the run cannot go on: {}", failure.code.wire()),
        Event::ProposerReady(ready) => format!("proposer {} {} with {}", ready.backend, ready.version, ready.model),
        Event::RunResumed(resumed) => format!(
            "resumed after {} events; {} answers wait, {} outcomes unknown",
            resumed.events, resumed.waiting, resumed.unknown_outcomes
        ),
        Event::RunInterrupted(_) => "interrupted; the run can be resumed".to_owned(),
        Event::TransportFallback(fallback) => {
            format!("rollouts are sent {} instead of {}", fallback.effective, fallback.requested)
        }
        Event::ConcurrencyAdjusted(change) => format!("{} -> {} rollouts at once", change.old_limit, change.new_limit),
        Event::EchoMissing(_) => "the container does not say which row it ran".to_owned(),
        Event::CacheDamaged(damage) => {
            format!("a cached answer of {} was damaged and asked for again", damage.boundary)
        }
        Event::ClockObserved(_) => "clock".to_owned(),
        Event::HeldoutStarted(chosen) => {
            format!("{} candidates on {} held-out rows", chosen.candidate_ids.len(), chosen.rows)
        }
        Event::HeldoutPartial(chosen) => {
            format!("the budget does not reach for {} candidates on held-out rows", chosen.candidate_ids.len())
        }
        Event::HeldoutSkipped(_) => "no held-out evaluation".to_owned(),
        Event::RunFinished(run) => format!("run finished with {}", run.best_candidate_id),
        Event::RunFailed(run) => format!("run failed: {}", run.error_code.wire()),
        Event::RunCancelled(_) => "run cancelled".to_owned(),
    }
}

fn evaluated(what: &str, done: &EvaluationCompleted) -> String {
    let failed = if done.failed > 0 { format!(", {} failed", done.failed) } else { String::new() };
    match &done.score {
        Some(score) => format!("{} {what}: {} on {} rows{failed}", done.candidate_id, number(score.mean), score.n),
        None => format!("{} {what}: no score on {} rows{failed}", done.candidate_id, done.rows),
    }
}

fn decided(what: &str, decision: &CandidateDecided) -> String {
    let delta = decision
        .comparison
        .as_ref()
        .map_or(String::new(), |found| format!(" ({:+.4} on {} rows)", found.primary_delta, found.rows));
    format!("{} {what}: {}{delta}", decision.candidate_id, decision.reason)
}

fn number(value: f64) -> String {
    format!("{value:.4}")
}

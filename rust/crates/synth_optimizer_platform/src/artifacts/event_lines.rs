//! Formats events as lines for users: which events get a line, its importance and its text. Replays, live views and plain
//! output all use this formatter.

use std::collections::{BTreeMap, BTreeSet};

use synth_optimizer_core::model::event::{Event, counted, message, without};
use synth_optimizer_core::model::event_fields::{
    Bill, CandidateDecided, CandidateRegistered, EstimateShortfall, EvaluationCompleted, GenerationStarted, Operation,
    ProposerCompleted, RolloutCount, RolloutFailed, RunFinished, StoppedBy,
};
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::in_flight::{InFlight, InFlightEvaluation};
use synth_optimizer_core::model::score::{Gain, Score};
use synth_optimizer_core::model::usage::{Cost, NanoUsd};
use synth_optimizer_core::string_enum;

string_enum! {
    /// The importance and colour of a line.
    Weight {
        /// Only for a replay. Views show the same information in another way.
        Minor = "minor",
        /// Left out while a live view is shown.
        Detail = "detail",
        Plain = "plain",
        Good = "good",
        Warning = "warning",
        Bad = "bad",
    }
}

/// One line, and the generation that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct EventLine {
    pub generation: Option<u32>,
    pub weight: Weight,
    pub text: String,
}

/// Formats the events of one run, in their order.
#[derive(Debug, Default)]
pub struct EventFormatter {
    generation_of: BTreeMap<CandidateId, u32>,
    in_flight: InFlight,
    /// The kinds of failures that were reported. Each kind is reported once.
    failures: BTreeSet<String>,
    over: bool,
}

/// The most kinds of failed rollouts that are reported. The others are only counted.
const MAX_REPORTED_FAILURES: usize = 5;

impl EventFormatter {
    /// Returns the lines of the next event. Events that are summarized later, and internal ones, have none.
    pub fn format(&mut self, unix_millis: u64, event: &Event) -> Vec<EventLine> {
        let lines = self.lines(unix_millis, event);
        self.in_flight.apply(unix_millis, event);
        lines
    }

    fn lines(&mut self, unix_millis: u64, event: &Event) -> Vec<EventLine> {
        let took = self.in_flight.started_at(event).map(|began| unix_millis.saturating_sub(began));
        match event {
            Event::StateTransitioned(_)
            | Event::ClockObserved(_)
            | Event::RolloutsRequested(_)
            | Event::RolloutFinished(_)
            | Event::MeasurementCompleted(_) => Vec::new(),
            Event::RolloutFailed(rollout) => self.failed(event, rollout),
            Event::ProposerStarted(turn) => at(turn.generation, Weight::Detail, message(event)),
            Event::FrontierUpdated(update) if !update.joined && update.removed.is_empty() => Vec::new(),

            Event::RunStarted(run) => alone(
                Weight::Plain,
                format!(
                    "{} with random seed {} against {}, config {}",
                    run.algorithm,
                    run.seed,
                    run.container_url,
                    run.config_digest.get(..12).unwrap_or(&run.config_digest)
                ),
            ),
            Event::CandidateRegistered(candidate) => self.registered(candidate),
            Event::GenerationStarted(generation) => alone(Weight::Detail, started(generation)),
            Event::ProposerCompleted(turn) => at(turn.generation, Weight::Detail, proposed(turn, took)),
            Event::ProposerFailed(turn) => at(turn.generation, Weight::Warning, because(event, &turn.message)),
            Event::SeedEvaluated(done) => {
                let mut lines = self.evaluated(Weight::Plain, "initial candidate on train rows", done, took);
                lines.extend(constant_scores(done));
                lines
            }
            Event::ReferenceCompleted(done) => self.evaluated(Weight::Detail, "parent on the minibatch", done, took),
            Event::MinibatchEvaluated(done) => self.evaluated(Weight::Detail, "screened", done, took),
            Event::FullTrainEvaluated(done) => self.evaluated(Weight::Detail, "fully evaluated", done, took),
            Event::HeldoutCompleted(done) => self.evaluated(Weight::Plain, "on held-out rows", done, took),
            Event::CandidatePromoted(decision) => self.decided(Weight::Detail, "promoted", decision),
            Event::CandidateAccepted(decision) if decision.comparison.is_none() => {
                self.decided(Weight::Minor, "accepted", decision)
            }
            Event::CandidateAccepted(decision) => self.decided(Weight::Good, "accepted", decision),
            Event::CandidateRejected(decision) => self.decided(Weight::Detail, "rejected", decision),
            Event::CandidateSuperseded(superseded) => {
                self.about(&superseded.candidate_id, Weight::Detail, message(event))
            }
            Event::HeadMoved(moved) => self.about(&moved.candidate_id, Weight::Detail, message(event)),
            Event::CheckDecided(_) => alone(Weight::Plain, message(event)),
            Event::CandidateDeferred(deferred) => self.about(&deferred.candidate_id, Weight::Detail, message(event)),
            Event::LeakageDetected(leak) => self.about(&leak.candidate_id, Weight::Warning, message(event)),
            Event::FrontierUpdated(update) => {
                let left = if update.removed.is_empty() {
                    String::new()
                } else {
                    format!(", {} removed", update.removed.len())
                };
                self.about(&update.candidate_id, Weight::Minor, format!("{}{left}", message(event)))
            }
            Event::ProposalRejected(rejected) => {
                let problems: Vec<&str> = rejected.problems.iter().map(|problem| problem.message.as_str()).collect();
                at(rejected.generation, Weight::Warning, because(event, &problems.join("; ")))
            }
            Event::DuplicateSkipped(skip) => at(skip.generation, Weight::Detail, message(event)),
            Event::GenerationCompleted(done) => alone(
                Weight::Plain,
                format!(
                    "generation {} completed: {} of {} accepted; best {} {}; frontier of {}",
                    done.generation,
                    done.accepted,
                    done.registered,
                    done.best_candidate_id,
                    done.best_train_score.as_ref().map_or("unknown".to_owned(), score),
                    done.frontier_size
                ),
            ),
            Event::StopDecided(stop) => alone(Weight::Plain, format!("search ends: {}", stop_reason(&stop.stopped_by))),
            Event::TaskInfoMissing(why) => alone(Weight::Minor, because(event, &why.reason)),
            Event::StopRequested(why) | Event::CancelRequested(why) | Event::RunInterrupted(why) => {
                alone(Weight::Plain, because(event, &why.reason))
            }
            Event::EchoMissing(why) | Event::UsageRefused(why) | Event::HeldoutSkipped(why) => {
                alone(Weight::Warning, because(event, &why.reason))
            }
            Event::FailureRaised(failure) => alone(Weight::Bad, because(event, &failure.message)),
            Event::TransportFallback(fallback) => alone(Weight::Warning, because(event, &fallback.reason)),
            Event::ProposerReady(ready) => {
                let text = format!("{} ({}, {})", message(event), ready.source, ready.sandbox);
                match ready.shutdown_warning() {
                    Some(warning) => alone(Weight::Warning, format!("{text}; {warning}")),
                    None => alone(Weight::Plain, text),
                }
            }
            Event::RunFinished(run) => self.end(Weight::Minor, finished(run)),
            Event::RunFailed(run) => {
                let first = because(event, &run.message);
                self.end(Weight::Bad, ending(first, run.best_candidate_id.as_ref(), &run.rollouts, &run.bill))
            }
            Event::RunCancelled(run) => {
                let first = because(event, &run.reason);
                self.end(Weight::Plain, ending(first, run.best_candidate_id.as_ref(), &run.rollouts, &run.bill))
            }
            Event::TaskInfoLoaded(_) | Event::ObjectiveSetDeclared(_) | Event::MinibatchSkipped(_) => {
                alone(Weight::Minor, message(event))
            }
            Event::ConcurrencyAdjusted(_) | Event::CheckStarted(_) => alone(Weight::Detail, message(event)),
            Event::OutcomeUnknown(lost) => alone(Weight::Warning, because(event, &lost.cause)),
            Event::RunWaiting(waiting) => {
                let pause = span(waiting.next_try_at.saturating_sub(unix_millis));
                let text =
                    format!("{}; try {} failed, next try in {pause}", because(event, &waiting.cause), waiting.tries);
                alone(if waiting.tries == 1 { Weight::Warning } else { Weight::Detail }, text)
            }
            Event::WaitingEnded(ended) => {
                alone(Weight::Plain, format!("{} after {}", message(event), span(ended.waited_millis)))
            }
            Event::BudgetRefused(_) | Event::CacheDamaged(_) | Event::ReplyAltered(_) | Event::HeldoutPartial(_) => {
                alone(Weight::Warning, message(event))
            }
            Event::CircuitBreakerTripped(_) => alone(Weight::Bad, message(event)),
            Event::ContractVerified(_)
            | Event::RowsMapped(_)
            | Event::ProgramLoaded(_)
            | Event::RowsLoaded(_)
            | Event::SearchChosen(_)
            | Event::NoiseMeasured(_)
            | Event::WindowChanged(_)
            | Event::RunResumed(_)
            | Event::HeldoutStarted(_) => alone(Weight::Plain, message(event)),
        }
    }

    /// Returns the closing lines for a feed that ends before the run does.
    pub fn close(&self, events: u64) -> Vec<EventLine> {
        if self.over {
            return Vec::new();
        }
        let text = format!("the feed ends after {events} events; the run has not ended");
        let lines = self.cut_short().into_iter().chain([text]);
        lines.map(|text| EventLine { generation: None, weight: Weight::Minor, text }).collect()
    }

    fn cut_short(&self) -> Option<String> {
        let cut: u32 = self.in_flight.evaluations.values().map(|evaluation| evaluation.finished).sum();
        (cut > 0).then(|| format!("{} of unfinished evaluations", counted(cut as usize, "rollout")))
    }

    /// Returns the lines of the run's last event. The first has the given weight; the others are for replays only, because
    /// views end with a summary.
    fn end(&mut self, weight: Weight, mut lines: Vec<String>) -> Vec<EventLine> {
        self.over = true;
        lines.extend(self.cut_short());
        let weight = |place: usize| if place == 0 { weight } else { Weight::Minor };
        let line = |(place, text)| EventLine { generation: None, weight: weight(place), text };
        lines.into_iter().enumerate().map(line).collect()
    }

    /// Returns the line of a failed rollout, once for each kind of failure.
    fn failed(&mut self, event: &Event, rollout: &RolloutFailed) -> Vec<EventLine> {
        let words: String = rollout.message.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        let is_new = rollout.class.was_sent()
            && self.failures.len() < MAX_REPORTED_FAILURES
            && self.failures.insert(format!("{} {words}", rollout.class.as_str()));
        if !is_new {
            return Vec::new();
        }
        let text = format!("{} (further failures of this kind are only counted)", because(event, &rollout.message));
        self.about(&rollout.candidate_id, Weight::Warning, text)
    }

    fn registered(&mut self, candidate: &CandidateRegistered) -> Vec<EventLine> {
        if let Some(generation) = candidate.generation {
            self.generation_of.insert(candidate.candidate_id.clone(), generation);
        }
        let parents: Vec<&str> = candidate.parent_ids.iter().map(CandidateId::as_str).collect();
        let parents = parents.join(" and ");
        let how = match candidate.operation {
            Operation::Seed => "is the initial candidate".to_owned(),
            Operation::Mutate => format!("changes {} of {parents}", candidate.changed_fields.join(", ")),
            Operation::Merge => format!("merges {parents}"),
            Operation::Rebase => format!("carries changes over to {parents}"),
        };
        let why =
            if candidate.rationale.is_empty() { String::new() } else { format!(": {}", quoted(&candidate.rationale)) };
        let dropped = without(&candidate.dropped_fields);
        let kept = candidate
            .kept_share
            .filter(|share| *share > 0.0)
            .map(|share| format!(" and keeps {:.0} % of its lines", share * 100.0));
        let line = format!("{} {how}{}{dropped}{why}", candidate.candidate_id, kept.unwrap_or_default());
        self.about(&candidate.candidate_id, Weight::Detail, line)
    }

    fn evaluated(&self, weight: Weight, what: &str, done: &EvaluationCompleted, took: Option<u64>) -> Vec<EventLine> {
        let found = done.score.as_ref().map_or("no score".to_owned(), score);
        let missing =
            if done.failed > 0 { format!(", {} of {} rows missing", done.failed, done.rows) } else { String::new() };
        let rollouts = self.in_flight.evaluations.get(&done.evaluation).map(|of| rollouts(of, took));
        let rollouts = rollouts.map_or(String::new(), |rollouts| format!(" ({rollouts})"));
        let text = format!("{} {what}: {found}{missing}{rollouts}", done.candidate_id);
        vec![EventLine { generation: done.generation, weight, text }]
    }

    fn decided(&self, weight: Weight, what: &str, decision: &CandidateDecided) -> Vec<EventLine> {
        let against = decision.comparison.as_ref().map_or(String::new(), |found| {
            format!(
                " ({:+.4}: {:.4} against {:.4} on {} rows)",
                found.primary_delta, found.candidate_score, found.incumbent_score, found.rows
            )
        });
        let detail = decision.detail.as_ref().map_or(String::new(), |detail| format!(": {}", quoted(detail)));
        let text = format!("{} {what}: {}{against}{detail}", decision.candidate_id, decision.reason);
        self.about(&decision.candidate_id, weight, text)
    }

    /// Returns a line in the generation of a candidate.
    fn about(&self, candidate: &CandidateId, weight: Weight, text: String) -> Vec<EventLine> {
        vec![EventLine { generation: self.generation_of.get(candidate).copied(), weight, text }]
    }
}

/// Returns a warning if the initial candidate has the same score on every row. 1.0 on every row is a perfect candidate.
fn constant_scores(seed: &EvaluationCompleted) -> Option<EventLine> {
    let Score { mean, n, standard_error, .. } = seed.score?;
    let is_constant = n > 1 && standard_error.is_some_and(|error| error <= f64::EPSILON * mean.abs());
    (is_constant && mean != 1.0).then(|| EventLine {
        generation: seed.generation,
        weight: Weight::Warning,
        text: format!(
            "all {n} train rows have the score {mean:.4}: the search has no row to learn from; check that the metric tells good \
             and bad answers apart"
        ),
    })
}

fn alone(weight: Weight, text: String) -> Vec<EventLine> {
    vec![EventLine { generation: None, weight, text }]
}

fn at(generation: u32, weight: Weight, text: String) -> Vec<EventLine> {
    vec![EventLine { generation: Some(generation), weight, text }]
}

fn started(generation: &GenerationStarted) -> String {
    let parents: Vec<&str> = generation.parent_ids.iter().map(CandidateId::as_str).collect();
    let why = generation.selection.as_ref().map_or(String::new(), |chosen| {
        format!(
            " by {} ({} of {} weight, frontier of {})",
            chosen.selector.as_str(),
            chosen.cells_won,
            chosen.total_weight,
            chosen.frontier_size
        )
    });
    format!(
        "generation {}: {} {}{why}; {} rows; may change {}",
        generation.generation,
        generation.operation.as_str(),
        parents.join(" and "),
        generation.minibatch.len(),
        generation.components.join(", ")
    )
}

fn proposed(turn: &ProposerCompleted, took: Option<u64>) -> String {
    let took = took.map_or(String::new(), |millis| format!(" in {}", span(millis)));
    let model = if turn.requested_model == turn.effective_model {
        turn.effective_model.clone()
    } else {
        format!("{} (requested {})", turn.effective_model, turn.requested_model)
    };
    let paid = if turn.cached { "from the cache".to_owned() } else { format!("cost {}", turn.usage.cost) };
    let ignored = if turn.ignored > 0 { format!(", {} more ignored", turn.ignored) } else { String::new() };
    format!("{}{ignored} by {model}{took}, {paid}", counted(turn.proposal_count as usize, "proposal"))
}

/// Returns which rule ended the search, with the limit and the reason.
fn stop_reason(by: &StoppedBy) -> String {
    let mut text = by.kind.as_str().to_owned();
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
        "run completed with {} after {} generations and {} candidates ({})",
        run.best_candidate_id,
        run.generations,
        run.candidates,
        run.stopped_by.kind.as_str()
    )];
    lines.extend(
        run.scores.iter().map(|named| {
            format!("  {} on {}: {} {}", named.role, named.split, named.candidate_id, score(&named.score))
        }),
    );
    for (split, found) in [("train, chosen by the search", &run.train_gain), ("heldout", &run.heldout_gain)] {
        lines.extend(found.iter().map(|found| format!("  gain on {split}: {}", gain(found))));
    }
    lines.extend(run.claim.iter().map(|claim| format!("  result: {}", claim.sentence)));
    lines.extend(bill(&run.rollouts, &run.bill));
    lines
}

/// Returns the lines of a failed or cancelled run.
fn ending(first: String, best: Option<&CandidateId>, rollouts: &RolloutCount, paid: &Bill) -> Vec<String> {
    let mut lines = vec![first];
    lines.push(best.map_or("  no candidate was evaluated".to_owned(), |best| format!("  best so far {best}")));
    lines.extend(bill(rollouts, paid));
    lines
}

/// Returns the lines about rollouts and cost.
fn bill(rollouts: &RolloutCount, bill: &Bill) -> Vec<String> {
    let unknown = match rollouts.unknown_outcomes {
        0 => String::new(),
        count => format!(", {count} with unknown outcome"),
    };
    let mut lines = vec![
        format!("  rollouts: {} train, {} held-out{unknown}", rollouts.train, rollouts.heldout),
        format!(
            "  calls: {} sent, {} cached; {} tokens; cost {}",
            bill.sent_calls, bill.cached_calls, bill.total_tokens, bill.cost_usd
        ),
    ];
    lines.extend(bill.shortfalls.iter().map(|over| {
        let EstimateShortfall { kind, limit, spent } = over;
        format!("  {} exceeded: {spent} of {limit}, because calls used more than their estimates", kind.as_str())
    }));
    lines
}

/// `24 rollouts in 3.2s, 3 from the cache, 1 timeout, $0.0012`
fn rollouts(of: &InFlightEvaluation, took: Option<u64>) -> String {
    let failed: u32 = of.failures.values().sum();
    let took = took.map_or(String::new(), |millis| format!(" in {}", span(millis)));
    let mut parts = vec![format!("{}{took}", counted((of.finished + failed) as usize, "rollout"))];
    if of.spend.cached_calls > 0 {
        parts.push(format!("{} from the cache", of.spend.cached_calls));
    }
    parts.extend(of.failures.iter().map(|(class, count)| format!("{count} {class}")));
    match of.spend.cost() {
        Cost::Known(NanoUsd(0)) => {}
        known @ Cost::Known(_) => parts.push(known.to_string()),
        Cost::Unknown => parts.push("cost unknown".to_owned()),
    }
    parts.join(", ")
}

/// Returns the message of an event with its reason.
fn because(event: &Event, reason: &str) -> String {
    if reason.is_empty() { message(event) } else { format!("{}: {}", message(event), quoted(reason)) }
}

/// `0.4167 [0.2447, 0.6121] on 24 rows`
fn score(score: &Score) -> String {
    format!("{:.4}{} on {} rows", score.mean, interval(score.low, score.high), score.n)
}

/// `+0.2500 [0.0500, 0.4500] on 24 rows, 8 better, 2 worse, 14 equal`
fn gain(gain: &Gain) -> String {
    format!(
        "{:+.4}{} on {} rows, {} better, {} worse, {} equal",
        gain.difference,
        interval(gain.low, gain.high),
        gain.n,
        gain.wins,
        gain.losses,
        gain.ties
    )
}

/// Returns the beginning of a text on one line.
fn quoted(text: &str) -> String {
    const MAX_QUOTED_CHARS: usize = 120;
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((at, _)) = words.char_indices().nth(MAX_QUOTED_CHARS) {
        words.truncate(at);
        words.push('…');
    }
    words
}

fn interval(low: Option<f64>, high: Option<f64>) -> String {
    match (low, high) {
        (Some(low), Some(high)) => format!(" [{low:.4}, {high:.4}]"),
        _ => String::new(),
    }
}

/// `12.3s`, `4m07s`, `2h05m`
pub(super) fn span(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..60 => format!("{}.{}s", seconds, millis % 1000 / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

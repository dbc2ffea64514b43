//! The candidates of a run as a tree: where each comes from, what became of it and why, and the checks of a search in sprints.

use std::collections::{BTreeSet, HashMap};

use rusqlite::Connection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::projector::totals;
use super::super::query::{MILESTONES, documents, list};
use super::super::reader::{Reader, event};
use super::read_error::ReadError;
use super::scores::objectives;
use super::undominated::undominated;
use synth_optimizer_core::model::decision_words::decision_in_words;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    CheckDecided, CheckStarted, CheckVerdict, Direction, Operation, SearchMode,
};
use synth_optimizer_core::model::frontier_view::FrontierView;
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::lifecycle::CandidateStatus;
use synth_optimizer_core::model::score::Score;

/// All candidates of a run, with the checks of a search in sprints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct RunLineage {
    /// The deciding objective. Null before the task is loaded.
    pub metric: Option<String>,
    /// Whether a higher or a lower value is better.
    pub direction: Option<Direction>,
    /// How the search decides on candidates. Null before it is chosen.
    pub search: Option<SearchMode>,
    /// The initial candidate.
    pub initial_candidate_id: Option<String>,
    /// The best candidate so far.
    pub best_candidate_id: Option<String>,
    /// Whether the run has not ended.
    pub is_live: bool,
    /// Every candidate, in the order of registration. A parent comes before its children.
    pub candidates: Vec<LineageCandidate>,
    /// The checks, in order. Empty in a reference search.
    pub checks: Vec<SprintCheck>,
}

/// A candidate of the tree.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct LineageCandidate {
    /// The candidate.
    pub candidate_id: String,
    /// All of its parents, the first one first.
    pub parent_ids: Vec<String>,
    /// How it was made.
    pub operation: Operation,
    /// The generation that made it. Null for the initial candidate.
    pub generation: Option<u32>,
    /// The sprint that it belongs to. Null in a reference search and for the initial candidate.
    pub sprint: Option<u32>,
    /// Its state in the lifecycle.
    pub status: CandidateStatus,
    /// The last decision about it, in words. Null before the first one.
    pub reason: Option<String>,
    /// The candidate that was decided in its place.
    pub superseded_by: Option<String>,
    /// Score of its screening.
    pub minibatch_score: Option<Score>,
    /// Score on train rows, with its interval.
    pub train_score: Option<Score>,
    /// Score on held-out rows.
    pub heldout_score: Option<Score>,
    /// Whether it is on the frontier and no other members dominate it.
    pub on_frontier: bool,
    /// Whether it is the best candidate so far.
    pub is_best: bool,
    /// Share of the parent's lines that its new texts keep. Null if it is unknown.
    pub kept_share: Option<f64>,
    /// Fields whose text differs from the first parent's.
    pub changed_fields: Vec<String>,
    /// Sequence number of the event that registered it.
    pub registered_sequence: u64,
}

/// A comparison of the head of a sprint with the best candidate.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SprintCheck {
    /// Its number, from 0.
    pub check: u32,
    /// The sprint, from 0. A rollback starts the next one.
    pub sprint: u32,
    /// Sequence number of the event that decided it, or started it if it is not decided.
    pub sequence: u64,
    /// The head of the sprint.
    pub head_id: String,
    /// The best candidate at that time, which the head is compared with.
    pub anchor_id: String,
    /// Number of changes between them.
    pub steps: Option<u32>,
    /// The verdict. Null while the check runs.
    pub verdict: Option<CheckVerdict>,
    /// The reason in words.
    pub reason: Option<String>,
    /// Rows on which both have scores.
    pub n: u32,
    /// Mean difference on these rows, positive when the head is better.
    pub mean: Option<f64>,
    /// Probability that the head is better.
    pub probability: Option<f64>,
    /// Rollouts that the check requested.
    pub rollouts: u64,
}

/// The stored record of a candidate without its texts.
#[derive(Debug, Deserialize)]
struct CandidateRecord {
    candidate_id: String,
    parent_ids: Vec<String>,
    source: Operation,
    generation: Option<u32>,
    status: CandidateStatus,
    changed_fields: Vec<String>,
    minibatch_score: Option<Score>,
    train_score: Option<Score>,
    heldout_score: Option<Score>,
    registered_sequence: u64,
}

/// The event types that the tree is folded from.
const TYPES: &str = "'search.chosen', 'generation.started', 'candidate.registered', 'candidate.promoted',
    'candidate.accepted', 'candidate.rejected', 'candidate.deferred', 'candidate.superseded', 'frontier.updated',
    'head.moved', 'check.started', 'check.decided'";

impl Reader {
    /// Returns all candidates of the run as a tree. Reads each table once, however many candidates there are.
    pub fn lineage(&self) -> Result<RunLineage, ReadError> {
        self.in_snapshot(|db| {
            let sql = "SELECT record FROM candidates ORDER BY registered_sequence";
            let records: Vec<CandidateRecord> = documents(db, "read the candidates", sql, [])?;
            let (totals, fold) = (totals(db)?, LineageFold::read(db)?);
            let declared = objectives(db)?;
            let best = totals.best_candidate_id().map(ToString::to_string);
            let LineageFold { search, checks, mut facts, frontier, .. } = fold;
            let members: BTreeSet<CandidateId> = match &declared {
                // The result of a search in sprints is measured on all rows after its adoption.
                Some(set) if totals.is_terminal() => undominated(db, set, totals.best_candidate_id())?,
                Some(_) | None => frontier.undominated().into_iter().cloned().collect(),
            };
            let candidate = |record| candidate(record, &mut facts, best.as_deref(), &members);
            let objective = declared.and_then(|set| set.objectives.into_iter().next());
            Ok(RunLineage {
                metric: objective.as_ref().map(|objective| objective.name.clone()),
                direction: objective.map(|objective| objective.direction),
                search,
                is_live: !totals.is_terminal(),
                initial_candidate_id: totals.seed_candidate_id.map(|seed| seed.to_string()),
                candidates: records.into_iter().map(candidate).collect(),
                best_candidate_id: best,
                checks,
            })
        })
    }
}

fn candidate(
    record: CandidateRecord,
    facts: &mut HashMap<String, CandidateFacts>,
    best: Option<&str>,
    members: &BTreeSet<CandidateId>,
) -> LineageCandidate {
    let known = facts.remove(&record.candidate_id).unwrap_or_default();
    LineageCandidate {
        is_best: best == Some(record.candidate_id.as_str()),
        on_frontier: members.contains(&CandidateId::new(&record.candidate_id)),
        sprint: known.sprint,
        reason: known.reason,
        superseded_by: known.superseded_by,
        kept_share: known.kept_share,
        candidate_id: record.candidate_id,
        parent_ids: record.parent_ids,
        operation: record.source,
        generation: record.generation,
        status: record.status,
        minibatch_score: record.minibatch_score,
        train_score: record.train_score,
        heldout_score: record.heldout_score,
        changed_fields: record.changed_fields,
        registered_sequence: record.registered_sequence,
    }
}

/// What the log says about a candidate beyond its record.
#[derive(Debug, Default)]
struct CandidateFacts {
    sprint: Option<u32>,
    reason: Option<String>,
    superseded_by: Option<String>,
    kept_share: Option<f64>,
}

/// The state of the fold over the log.
#[derive(Debug, Default)]
struct LineageFold {
    search: Option<SearchMode>,
    /// The current sprint.
    sprint: u32,
    /// The sprint in which each generation started.
    sprint_of: HashMap<u32, u32>,
    facts: HashMap<String, CandidateFacts>,
    checks: Vec<SprintCheck>,
    frontier: FrontierView,
}

impl LineageFold {
    fn read(db: &Connection) -> Result<Self, OptimizerError> {
        let sql = format!(
            "SELECT sequence, type, unix_millis, fields FROM {MILESTONES} AND type IN ({TYPES}) ORDER BY sequence"
        );
        let found = list(db, "read the log", &sql, [], |row| row.try_into())?;
        let mut fold = Self::default();
        for stored in found {
            let stored = event(stored)?;
            fold.apply(stored.sequence, stored.event);
        }
        Ok(fold)
    }

    fn apply(&mut self, sequence: u64, event: Event) {
        if let (Some((candidate_id, _)), Some(reason)) = (event.candidate_trigger(), decision_in_words(&event)) {
            self.of(candidate_id.as_str()).reason = Some(reason);
        }
        match event {
            Event::SearchChosen(choice) => self.search = Some(choice.search),
            Event::GenerationStarted(generation) => _ = self.sprint_of.insert(generation.generation, self.sprint),
            Event::CandidateRegistered(registered) => {
                let sprint = match registered.operation {
                    Operation::Seed => None,
                    Operation::Mutate | Operation::Merge | Operation::Rebase => {
                        let started = registered.generation.and_then(|number| self.sprint_of.get(&number).copied());
                        Some(started.unwrap_or(self.sprint)).filter(|_| self.search == Some(SearchMode::Sprint))
                    }
                };
                let kept_share = registered.kept_share;
                let facts = CandidateFacts { sprint, kept_share, ..CandidateFacts::default() };
                self.facts.insert(registered.candidate_id.to_string(), facts);
            }
            // A promotion is no step of the lifecycle.
            Event::CandidatePromoted(ref decided) => {
                self.of(decided.candidate_id.as_str()).reason = decision_in_words(&event);
            }
            Event::CandidateSuperseded(superseded) => {
                self.of(superseded.candidate_id.as_str()).superseded_by = superseded.by.map(|by| by.to_string());
            }
            Event::HeadMoved(moved) => self.of(moved.candidate_id.as_str()).sprint = Some(moved.sprint),
            Event::FrontierUpdated(update) => self.frontier.apply(&update),
            Event::CheckStarted(check) => self.start_check(sequence, check),
            Event::CheckDecided(check) => self.decide_check(sequence, check),
            _ => {}
        }
    }

    fn of(&mut self, candidate_id: &str) -> &mut CandidateFacts {
        self.facts.entry(candidate_id.to_owned()).or_default()
    }

    fn start_check(&mut self, sequence: u64, check: CheckStarted) {
        self.checks.push(SprintCheck {
            check: check.check,
            sprint: self.sprint,
            sequence,
            head_id: check.head_id.to_string(),
            anchor_id: check.anchor_id.to_string(),
            steps: Some(check.steps),
            verdict: None,
            reason: None,
            n: 0,
            mean: None,
            probability: None,
            rollouts: 0,
        });
    }

    fn decide_check(&mut self, sequence: u64, decided: CheckDecided) {
        let started = self.checks.pop_if(|last| last.check == decided.check);
        self.checks.push(SprintCheck {
            check: decided.check,
            sprint: self.sprint,
            sequence,
            head_id: decided.head_id.to_string(),
            anchor_id: decided.anchor_id.to_string(),
            steps: started.and_then(|started| started.steps),
            verdict: Some(decided.verdict),
            reason: Some(decided.reason),
            n: decided.n,
            mean: decided.mean,
            probability: decided.probability,
            rollouts: decided.rollouts,
        });
        match decided.verdict {
            CheckVerdict::RolledBack => self.sprint += 1,
            CheckVerdict::Adopted | CheckVerdict::Undecided => {}
        }
    }
}

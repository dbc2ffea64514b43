//! The proposer turns of a run: what each asked for, what it cost, and what became of each proposal.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rusqlite::{Connection, params};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::query::{MILESTONES, documents, first, list};
use super::super::reader::{Reader, event};
use super::read_error::{ReadError, after_cursor, page_size, quoted};
use super::rollouts::RolloutFailure;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{CarriedFailure, GenerationStarted, Operation, Problem};
use synth_optimizer_core::model::lifecycle::CandidateStatus;
use synth_optimizer_core::model::usage::Usage;
use synth_optimizer_core::string_enum;

string_enum! {
    /// The status of a proposer turn.
    TurnStatus {
        /// Requested, without an outcome yet.
        Started = "started",
        /// The proposer answered.
        Completed = "completed",
        /// Failed, and not tried again.
        Failed = "failed",
        /// Failed, and tried again as another turn.
        Retried = "retried",
    }
}

string_enum! {
    /// What became of a proposal.
    ProposalOutcome {
        /// It is a candidate.
        Registered = "registered",
        /// It breaks a rule. No rollout was spent on it.
        Refused = "refused",
        /// It repeats a known candidate. No rollout was spent on it.
        Duplicate = "duplicate",
    }
}

/// Selects proposer turns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TurnQuery {
    /// Number of items, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<i64>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

impl TurnQuery {
    /// Checks the parameters without reading.
    pub fn check(&self) -> Result<(), ReadError> {
        self.parts().map(drop)
    }

    fn parts(&self) -> Result<(i64, usize), ReadError> {
        Ok((after_cursor(self.cursor.as_deref())?.max(0), page_size(self.limit, 50, 200)?))
    }
}

/// A page of proposer turns, in the order in which they were requested.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct TurnPage {
    /// The turns.
    pub items: Vec<TurnEntry>,
    /// Pass it as `cursor` to get the next page. Null on the last page; a live run may request more turns later.
    pub next_cursor: Option<String>,
}

/// A proposer turn.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TurnEntry {
    /// Its number, from 1.
    pub turn: u64,
    #[serde(flatten)]
    pub call: TurnCall,
    /// Whether it asked the proposer to repair the previous answer.
    pub is_repair: bool,
    /// Problems of the previous answer that it asked to repair.
    pub repaired_problems: Vec<Problem>,
    /// Rejected candidates that the proposer saw.
    pub carried_failures: Vec<CarriedFailure>,
    /// Whether its candidates are mutations or merges. Null if the log does not say.
    pub operation: Option<Operation>,
    /// The candidates that the proposals start from.
    pub parent_ids: Vec<String>,
    /// Rows whose traces the proposer saw.
    pub evidence: Vec<String>,
    /// Rows on which the proposals are screened.
    pub minibatch: Vec<String>,
    /// Fields that the proposals may change.
    pub components: Vec<String>,
    /// What became of each proposal, in the order of the answer.
    pub proposals: Vec<ProposalRecord>,
}

/// The call of a proposer turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnCall {
    /// Its call number in the run.
    pub call_id: u64,
    /// The generation that requested proposals.
    pub generation: u32,
    /// The attempt, from 1.
    pub attempt: u32,
    /// Its status.
    pub status: TurnStatus,
    /// Number of requested proposals; once it is completed, of returned ones.
    pub proposal_count: u32,
    /// Number of returned proposals beyond the requested ones, which were ignored.
    pub ignored: u32,
    /// The requested model.
    pub requested_model: Option<String>,
    /// The model that answered.
    pub effective_model: Option<String>,
    /// Usage of the turn. Null until it is settled.
    pub usage: Option<Usage>,
    /// Cost to this run: 0 for a cached answer, null if it is unknown.
    pub cost_usd: Option<f64>,
    /// Whether the answer is from the cache. Null until it is settled.
    pub cached: Option<bool>,
    /// When it was sent. Null if it was not sent.
    pub sent_at: Option<String>,
    /// Milliseconds between sending and the answer.
    pub duration_ms: Option<u64>,
    /// Why it has no answer.
    pub failure: Option<RolloutFailure>,
    /// Sequence number of the event that requested it.
    pub started_sequence: u64,
    /// Sequence number of the event that settled it.
    pub settled_sequence: Option<u64>,
}

/// What became of one proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProposalRecord {
    /// Its index in the answer, from 0.
    pub index: u32,
    /// What became of it.
    pub outcome: ProposalOutcome,
    /// The candidate that it became or repeats.
    pub candidate_id: Option<String>,
    /// The status of this candidate.
    pub candidate_status: Option<CandidateStatus>,
    /// Why it was refused.
    pub problems: Vec<Problem>,
}

/// Selects a turn as the JSON that `TurnCall` deserializes.
const CALL: &str = "json_object('call_id', p.call_id, 'generation', p.generation, 'attempt', p.attempt, 'status', p.status,
    'proposal_count', p.proposal_count, 'ignored', p.ignored, 'requested_model', p.requested_model,
    'effective_model', p.effective_model, 'started_sequence', p.started_sequence, 'settled_sequence', p.settled_sequence,
    'usage', CASE WHEN p.settled_sequence IS NOT NULL THEN json_object('prompt_tokens', p.prompt_tokens, 'completion_tokens',
      p.completion_tokens, 'total_tokens', p.total_tokens, 'cost_usd', p.cost_nano_usd / 1e9) END,
    'cost_usd', CASE p.billing WHEN 'sent' THEN p.cost_nano_usd / 1e9 WHEN 'cached' THEN 0.0 WHEN 'unsent' THEN 0.0 END,
    'cached', json(CASE p.billing = 'cached' WHEN 1 THEN 'true' WHEN 0 THEN 'false' END),
    'failure', CASE WHEN p.failure_class IS NOT NULL
      THEN json_object('class', p.failure_class, 'message', coalesce(p.failure_message, '')) END,
    'sent_at', strftime('%Y-%m-%dT%H:%M:%fZ', c.sent_at / 1000.0, 'unixepoch'),
    'duration_ms', max(c.answered_at - c.sent_at, 0))
  FROM proposer_calls p LEFT JOIN calls c ON c.call_id = p.call_id";

impl Reader {
    /// Returns a page of proposer turns, in the order in which they were requested.
    pub fn turn_page(&self, query: &TurnQuery) -> Result<TurnPage, ReadError> {
        // The cursor is the number of the last turn, which is its place in the order of calls.
        let (after, limit) = query.parts()?;
        self.in_snapshot(|db| {
            let sql = format!("SELECT {CALL} ORDER BY p.call_id LIMIT ?1 OFFSET ?2");
            let mut calls: Vec<TurnCall> = documents(db, "read the turns", &sql, params![limit + 1, after])?;
            let more = calls.len() > limit;
            calls.truncate(limit);
            let items = entries(db, calls, after.unsigned_abs())?;
            let next_cursor = items.last().filter(|_| more).map(|last| last.turn.to_string());
            Ok(TurnPage { items, next_cursor })
        })
    }

    /// Returns one proposer turn by its number, from 1.
    pub fn turn_entry(&self, name: &str) -> Result<TurnEntry, ReadError> {
        let number = name.parse::<u64>().ok().filter(|number| (1..=i64::MAX as u64).contains(number));
        self.in_snapshot(|db| {
            let sql = format!("SELECT {CALL} ORDER BY p.call_id LIMIT 1 OFFSET ?1");
            let calls: Vec<TurnCall> = match number {
                Some(number) => documents(db, "read a turn", &sql, [number - 1])?,
                None => Vec::new(),
            };
            let found = entries(db, calls, number.unwrap_or(1) - 1)?.pop();
            match found {
                Some(found) => Ok(found),
                None => Err(no_turn(db, name)?),
            }
        })
    }
}

fn no_turn(db: &Connection, name: &str) -> Result<ReadError, OptimizerError> {
    let count: u64 =
        first(db, "count the turns", "SELECT count(*) FROM proposer_calls", [], |row| row.get(0))?.unwrap_or(0);
    let hint = match count {
        0 => "The proposer was not asked yet.".to_owned(),
        count => format!("Use a number from 1 to {count}."),
    };
    let message = format!("the run has no proposer turn {}", quoted(name));
    Ok(ReadError::not_found("turn_not_found", "turn", message, hint))
}

/// Completes the turns of a page. `before` is the number of turns before the first one.
fn entries(db: &Connection, calls: Vec<TurnCall>, before: u64) -> Result<Vec<TurnEntry>, OptimizerError> {
    let (Some(begin), Some(end)) = (
        calls.iter().map(|call| call.started_sequence).min(),
        calls.iter().map(|call| call.settled_sequence.unwrap_or(call.started_sequence)).max(),
    ) else {
        return Ok(Vec::new());
    };
    let mut log = TurnLog::read(db, &calls, begin, end)?;
    let entry = |(place, call): (usize, TurnCall)| {
        let (problems, carried_failures) = log.asked.remove(&call.call_id).unwrap_or_default();
        let generation = log.generations.get(&call.generation);
        let names = |read: fn(&GenerationStarted) -> Vec<String>| generation.map(read).unwrap_or_default();
        TurnEntry {
            turn: before + place as u64 + 1,
            is_repair: !problems.is_empty(),
            repaired_problems: problems,
            carried_failures,
            operation: generation.map(|generation| generation.operation),
            parent_ids: names(|generation| generation.parent_ids.iter().map(ToString::to_string).collect()),
            evidence: names(|generation| generation.evidence.iter().map(ToString::to_string).collect()),
            minibatch: names(|generation| generation.minibatch.iter().map(ToString::to_string).collect()),
            components: names(|generation| generation.components.clone()),
            proposals: log.proposals.remove(&call.call_id).map(with_indexes).unwrap_or_default(),
            call,
        }
    };
    let mut entries: Vec<TurnEntry> = calls.into_iter().enumerate().map(entry).collect();
    add_statuses(db, entries.iter_mut().flat_map(|entry| &mut entry.proposals).collect())?;
    Ok(entries)
}

/// Adds to each proposal the status of its candidate.
fn add_statuses(db: &Connection, proposals: Vec<&mut ProposalRecord>) -> Result<(), OptimizerError> {
    let ids: BTreeSet<&str> = proposals.iter().filter_map(|proposal| proposal.candidate_id.as_deref()).collect();
    let sql = "SELECT candidate_id, status FROM candidates WHERE candidate_id IN (SELECT value FROM json_each(?1))";
    let found: Vec<(String, String)> =
        list(db, "read the candidates", sql, [serde_json::json!(ids).to_string()], |row| row.try_into())?;
    let statuses: HashMap<String, String> = found.into_iter().collect();
    for proposal in proposals {
        let status = proposal.candidate_id.as_ref().and_then(|id| statuses.get(id));
        proposal.candidate_status = status.and_then(|word| CandidateStatus::parse(word));
    }
    Ok(())
}

/// A proposal; the log does not name the index of a registered one.
type FoundProposal = (Option<u32>, ProposalOutcome, Option<String>, Vec<Problem>);

/// Orders proposals by their index. The registered ones have the indexes that are left, in order.
fn with_indexes(found: Vec<FoundProposal>) -> Vec<ProposalRecord> {
    let named: BTreeSet<u32> = found.iter().filter_map(|(index, ..)| *index).collect();
    let mut free = (0_u32..).filter(|index| !named.contains(index));
    let mut records: Vec<ProposalRecord> = Vec::with_capacity(found.len());
    for (index, outcome, candidate_id, problems) in found {
        let index = index.or_else(|| free.next()).unwrap_or(u32::MAX);
        records.push(ProposalRecord { index, outcome, candidate_id, candidate_status: None, problems });
    }
    records.sort_by_key(|record| record.index);
    records
}

/// What the log says about the turns of a page.
#[derive(Debug, Default)]
struct TurnLog {
    generations: BTreeMap<u32, GenerationStarted>,
    asked: HashMap<u64, (Vec<Problem>, Vec<CarriedFailure>)>,
    proposals: HashMap<u64, Vec<FoundProposal>>,
}

/// The events that say what became of proposals directly follow the answer. This many events after it are read.
const EVENTS_AFTER_ANSWER: u64 = 1000;

impl TurnLog {
    fn read(db: &Connection, calls: &[TurnCall], begin: u64, end: u64) -> Result<Self, OptimizerError> {
        let mut log = Self::default();
        let wanted: BTreeSet<u64> = calls.iter().map(|call| call.call_id).collect();
        let generations: BTreeSet<u32> = calls.iter().map(|call| call.generation).collect();
        // A generation starts before its turns.
        let started = format!(
            "SELECT fields FROM {MILESTONES} AND type = 'generation.started' AND sequence <= ?1
               AND fields ->> 'generation' BETWEEN ?2 AND ?3"
        );
        let (low, high) = (generations.first().copied(), generations.last().copied());
        let found: Vec<GenerationStarted> = documents(db, "read the generations", &started, params![end, low, high])?;
        let kept = found.into_iter().filter(|found| generations.contains(&found.generation));
        log.generations.extend(kept.map(|found| (found.generation, found)));
        let sql = format!(
            "SELECT sequence, type, unix_millis, fields FROM {MILESTONES} AND type IN ('proposer.started',
               'proposer.completed', 'proposal.rejected', 'candidate.duplicate_skipped', 'candidate.registered')
               AND sequence BETWEEN ?1 AND ?2 ORDER BY sequence"
        );
        let last = end.saturating_add(EVENTS_AFTER_ANSWER);
        let mut answered: HashMap<u32, u64> = HashMap::new();
        for stored in list(db, "read the log", &sql, [begin, last], |row| row.try_into())? {
            log.apply(event(stored)?.event, &wanted, &mut answered);
        }
        Ok(log)
    }

    /// Applies an event. `answered` has the last answered turn of each generation.
    fn apply(&mut self, event: Event, wanted: &BTreeSet<u64>, answered: &mut HashMap<u32, u64>) {
        let (generation, found): (u32, FoundProposal) = match event {
            Event::ProposerStarted(turn) if wanted.contains(&turn.call_id.0) => {
                self.asked.insert(turn.call_id.0, (turn.problems, turn.carried_failures));
                return;
            }
            Event::ProposerCompleted(turn) => {
                answered.insert(turn.generation, turn.call_id.0);
                return;
            }
            Event::ProposalRejected(refused) => {
                (refused.generation, (Some(refused.index), ProposalOutcome::Refused, None, refused.problems))
            }
            Event::DuplicateSkipped(skipped) => {
                let known = Some(skipped.candidate_id.to_string());
                (skipped.generation, (Some(skipped.index), ProposalOutcome::Duplicate, known, Vec::new()))
            }
            Event::CandidateRegistered(registered) => {
                let Some(generation) = registered.generation else { return };
                let made = Some(registered.candidate_id.to_string());
                (generation, (None, ProposalOutcome::Registered, made, Vec::new()))
            }
            _ => return,
        };
        if let Some(turn) = answered.get(&generation).filter(|turn| wanted.contains(turn)) {
            self.proposals.entry(*turn).or_default().push(found);
        }
    }
}

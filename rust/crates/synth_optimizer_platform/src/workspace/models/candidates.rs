//! The candidates of a run, page by page, in the order in which they were registered.

use rusqlite::{Connection, params};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::projector::{read_candidate, totals};
use super::super::reader::Reader;
use super::super::store::int;
use super::candidate_detail::{FieldChange, changes, lineage};
use super::query::{at_one_moment, list, parsed};
use super::refusal::{ReadError, after_cursor, page_size, word};
use synth_optimizer_core::model::candidate_view::Candidate;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::lifecycle::CandidateStatus;
use synth_optimizer_core::model::run_totals::BestMark;

/// Which candidates are wanted.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CandidateQuery {
    /// How many, 1 to 200; 50 if it is not set.
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<i64>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// Only those in this status, such as `accepted` or `rejected_minibatch`.
    pub status: Option<String>,
    /// Only those that are accepted, or only those that are not.
    pub accepted: Option<bool>,
    /// Only those of this generation; the seed belongs to none.
    pub generation: Option<u32>,
}

impl CandidateQuery {
    /// Whether it can be answered, if there is something to read.
    pub fn check(&self) -> Result<(), ReadError> {
        self.parts().map(drop)
    }

    fn parts(&self) -> Result<(i64, usize, Option<CandidateStatus>), ReadError> {
        let status = word("status", self.status.as_deref(), CandidateStatus::from_word, CandidateStatus::WORDS)?;
        Ok((after_cursor(self.cursor.as_deref())?, page_size(self.limit, 50, 200)?, status))
    }
}

/// Candidates in the order in which they were registered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct CandidatePage {
    /// The candidates.
    pub items: Vec<CandidateEntry>,
    /// Where the next page begins; null after the last one. A run that goes on may register more later.
    pub next_cursor: Option<String>,
}

/// A candidate, whom it comes from, and whether it is the best.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CandidateEntry {
    #[serde(flatten)]
    pub candidate: Candidate,
    /// First parents from its own parent back to the seed.
    pub lineage: Vec<String>,
    /// The texts of the changed fields before and after.
    pub delta: Vec<FieldChange>,
    /// Whether it is the best candidate so far.
    pub is_best: bool,
}

impl Reader {
    /// The candidates of the run, in the order in which they were registered.
    pub fn candidate_page(&self, query: &CandidateQuery) -> Result<CandidatePage, ReadError> {
        let (after, limit, status) = query.parts()?;
        let sql = "SELECT record FROM candidates
             WHERE registered > ?1 AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR (status = 'accepted') = ?3)
               AND (?4 IS NULL OR generation = ?4)
             ORDER BY registered LIMIT ?5";
        let values =
            params![after, status.map(CandidateStatus::word), query.accepted, query.generation, int(limit as u64 + 1)];
        at_one_moment(self, |db| {
            let mut found = list(db, "read the candidates", sql, values, |row| row.get::<_, String>(0))?;
            let more = found.len() > limit;
            found.truncate(limit);
            let best = totals(db)?.best;
            let read = |text: String| entry(db, parsed("read the candidates", &text)?, best.as_ref());
            let items = found.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
            let next_cursor = items.last().filter(|_| more).map(|last| last.candidate.registered_sequence.to_string());
            Ok(CandidatePage { items, next_cursor })
        })
    }
}

/// One candidate, or that there is none.
pub(super) fn candidate(db: &Connection, id: &str) -> Result<Option<CandidateEntry>, OptimizerError> {
    let Some(candidate) = read_candidate(db, id)? else { return Ok(None) };
    entry(db, candidate, totals(db)?.best.as_ref()).map(Some)
}

fn entry(db: &Connection, candidate: Candidate, best: Option<&BestMark>) -> Result<CandidateEntry, OptimizerError> {
    let parent = candidate.parent_id.as_ref().map(CandidateId::as_str);
    Ok(CandidateEntry {
        lineage: lineage(db, parent)?,
        delta: changes(db, parent, &candidate.changed_fields, &candidate.payload)?,
        is_best: best.is_some_and(|best| best.candidate_id == candidate.candidate_id),
        candidate,
    })
}

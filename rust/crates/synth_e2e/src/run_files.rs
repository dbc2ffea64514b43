//! The files of a run, as tests read and compare them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::envelope::Envelope;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::ids::CallId;
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::RolloutQuery;

/// Files that must be identical for equal runs, no matter how often they were interrupted.
pub const COMPARED_FILES: [&str; 4] =
    ["events.normalized.jsonl", "candidate_registry.json", "frontier.json", "best_candidate.json"];

/// The directory of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFiles {
    pub directory: Utf8PathBuf,
    pub run_id: String,
}

impl RunFiles {
    pub fn new(output_dir: &Utf8Path, run_id: &str) -> Self {
        Self { directory: output_dir.join(run_id), run_id: run_id.to_owned() }
    }

    /// Reads a file and replaces the run id by `RUN`, so that the files of two runs can be compared. The run id must not
    /// occur in the file with another meaning.
    pub fn comparable(&self, name: &str) -> io::Result<String> {
        let path = self.directory.join(name);
        let text =
            std::fs::read_to_string(&path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        Ok(text.replace(&self.run_id, "RUN"))
    }

    /// Returns the path of a file of the run.
    pub fn path(&self, name: &str) -> Utf8PathBuf {
        self.directory.join(name)
    }

    /// Reads a file of the run.
    pub fn read(&self, name: &str) -> io::Result<String> {
        std::fs::read_to_string(self.path(name))
    }

    /// Reads the event feed.
    pub fn events(&self) -> io::Result<Vec<Event>> {
        let text = std::fs::read_to_string(self.directory.join("events.jsonl"))?;
        text.lines()
            .enumerate()
            .map(|(index, line)| Envelope::from_line(line, index + 1).map(|envelope| envelope.event))
            .collect::<Result<_, _>>()
            .map_err(io::Error::other)
    }

    /// Returns the rollouts according to the event feed.
    pub fn ledger(&self) -> io::Result<RolloutLedger> {
        Ok(RolloutLedger::of(&self.rollout_ids()?, &self.events()?))
    }

    /// Returns the ids of all rollouts that were sent, by call.
    fn rollout_ids(&self) -> io::Result<BTreeMap<CallId, String>> {
        let reader = Reader::open(self.path("workspace.sqlite").as_std_path()).map_err(io::Error::other)?;
        let mut query = RolloutQuery { limit: Some(200), ..RolloutQuery::default() };
        let mut ids = BTreeMap::new();
        loop {
            let page = reader.rollout_page(&query).map_err(|error| io::Error::other(format!("{error:?}")))?;
            ids.extend(page.items.into_iter().filter_map(|item| Some((CallId(item.call_id), item.rollout_id?))));
            match page.next_cursor {
                Some(cursor) => query.cursor = Some(cursor),
                None => return Ok(ids),
            }
        }
    }
}

/// Rollout ids by their outcome in the event feed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RolloutLedger {
    /// All requested rollouts that were sent.
    pub requested: BTreeSet<String>,
    /// Rollouts that were sent to the container.
    pub live: BTreeSet<String>,
    /// Rollouts of unknown outcome that were charged and sent again.
    pub unknown_outcomes: u64,
    pub resumed: u64,
}

impl RolloutLedger {
    /// Builds the ledger of a log. `ids` are the ids of the rollouts that were sent.
    pub fn of(ids: &BTreeMap<CallId, String>, events: &[Event]) -> Self {
        let mut ledger = Self::default();
        for event in events {
            match event {
                Event::RolloutsRequested(batch) => {
                    let first = batch.first_call_id.0;
                    let calls = (first..first + batch.row_ids.len() as u64).map(CallId);
                    ledger.requested.extend(calls.filter_map(|call_id| ids.get(&call_id).cloned()));
                }
                Event::RolloutFinished(done) if !done.cached => ledger.live.extend(ids.get(&done.call_id).cloned()),
                Event::RolloutFailed(failed) if !failed.cached => {
                    let sent = !matches!(failed.class, FailureClass::NotSent | FailureClass::Withdrawn);
                    ledger.live.extend(ids.get(&failed.call_id).filter(|_| sent).cloned());
                }
                Event::OutcomeUnknown(lost) => ledger.unknown_outcomes += u64::from(lost.kind == CallKind::Rollout),
                Event::RunResumed(_) => ledger.resumed += 1,
                _ => {}
            }
        }
        ledger
    }
}

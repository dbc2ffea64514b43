//! What a run leaves in its directory, as far as tests compare it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::envelope::Envelope;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::ids::{RequestId, RolloutIdentity};

/// Files that must be the same however the run was carried out.
pub const COMPARED: [&str; 4] =
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

    /// A file as text, with the run's name written as `RUN`: that is all that two runs may differ in. The name must be
    /// one that stands for nothing else in a file.
    pub fn comparable(&self, name: &str) -> io::Result<String> {
        let path = self.directory.join(name);
        let text =
            std::fs::read_to_string(&path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        Ok(text.replace(&self.run_id, "RUN"))
    }

    /// The place of a file of the run.
    pub fn path(&self, name: &str) -> Utf8PathBuf {
        self.directory.join(name)
    }

    /// A file of the run.
    pub fn read(&self, name: &str) -> io::Result<String> {
        std::fs::read_to_string(self.path(name))
    }

    /// The event feed.
    pub fn events(&self) -> io::Result<Vec<Event>> {
        let text = std::fs::read_to_string(self.directory.join("events.jsonl"))?;
        text.lines()
            .enumerate()
            .map(|(index, line)| Envelope::from_line(line, index + 1).map(|envelope| envelope.event))
            .collect::<Result<_, _>>()
            .map_err(io::Error::other)
    }

    /// What the log says about rollouts.
    pub fn ledger(&self) -> io::Result<Ledger> {
        Ok(Ledger::of(&self.run_id, &self.events()?))
    }
}

/// Rollout ids by what the log says of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger {
    /// Every rollout that was wanted.
    pub requested: BTreeSet<String>,
    /// Those that the container was asked for and may have run.
    pub live: BTreeSet<String>,
    /// Calls whose outcome nobody knew when the run was resumed.
    pub unknown_outcomes: u64,
    pub resumed: u64,
}

impl Ledger {
    pub fn of(run_id: &str, events: &[Event]) -> Self {
        let mut ledger = Self::default();
        let mut ids: BTreeMap<RequestId, String> = BTreeMap::new();
        for event in events {
            match event {
                Event::RolloutsRequested(batch) => {
                    for (row, request) in batch.row_ids.iter().zip(batch.first_request.0..) {
                        let identity = RolloutIdentity {
                            run_id,
                            candidate: &batch.candidate_id,
                            row,
                            stage: batch.stage.word(),
                            replicate: batch.replicate,
                            attempt: batch.attempt,
                        };
                        ids.insert(RequestId(request), identity.rollout_id());
                        ledger.requested.insert(identity.rollout_id());
                    }
                }
                Event::RolloutFinished(done) if !done.cached => ledger.live.extend(ids.get(&done.request).cloned()),
                Event::RolloutFailed(failed) if !failed.cached => {
                    let sent = !matches!(failed.class, FailureClass::NotSent | FailureClass::Withdrawn);
                    ledger.live.extend(ids.get(&failed.request).filter(|_| sent).cloned());
                }
                Event::RunResumed(resumed) => {
                    ledger.unknown_outcomes += u64::from(resumed.unknown_outcomes);
                    ledger.resumed += 1;
                }
                _ => {}
            }
        }
        ledger
    }
}

//! The log as files while the run goes on: `events.jsonl`, which is brought back in line with the log after a crash,
//! `events.normalized.jsonl`, which is what two runs of one config have in common, and the fold that the results are made of.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

use camino::{Utf8Path, Utf8PathBuf};

use super::atomic::AtomicFile;
use super::file_error;
use super::run_dir::RunPaths;
use crate::warn_if_err;
use crate::workspace::StoredEvent;
use synth_optimizer_core::model::envelope::write_normalized_line;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::message;
use synth_optimizer_core::model::run_view::RunView;

/// Takes one event after the other; an error ends the reading. A log is given as a function that shows it to one of
/// these from its first event on, such as `|each| workspace.log(0, each)`.
pub type EventVisitor<'a> = &'a mut dyn FnMut(StoredEvent) -> Result<(), OptimizerError>;

/// Lines are gathered to this many bytes while a file is repaired.
const FLUSH_BYTES: usize = 1 << 20;

/// The feeds of a run and what its log came to so far.
#[derive(Debug)]
pub struct FeedWriter {
    run_id: String,
    path: Utf8PathBuf,
    file: File,
    /// Bytes of whole lines in the file.
    length: u64,
    /// Lines that are written next.
    buffer: Vec<u8>,
    repair: FeedRepair,
    /// It grows with the log and takes its name when the run is over.
    normalized: AtomicFile,
    view: RunView,
}

/// What had to be done so that the file says what the log says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FeedRepair {
    /// Lines that were right.
    pub kept: u64,
    /// Bytes that were not: a torn line, damage, or lines that the log does not know.
    pub cut_bytes: u64,
    /// Lines that were written from the log.
    pub written: u64,
}

impl FeedWriter {
    /// Opens the feed, makes it equal to the log and takes in the log; `log` shows the events from the first on.
    ///
    /// The file is kept as far as it agrees; from the first line that does not, it is written anew.
    pub fn open(
        paths: &RunPaths,
        log: impl FnOnce(EventVisitor<'_>) -> Result<(), OptimizerError>,
    ) -> Result<Self, OptimizerError> {
        let path = paths.events();
        let opened = OpenOptions::new().create(true).read(true).write(true).truncate(false).mode(0o600).open(&path);
        let mut feed_writer = Self {
            file: opened.map_err(file_error::io(&path, "opening"))?,
            run_id: paths.run_id().to_owned(),
            path,
            length: 0,
            buffer: Vec::new(),
            repair: FeedRepair::default(),
            normalized: AtomicFile::create(&paths.normalized_events())?,
            view: RunView::default(),
        };
        feed_writer.repair_from_log(log)?;
        Ok(feed_writer)
    }

    /// What opening had to do.
    pub fn repair(&self) -> FeedRepair {
        self.repair
    }

    /// Takes in the events that follow, in one write. They must follow the last one without a gap.
    pub fn append(&mut self, events: &[StoredEvent]) -> Result<(), OptimizerError> {
        events.iter().try_for_each(|stored| self.push(stored))?;
        self.flush()
    }

    /// Closes the feed, gives the normalized one its name, and returns what the log came to.
    pub fn finish(self) -> Result<RunView, OptimizerError> {
        self.normalized.commit()?;
        Ok(self.view)
    }

    /// Keeps the lines that agree with the log, cuts the rest, and writes what is missing.
    fn repair_from_log(
        &mut self,
        log: impl FnOnce(EventVisitor<'_>) -> Result<(), OptimizerError>,
    ) -> Result<(), OptimizerError> {
        let path = self.path.clone();
        let failed = file_error::io(&path, "reading");
        let on_disk = self.file.metadata().map_err(failed)?.len();
        let mut reader = BufReader::with_capacity(1 << 16, self.file.try_clone().map_err(failed)?);
        let mut found = Vec::new();
        let mut agrees = true;
        log(&mut |stored| {
            let before = self.buffer.len();
            self.push(&stored)?;
            if agrees {
                found.clear();
                reader.read_until(b'\n', &mut found).map_err(failed)?;
                if found == self.buffer[before..] {
                    self.length += found.len() as u64;
                    self.repair.kept += 1;
                    self.buffer.truncate(before);
                    return Ok(());
                }
                agrees = false;
                self.truncate_to_kept(on_disk)?;
            }
            self.repair.written += 1;
            if self.buffer.len() >= FLUSH_BYTES { self.flush() } else { Ok(()) }
        })?;
        if agrees {
            self.truncate_to_kept(on_disk)?;
        }
        self.flush()
    }

    /// Ends the file after the last line that is right.
    fn truncate_to_kept(&mut self, on_disk: u64) -> Result<(), OptimizerError> {
        self.repair.cut_bytes = on_disk - self.length;
        let cut = self.file.set_len(self.length).and_then(|()| self.file.seek(SeekFrom::Start(self.length)));
        cut.map(drop).map_err(file_error::io(&self.path, "repairing"))
    }

    /// Takes in an event, which must follow the last one, and adds its line to what is written next.
    fn push(&mut self, stored: &StoredEvent) -> Result<(), OptimizerError> {
        if let Some(last) = self.view.totals.last_sequence.filter(|last| last + 1 != stored.sequence) {
            let message = format!("event {} follows event {last} in {}", stored.sequence, self.path);
            return Err(OptimizerError::new(ErrorCode::Invariant, message));
        }
        let message = message(&stored.event);
        let line = stored.line(&self.run_id, &message)?;
        let mut normalized = Vec::new();
        write_normalized_line(&stored.event, &message, &mut normalized).map_err(file_error::json("an event"))?;
        let written = self.normalized.write_all(&normalized);
        written.map_err(file_error::io(self.normalized.target(), "writing"))?;
        self.buffer.extend_from_slice(line.as_bytes());
        self.buffer.push(b'\n');
        self.view.apply(stored.sequence, stored.unix_millis, &stored.event);
        Ok(())
    }

    /// Writes what was added, at once.
    fn flush(&mut self) -> Result<(), OptimizerError> {
        let written = self.file.write_all(&self.buffer);
        if written.is_ok() {
            self.length += self.buffer.len() as u64;
        } else {
            // Half a line helps nobody; if it stays, the next opening cuts it.
            warn_if_err!(self.file.set_len(self.length), "half a line stays in the feed");
        }
        self.buffer.clear();
        written.map_err(file_error::io(&self.path, "writing"))
    }
}

/// The lines of a feed that are not blank, with their numbers; the feed is not held in memory.
pub(super) fn numbered_lines(
    path: &Utf8Path,
) -> Result<impl Iterator<Item = Result<(usize, String), OptimizerError>>, OptimizerError> {
    let file = File::open(path).map_err(file_error::io(path, "opening"))?;
    let lines = (1..).zip(BufReader::new(file).lines());
    let lines = lines.map(move |(number, line)| Ok((number, line.map_err(file_error::io(path, "reading"))?)));
    Ok(lines.filter(|line| line.as_ref().map_or(true, |(_, text)| !text.trim().is_empty())))
}

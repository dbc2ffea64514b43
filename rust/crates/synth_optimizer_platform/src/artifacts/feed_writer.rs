//! Writes the feeds of a run during the run: `events.jsonl`, which is repaired from the log after a crash, and
//! `events.normalized.jsonl`, which is equal for two runs of one config. It also folds the log into the `RunView` from which
//! the results are made.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

use camino::{Utf8Path, Utf8PathBuf};

use super::run_dir::RunPaths;
use crate::atomic_file::AtomicFile;
use crate::file_error;
use crate::warn_if_err;
use crate::workspace::StoredEvent;
use synth_optimizer_core::model::envelope::write_normalized_line;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::message;
use synth_optimizer_core::model::run_view::RunView;

/// Receives the events of a log in order. An error ends the reading. A log is passed as a function that calls the visitor
/// for each event from the first on, such as `|each| workspace.log(0, each)`.
pub type EventVisitor<'a> = &'a mut dyn FnMut(StoredEvent) -> Result<(), OptimizerError>;

/// How many bytes of lines are buffered before a write during a repair.
const FLUSH_BYTES: usize = 1 << 20;

/// The open feeds of a run, and the view of its log so far.
#[derive(Debug)]
pub struct FeedWriter {
    run_id: String,
    path: Utf8PathBuf,
    file: File,
    /// Bytes of complete lines in the file.
    length: u64,
    /// Lines that the next write appends.
    buffer: Vec<u8>,
    repair: FeedRepair,
    /// The normalized feed. It gets its name when the run ends.
    normalized: AtomicFile,
    view: RunView,
}

/// How the feed was repaired to match the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FeedRepair {
    /// Lines that matched the log.
    pub kept: u64,
    /// Bytes that were cut off: a torn line, damage, or lines that are not in the log.
    pub cut_bytes: u64,
    /// Lines that were written from the log.
    pub written: u64,
}

impl FeedWriter {
    /// Opens the feed and repairs it from the log. `log` calls its visitor with the events from the first on.
    ///
    /// Lines that match the log are kept. From the first line that differs, the file is rewritten.
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

    /// Returns how the feed was repaired when it was opened.
    pub fn repair(&self) -> FeedRepair {
        self.repair
    }

    /// Appends events in one write. They must continue the feed without a gap.
    pub fn append(&mut self, events: &[StoredEvent]) -> Result<(), OptimizerError> {
        events.iter().try_for_each(|stored| self.push(stored))?;
        self.flush()
    }

    /// Returns the view of the log so far.
    pub fn view(&self) -> &RunView {
        &self.view
    }

    /// Closes the feeds, renames the normalized one to its final name, and returns the view of the log.
    pub fn finish(self) -> Result<RunView, OptimizerError> {
        self.normalized.commit()?;
        Ok(self.view)
    }

    /// Closes the feeds, removes the normalized one, which is made again from the log, and returns the view of the log.
    pub fn discard(self) -> RunView {
        self.view
    }

    /// Keeps the lines that match the log, cuts off the rest, and writes the missing ones.
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

    /// Truncates the file after the last line that matches the log.
    fn truncate_to_kept(&mut self, on_disk: u64) -> Result<(), OptimizerError> {
        self.repair.cut_bytes = on_disk - self.length;
        let cut = self.file.set_len(self.length).and_then(|()| self.file.seek(SeekFrom::Start(self.length)));
        cut.map(drop).map_err(file_error::io(&self.path, "repairing"))
    }

    /// Adds the line of an event to the buffer and applies the event to the view. It must follow the last event.
    fn push(&mut self, stored: &StoredEvent) -> Result<(), OptimizerError> {
        if let Some(last) = self.view.totals.last_sequence.filter(|last| last + 1 != stored.sequence) {
            let message = format!("event {} follows event {last} in {}", stored.sequence, self.path);
            return Err(OptimizerError::new(ErrorCode::Invariant, message));
        }
        let message = message(&stored.event);
        let before = self.buffer.len();
        let encoded = write_normalized_line(&stored.event, &message, &mut self.buffer);
        let written = self.normalized.write_all(&self.buffer[before..]);
        self.buffer.truncate(before);
        encoded.map_err(file_error::json("an event"))?;
        written.map_err(file_error::io(self.normalized.target(), "writing"))?;
        stored.write_line(&self.run_id, &message, &mut self.buffer)?;
        self.buffer.push(b'\n');
        self.view.apply(stored.sequence, stored.unix_millis, &stored.event);
        Ok(())
    }

    /// Writes the buffered lines.
    fn flush(&mut self) -> Result<(), OptimizerError> {
        let written = self.file.write_all(&self.buffer);
        if written.is_ok() {
            self.length += self.buffer.len() as u64;
        } else {
            // Removes a partial line. If this fails, the next opening cuts it off.
            warn_if_err!(self.file.set_len(self.length), "removing a partial line from the feed failed");
        }
        self.buffer.clear();
        written.map_err(file_error::io(&self.path, "writing"))
    }
}

/// Returns the lines of a feed that are not blank, with their numbers. Reads them one at a time.
pub(super) fn numbered_lines(
    path: &Utf8Path,
) -> Result<impl Iterator<Item = Result<(usize, String), OptimizerError>>, OptimizerError> {
    let file = File::open(path).map_err(file_error::io(path, "opening"))?;
    let lines = (1..).zip(BufReader::new(file).lines());
    let lines = lines.map(move |(number, line)| Ok((number, line.map_err(file_error::io(path, "reading"))?)));
    Ok(lines.filter(|line| line.as_ref().map_or(true, |(_, text)| !text.trim().is_empty())))
}

//! `events.jsonl`: appended to with every batch, and brought back in line with the log after a crash.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

use camino::Utf8PathBuf;

use super::fault;
use super::line::LineWriter;
use super::log::Each;
use super::run_dir::RunPaths;
use crate::warn_if_err;
use crate::workspace::Stored;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::message;

/// Lines are gathered to this many bytes while a file is repaired.
const CHUNK: usize = 1 << 20;

/// The feed of a run, open for appending.
#[derive(Debug)]
pub struct Feed {
    path: Utf8PathBuf,
    file: File,
    lines: LineWriter,
    /// Bytes of whole lines.
    length: u64,
    last: Option<u64>,
    repair: Repair,
    buffer: Vec<u8>,
}

/// What had to be done so that the file says what the log says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repair {
    /// Lines that were right.
    pub kept: u64,
    /// Bytes that were not: a torn line, damage, or lines that the log does not know.
    pub cut_bytes: u64,
    /// Lines that were written from the log.
    pub written: u64,
}

impl Feed {
    /// Opens the feed and makes it equal to the log; `log` shows the events from the first on.
    ///
    /// The file is kept as far as it agrees; from the first line that does not, it is written anew.
    pub fn open(
        paths: &RunPaths,
        log: impl FnOnce(Each<'_>) -> Result<(), OptimizerError>,
    ) -> Result<Self, OptimizerError> {
        let path = paths.events();
        let opened = OpenOptions::new().create(true).read(true).write(true).truncate(false).mode(0o600).open(&path);
        let file = opened.map_err(|error| fault::io(&path, "opening", error))?;
        let mut feed = Self {
            path,
            file,
            lines: LineWriter::new(paths.run_id()),
            length: 0,
            last: None,
            repair: Repair::default(),
            buffer: Vec::new(),
        };
        feed.align(log)?;
        Ok(feed)
    }

    /// What opening had to do.
    pub fn repair(&self) -> Repair {
        self.repair
    }

    /// Appends events in one write. They must follow the last one without a gap.
    pub fn append(&mut self, events: &[Stored]) -> Result<(), OptimizerError> {
        for stored in events {
            self.push(stored, &message(&stored.event))?;
        }
        self.flush()
    }

    /// Keeps the lines that agree with the log, cuts the rest, and writes what is missing.
    fn align(&mut self, log: impl FnOnce(Each<'_>) -> Result<(), OptimizerError>) -> Result<(), OptimizerError> {
        let on_disk = self.file.metadata().map_err(|error| fault::io(&self.path, "reading", error))?.len();
        let copy = self.file.try_clone().map_err(|error| fault::io(&self.path, "reading", error))?;
        let mut reader = BufReader::with_capacity(1 << 16, copy);
        let mut found = Vec::new();
        let mut agrees = true;
        log(&mut |stored| {
            let before = self.buffer.len();
            self.push(&stored, &message(&stored.event))?;
            if agrees {
                found.clear();
                let read = reader.read_until(b'\n', &mut found);
                read.map_err(|error| fault::io(&self.path, "reading", error))?;
                if found == self.buffer[before..] {
                    self.length += found.len() as u64;
                    self.repair.kept += 1;
                    self.buffer.truncate(before);
                    return Ok(());
                }
                agrees = false;
                self.cut(on_disk)?;
            }
            self.repair.written += 1;
            if self.buffer.len() >= CHUNK {
                self.flush()?;
            }
            Ok(())
        })?;
        if agrees {
            self.cut(on_disk)?;
        }
        self.flush()
    }

    /// Ends the file after the last line that is right.
    fn cut(&mut self, on_disk: u64) -> Result<(), OptimizerError> {
        self.repair.cut_bytes = on_disk - self.length;
        self.file.set_len(self.length).map_err(|error| fault::io(&self.path, "repairing", error))?;
        let moved = self.file.seek(SeekFrom::Start(self.length));
        moved.map(|_| ()).map_err(|error| fault::io(&self.path, "repairing", error))
    }

    /// Adds an event to what is written next. It must follow the last one; `message` is the event in words.
    pub(super) fn push(&mut self, stored: &Stored, message: &str) -> Result<(), OptimizerError> {
        if let Some(last) = self.last.filter(|last| last + 1 != stored.sequence) {
            return Err(OptimizerError::new(
                ErrorCode::Invariant,
                format!("event {} follows event {last} in {}", stored.sequence, self.path),
            ));
        }
        let before = self.buffer.len();
        if let Err(error) = self.lines.push(stored, message, &mut self.buffer) {
            self.buffer.truncate(before);
            return Err(error);
        }
        self.last = Some(stored.sequence);
        Ok(())
    }

    /// Writes what was added, at once.
    pub(super) fn flush(&mut self) -> Result<(), OptimizerError> {
        if let Err(error) = self.file.write_all(&self.buffer) {
            // Half a line helps nobody; if it stays, the next opening cuts it.
            warn_if_err!(self.file.set_len(self.length), "half a line stays in the feed");
            self.buffer.clear();
            return Err(fault::io(&self.path, "writing", error));
        }
        self.length += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

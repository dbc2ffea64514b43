//! `events replay`: the feed of a run as a readable story.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use super::event_lines::{EventFormatter, EventLine, span};
use super::fault;
use synth_optimizer_core::model::envelope::{Envelope, unix_millis_of};
use synth_optimizer_core::model::error::OptimizerError;

/// The whole story of a feed.
pub fn events_replay(path: &Utf8Path) -> Result<String, OptimizerError> {
    let mut story = String::new();
    for line in Replay::open(path)? {
        story.push_str(&line?);
        story.push('\n');
    }
    Ok(story)
}

/// The lines of a story, one after the other; the feed is not held in memory.
#[derive(Debug)]
pub struct Replay {
    path: Utf8PathBuf,
    reader: BufReader<File>,
    number: usize,
    events: u64,
    formatter: EventFormatter,
    /// The first and the latest moment.
    begin: Option<u64>,
    latest: u64,
    waiting: VecDeque<String>,
    done: bool,
}

impl Replay {
    pub fn open(path: &Utf8Path) -> Result<Self, OptimizerError> {
        let file = File::open(path).map_err(|error| fault::io(path, "opening", error))?;
        Ok(Self {
            path: path.to_owned(),
            reader: BufReader::new(file),
            number: 0,
            events: 0,
            formatter: EventFormatter::default(),
            begin: None,
            latest: 0,
            waiting: VecDeque::new(),
            done: false,
        })
    }

    /// Reads one line of the feed, or ends the story.
    fn step(&mut self) -> Result<(), OptimizerError> {
        let mut text = String::new();
        self.number += 1;
        let read = self.reader.read_line(&mut text).map_err(|error| fault::io(&self.path, "reading", error))?;
        if read == 0 {
            self.done = true;
            let told = self.formatter.close(self.events);
            self.say(told);
        } else if !text.trim().is_empty() {
            let envelope = self.envelope(text.trim_end())?;
            if self.begin.is_none() {
                self.waiting.push_back(format!("run {} at {}", envelope.run_id, envelope.ts));
            }
            self.events += 1;
            self.latest = unix_millis_of(&envelope.ts).unwrap_or(self.latest);
            self.begin.get_or_insert(self.latest);
            let told = self.formatter.format(self.latest, &envelope.event);
            self.say(told);
        }
        Ok(())
    }

    fn say(&mut self, told: Vec<EventLine>) {
        let since = self.latest.saturating_sub(self.begin.unwrap_or(self.latest));
        self.waiting.extend(told.into_iter().map(|EventLine { generation, text, .. }| {
            let inside = generation.map_or(String::new(), |generation| format!("  g{generation} "));
            format!("{:>8}  {inside}{text}", span(since))
        }));
    }

    fn envelope(&self, line: &str) -> Result<Envelope, OptimizerError> {
        let normalized = || serde_json::from_str::<Value>(line).is_ok_and(|value| value.get("version").is_none());
        Envelope::from_line(line, self.number).map_err(|error| {
            let at = OptimizerError { message: format!("{}: {}", self.path, error.message), ..error };
            if normalized() {
                at.with_hint("A normalized feed has no times and leaves events out; replay events.jsonl.")
            } else {
                at
            }
        })
    }
}

impl Iterator for Replay {
    type Item = Result<String, OptimizerError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.waiting.is_empty() && !self.done {
            if let Err(error) = self.step() {
                self.done = true;
                return Some(Err(error));
            }
        }
        self.waiting.pop_front().map(Ok)
    }
}

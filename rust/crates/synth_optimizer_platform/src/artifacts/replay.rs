//! `events replay`: the feed of a run as a readable story.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use super::fault;
use super::story::{Story, Told};
use crate::model::envelope::Envelope;
use crate::model::error::{ErrorCode, OptimizerError};

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
    story: Story,
    /// The first and the latest moment.
    begin: Option<u64>,
    latest: u64,
    waiting: VecDeque<String>,
    done: bool,
}

impl Replay {
    pub fn open(path: &Utf8Path) -> Result<Self, OptimizerError> {
        let file = File::open(path).map_err(|error| fault::io(path, "opening", &error))?;
        Ok(Self {
            path: path.to_owned(),
            reader: BufReader::new(file),
            number: 0,
            events: 0,
            story: Story::default(),
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
        let read = self.reader.read_line(&mut text).map_err(|error| fault::io(&self.path, "reading", &error))?;
        if read == 0 {
            self.done = true;
            let told = self.story.close(self.events);
            self.say(told);
        } else if !text.trim().is_empty() {
            let envelope = self.envelope(text.trim_end())?;
            if self.begin.is_none() {
                self.waiting.push_back(format!("run {} at {}", envelope.run_id, envelope.ts));
            }
            self.events += 1;
            self.latest = unix_millis(&envelope.ts).unwrap_or(self.latest);
            self.begin.get_or_insert(self.latest);
            let told = self.story.tell(&envelope.event, self.latest);
            self.say(told);
        }
        Ok(())
    }

    fn say(&mut self, told: Vec<Told>) {
        let since = self.latest.saturating_sub(self.begin.unwrap_or(self.latest));
        self.waiting.extend(told.into_iter().map(|Told { generation, text }| {
            let inside = generation.map_or(String::new(), |generation| format!("  g{generation} "));
            format!("{:>8}  {inside}{text}", elapsed(since))
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

/// `12.3s`, `4m07s`, `2h05m`
fn elapsed(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..60 => format!("{}.{}s", seconds, millis % 1000 / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// The moment of a line, as milliseconds since 1970; the inverse of `envelope::rfc3339`.
fn unix_millis(ts: &str) -> Result<u64, OptimizerError> {
    let part = |from: usize, to: usize| ts.get(from..to).and_then(|digits| digits.parse::<u64>().ok());
    let parts = (part(0, 4), part(5, 7), part(8, 10), part(11, 13), part(14, 16), part(17, 19), part(20, 23));
    let (Some(year), Some(month), Some(day), Some(hour), Some(minute), Some(second), Some(millis)) = parts else {
        return Err(OptimizerError::new(ErrorCode::Json, format!("{ts:?} is no moment")));
    };
    // Days of the civil calendar, counted in years that begin on 1 March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.saturating_sub(1), month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    let since_1970 = days.saturating_sub(719_469);
    Ok((((since_1970 * 24 + hour) * 60 + minute) * 60 + second) * 1000 + millis)
}

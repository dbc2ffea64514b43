//! `events replay`: renders the feed of a run as readable text.

use camino::Utf8Path;
use serde_json::Value;

use super::event_lines::{EventFormatter, EventLine, span};
use super::feed_writer::numbered_lines;
use synth_optimizer_core::model::envelope::{Envelope, unix_millis_of};
use synth_optimizer_core::model::error::OptimizerError;

/// Returns the readable text of a feed.
pub fn events_replay(path: &Utf8Path) -> Result<String, OptimizerError> {
    let (mut story, mut formatter, mut events) = (String::new(), EventFormatter::default(), 0);
    // Times of the first and the latest event.
    let (mut begin, mut latest) = (None, 0);
    let tell = |story: &mut String, told: Vec<EventLine>, since: u64| {
        for EventLine { generation, text, .. } in told {
            let inside = generation.map_or(String::new(), |generation| format!("  g{generation} "));
            story.push_str(&format!("{:>8}  {inside}{text}\n", span(since)));
        }
    };
    for line in numbered_lines(path)? {
        let (number, text) = line?;
        let envelope = envelope(path, number, &text)?;
        if begin.is_none() {
            story.push_str(&format!("run {} at {}\n", envelope.run_id, envelope.ts));
        }
        events += 1;
        latest = unix_millis_of(&envelope.ts).unwrap_or(latest);
        let since = latest.saturating_sub(*begin.get_or_insert(latest));
        tell(&mut story, formatter.format(latest, &envelope.event), since);
    }
    tell(&mut story, formatter.close(events), latest.saturating_sub(begin.unwrap_or(latest)));
    Ok(story)
}

fn envelope(path: &Utf8Path, number: usize, line: &str) -> Result<Envelope, OptimizerError> {
    let normalized = || serde_json::from_str::<Value>(line).is_ok_and(|value| value.get("version").is_none());
    Envelope::from_line(line, number).map_err(|error| {
        let at = OptimizerError { message: format!("{path}: {}", error.message), ..error };
        if normalized() {
            at.with_hint("Replay events.jsonl; a normalized feed has no times and not all events.")
        } else {
            at
        }
    })
}

//! `events compare`: checks whether two feeds describe the same search, and finds the first difference.

use camino::Utf8Path;
use serde_json::Value;

use super::feed_writer::numbered_lines;
use synth_optimizer_core::model::canonical::canonical_json;
use synth_optimizer_core::model::envelope::normalize;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Compares two feeds, raw or normalized. Fails at the first difference. Raw feeds are normalized line by line.
pub fn events_compare(left: &Utf8Path, right: &Utf8Path) -> Result<(), OptimizerError> {
    let (mut lefts, mut rights) = (normalized_events(left)?, normalized_events(right)?);
    for number in 1_u64.. {
        match (lefts.next().transpose()?, rights.next().transpose()?) {
            (None, None) => break,
            (Some(ours), Some(theirs)) if ours.text == theirs.text => {}
            (Some(ours), Some(theirs)) => return Err(differ(number, (left, &ours), (right, &theirs))),
            (Some(more), None) => return Err(ends(number, right, (left, &more))),
            (None, Some(more)) => return Err(ends(number, left, (right, &more))),
        }
    }
    Ok(())
}

/// An event of a normalized feed.
#[derive(Debug)]
struct NormalizedEvent {
    /// Its line number in the file.
    line: usize,
    value: Value,
    text: String,
}

fn normalized_events(
    path: &Utf8Path,
) -> Result<impl Iterator<Item = Result<NormalizedEvent, OptimizerError>>, OptimizerError> {
    let normal = move |(line, text): (usize, String)| {
        let event =
            serde_json::from_str(&text).map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "not JSON", error));
        let value = event.and_then(normalize).map_err(|error| {
            let message = format!("{path} line {line}: {}", error.message);
            OptimizerError { message, ..error }
        })?;
        Ok(value.map(|value| NormalizedEvent { line, text: canonical_json(&value), value }))
    };
    Ok(numbered_lines(path)?.filter_map(move |line| line.and_then(normal).transpose()))
}

fn differ(number: u64, left: (&Utf8Path, &NormalizedEvent), right: (&Utf8Path, &NormalizedEvent)) -> OptimizerError {
    let ((left, ours), (right, theirs)) = (left, right);
    let at = first_difference(&ours.value, &theirs.value).map_or(String::new(), |place| format!(" at {place}"));
    let same = ours.text.chars().zip(theirs.text.chars()).take_while(|(a, b)| a == b).count();
    OptimizerError::new(
        ErrorCode::EventCompare,
        format!(
            "event {number} ({}) differs{at}: line {} of {left}, line {} of {right}",
            kind(&ours.value),
            ours.line,
            theirs.line
        ),
    )
    .with_detail(format!("left:  {}\nright: {}", around(&ours.text, same), around(&theirs.text, same)))
    .with_hint("Compare the events before it in both runs; all earlier events are equal.")
}

fn ends(number: u64, shorter: &Utf8Path, more: (&Utf8Path, &NormalizedEvent)) -> OptimizerError {
    let (longer, next) = more;
    OptimizerError::new(
        ErrorCode::EventCompare,
        format!(
            "{shorter} ends after {} events; event {number} ({}) is on line {} of {longer}",
            number - 1,
            kind(&next.value),
            next.line
        ),
    )
    .with_detail(format!("next:  {}", around(&next.text, 0)))
    .with_hint("Check whether the shorter run ended earlier or is still running; all earlier events are equal.")
}

fn kind(event: &Value) -> &str {
    event.get("type").and_then(Value::as_str).unwrap_or("no type")
}

/// Returns the text around a character, with `…` where text is left out.
fn around(text: &str, character: usize) -> String {
    const BEFORE: usize = 40;
    const LENGTH: usize = 160;
    let from = character.saturating_sub(BEFORE);
    let mut rest = text.chars().skip(from);
    let shown: String = rest.by_ref().take(LENGTH).collect();
    let begin = if from > 0 { "…" } else { "" };
    let end = if rest.next().is_some() { "…" } else { "" };
    format!("{begin}{shown}{end}")
}

/// Returns the path of the first value that differs, in the order of keys.
fn first_difference(left: &Value, right: &Value) -> Option<String> {
    fn walk(left: &Value, right: &Value, path: &mut Vec<String>) -> bool {
        match (left, right) {
            (Value::Object(ours), Value::Object(theirs)) => {
                let mut keys: Vec<&String> = ours.keys().chain(theirs.keys()).collect();
                keys.sort_unstable();
                keys.dedup();
                keys.into_iter().any(|key| {
                    path.push(key.clone());
                    let differs = match (ours.get(key), theirs.get(key)) {
                        (Some(ours), Some(theirs)) => walk(ours, theirs, path),
                        _ => true,
                    };
                    if !differs {
                        path.pop();
                    }
                    differs
                })
            }
            (Value::Array(ours), Value::Array(theirs)) => {
                let pairs =
                    ours.iter().zip(theirs).position(|(ours, theirs)| canonical_json(ours) != canonical_json(theirs));
                match pairs {
                    Some(index) => {
                        path.push(index.to_string());
                        walk(&ours[index], &theirs[index], path)
                    }
                    None => ours.len() != theirs.len(),
                }
            }
            _ => canonical_json(left) != canonical_json(right),
        }
    }
    let mut path = Vec::new();
    (walk(left, right, &mut path) && !path.is_empty()).then(|| path.join("."))
}

//! The rows that a brief shows: input, output, score, objectives, feedback and trace, each once.

// Writing to a string cannot fail, so the results are ignored.
use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::brief::{compact, cut, shown};
use super::{Evidence, ProposalRequest};
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::secrets::scrub;

/// Fields of a record that name the row, which the title of its evidence shows.
const ROW_NAMES: &[&str] = &["seed", "example_id", "task_instance_id", "task_id"];
/// Fields of a record that say that the rollout ended, which a row with a score shows.
const STATUS: &[&str] = &["status", "state", "phase", "success_status"];
/// Fields of a record that repeat the score.
const SCORES: &[&str] = &["/reward", "/reward_info/outcome_reward", "/reward_info/score", "/summary/outcome_reward"];
const OBJECTIVES: &[&str] =
    &["/objective_scores", "/metadata/objective_scores", "/reward_info/details/objective_scores"];
const OUTPUTS: &[&str] = &["/output", "/response", "/answer"];
const SIDE_INFO: &[&str] =
    &["/actionable_side_info", "/metadata/actionable_side_info", "/reward_info/details/actionable_side_info"];
const FEEDBACK: &[&str] = &["/feedback", "/reward_info/details/feedback", "/metadata/feedback", "/summary/feedback"];

/// A part of a row's evidence: its label and its text.
type Part = (&'static str, String);

/// Returns `evidence.md`, about `limit` bytes long.
pub(super) fn evidence(request: &ProposalRequest, limit: usize) -> String {
    let mut rows: Vec<&Evidence> = request.evidence.iter().collect();
    let merit = |shown: &Evidence| match (shown.score, request.direction) {
        (None, _) => f64::NEG_INFINITY,
        (Some(score), Direction::Maximize) => score,
        (Some(score), Direction::Minimize) => -score,
    };
    rows.sort_by(|a, b| merit(a).total_cmp(&merit(b)));
    let best = rows.last().map_or(0.0, |best| merit(best));
    let wins = rows.iter().filter(|row| merit(row) >= best && best > merit(rows[0])).count();
    let count = rows.len();
    let mut out = format!("# Evidence: how the parent did on {count} rows, worst first");
    let _ = match wins {
        0 => writeln!(out, "\n"),
        1 => writeln!(out, "\n\nThe last row has its best score.\n"),
        _ => writeln!(out, "\n\nThe last {wins} rows have its best score.\n"),
    };
    let share = limit / count.max(1);
    for row in rows {
        let score = row.score.map_or("no score".to_owned(), |score| format!("score {score}"));
        let _ = writeln!(out, "## Row {} ({score})\n", scrub(row.row_id.as_str()));
        for (label, text) in parts(row, share) {
            let _ = writeln!(out, "{label}: {text}\n");
        }
    }
    out
}

/// Returns the parts of a row, cut so that the row takes about `share` bytes.
fn parts(row: &Evidence, share: usize) -> Vec<Part> {
    let input = shown(&without_row_names(&row.row, row.row_id.as_str()), share);
    let mut parts = vec![("Input", cut(&compact(&input), share / 3))];
    let Some(reply) = &row.reply else { return parts };
    let mut reply = shown(&relevant(reply), share);
    let output = OUTPUTS.iter().find_map(|place| take(&mut reply, place));
    parts.extend(output.map(|output| ("Output", cut(&compact(&output), share / 4))));
    parts.extend(take_objectives(&mut reply, row.score).map(|found| ("Objectives", cut(&found, share / 8))));
    let side_info = take_feedback(&mut reply, share, &mut parts);
    let trace = take(&mut reply, "/trace");
    parts.extend(trace.map(|trace| ("Trace", cut(&compact(&trace), share / 3))));
    let known = [Some(&input), side_info.as_ref()];
    let known: Vec<(&String, &Value)> = known.into_iter().flatten().filter_map(Value::as_object).flatten().collect();
    let rest = rest(reply, row.score, &known);
    if !is_empty(&rest) {
        parts.push(("Record", cut(&compact(&rest), share / 4)));
    }
    parts
}

/// Returns the feedback of a reply and the rest of it, cut so that both take about `share` bytes.
pub(crate) fn shown_reply(reply: &Value, share: usize) -> (Vec<Part>, String) {
    let mut reply = shown(&relevant(reply), share);
    let mut feedback = Vec::new();
    take_feedback(&mut reply, share, &mut feedback);
    (feedback, cut(&compact(&relevant(&reply)), share / 3))
}

/// Moves the feedback of a record to the parts, from all places where containers put it. `actionable_side_info` is first: it is
/// meant for the proposer. Returns it.
fn take_feedback(reply: &mut Value, share: usize, parts: &mut Vec<Part>) -> Option<Value> {
    let mut found: Vec<Part> = Vec::new();
    let mut add = |label: &'static str, text: String| {
        if !matches!(text.trim(), "" | "null" | "{}" | "[]") && found.iter().all(|(_, known)| *known != text) {
            found.push((label, text));
        }
    };
    let side_info = SIDE_INFO.iter().find_map(|place| take(reply, place));
    for place in SIDE_INFO {
        if side_info.is_some() && reply.pointer(place) == side_info.as_ref() {
            take(reply, place);
        }
    }
    match &side_info {
        Some(Value::Object(entries)) if entries.contains_key("feedback") => {
            let mut rest = entries.clone();
            add("Feedback", rest.shift_remove("feedback").as_ref().map(compact).unwrap_or_default());
            add("Details", compact(&Value::Object(rest)));
        }
        Some(side_info) => add("Feedback", compact(side_info)),
        None => {}
    }
    for place in FEEDBACK {
        add("Feedback", take(reply, place).as_ref().map(compact).unwrap_or_default());
    }
    let most = |label: &str| if label == "Details" { share / 3 } else { share / 4 };
    parts.extend(found.into_iter().map(|(label, text)| (label, cut(&text, most(label)))));
    side_info
}

/// Returns the objectives of a record as `name value, name value`. An only objective that equals the score says nothing new.
fn take_objectives(reply: &mut Value, score: Option<f64>) -> Option<String> {
    let mut named: Map<String, Value> = Map::new();
    for place in OBJECTIVES {
        match take(reply, place) {
            Some(Value::Object(entries)) => named.extend(entries),
            Some(Value::Array(items)) => named.extend(items.iter().filter_map(|item| {
                let name = ["objective", "name"].iter().find_map(|key| item.get(key)?.as_str())?;
                let value = ["value", "score"].iter().find_map(|key| item.get(key))?;
                Some((name.to_owned(), value.clone()))
            })),
            _ => {}
        }
    }
    let is_score = named.len() == 1 && named.values().all(|value| value.as_f64() == score && score.is_some());
    let text = || named.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ");
    (!named.is_empty() && !is_score).then(text)
}

/// Returns what a record says and no other part does.
fn rest(mut reply: Value, score: Option<f64>, known: &[(&String, &Value)]) -> Value {
    if score.is_some() {
        SCORES.iter().for_each(|place| drop(take(&mut reply, place)));
        if let Some(entries) = reply.as_object_mut() {
            entries.retain(|name, _| !STATUS.contains(&name.as_str()));
        }
    }
    relevant(&without_known(reply, known))
}

/// Removes the names of the row, and entries that the input or the details show, at any depth.
fn without_known(value: Value, known: &[(&String, &Value)]) -> Value {
    let is_known = |name: &String, value: &Value| {
        ROW_NAMES.contains(&name.as_str()) || known.iter().any(|(other, shown)| *other == name && *shown == value)
    };
    match value {
        Value::Object(entries) => {
            let entries = entries.into_iter().filter(|(name, value)| !is_known(name, value));
            Value::Object(entries.map(|(name, value)| (name, without_known(value, known))).collect())
        }
        other => other,
    }
}

/// Returns a row without the fields that repeat its id.
fn without_row_names(row: &Value, id: &str) -> Value {
    let Value::Object(entries) = row else { return row.clone() };
    let part = |name: &str| entries.get(name).map(compact);
    let is_place = part("split").zip(part("seed")).is_some_and(|(split, seed)| format!("{split}:{seed}") == id);
    let is_name = |name: &String, value: &Value| match name.as_str() {
        "split" | "seed" => is_place,
        "id" | "example_id" | "task_instance_id" | "task_id" => compact(value) == id,
        _ => false,
    };
    let kept = entries.iter().filter(|(name, value)| !is_name(name, value));
    Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Removes and returns the entry at a JSON pointer.
fn take(value: &mut Value, place: &str) -> Option<Value> {
    let (parent, name) = place.rsplit_once('/')?;
    value.pointer_mut(parent)?.as_object_mut()?.shift_remove(name)
}

/// Returns a record without echoes of the candidate and policy and without empty entries.
fn relevant(reply: &Value) -> Value {
    match reply {
        Value::Object(entries) => {
            let kept = entries.iter().filter(|(name, _)| !matches!(name.as_str(), "candidate" | "policy"));
            let kept = kept.map(|(name, value)| (name.clone(), relevant(value))).filter(|(_, value)| !is_empty(value));
            Value::Object(kept.collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(relevant).collect()),
        _ => reply.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || [json!(""), json!([]), json!({})].contains(value)
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;

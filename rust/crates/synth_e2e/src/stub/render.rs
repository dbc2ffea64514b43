//! Renders rollout records as bytes. Parts that are the same in every reply are built once.

use std::fmt::Write;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::ids::Payload;

use super::flags::Faults;
use super::task::{Row, StubTask};

/// Renders records.
#[derive(Debug)]
pub(super) struct Renderer {
    /// The trace, padded to the configured size.
    trace: String,
    /// Replaces every reward.
    reward: Option<String>,
    /// Replaces the usage.
    usage: Option<String>,
    /// The name of the model that every reply reports.
    policy_echo: Option<String>,
    /// The value of an additional field.
    extra: Vec<u8>,
}

impl Renderer {
    pub(super) fn new(trace_bytes: usize, faults: &Faults) -> io::Result<Self> {
        let [before, after] = [
            r#"{"event_history":[{"type":"llm_request","call_site_id":"stub.answer","messages":[{"role":"user","content":""#,
            r#""}]},{"type":"llm_response","text":"done"}]}"#,
        ];
        let filler = "lorem ipsum ".chars().cycle().take(trace_bytes.saturating_sub(before.len() + after.len()));
        let Faults { reward, usage, policy_echo, .. } = faults.clone();
        let extra = faults.extra.as_ref().map(std::fs::read).transpose()?.unwrap_or_default();
        Ok(Self { trace: format!("{before}{}{after}", filler.collect::<String>()), reward, usage, policy_echo, extra })
    }

    /// Renders a completed rollout. Apart from the timestamps, it depends only on id, row and candidate, and on whether the
    /// model is able to solve rows.
    pub(super) fn completed(
        &self,
        task: &StubTask,
        rollout_id: &str,
        row: Row,
        candidate: &Payload,
        is_able: bool,
    ) -> Vec<u8> {
        let missing = task.missing(candidate, row);
        let solved = is_able && missing.is_empty();
        let words: usize = candidate.values().map(|text| text.split_whitespace().count()).sum();
        let (prompt, completion) = (40 + words, 4 + row.index as usize % 3);
        let nano = prompt * 100 + completion * 400;
        let share = if is_able { 1.0 - missing.len() as f64 / f64::from(task.needs) } else { 0.0 };
        let value = format!("{share:?}");
        let reward = self.reward.as_deref().unwrap_or(&value);
        let success = if solved { "succeeded" } else { "failed" };
        let id = quoted(rollout_id);
        let now = now();
        let (split, index) = (row.split(), row.index);
        let brevity = 1.0 / (1.0 + words as f64);
        let mut out = String::with_capacity(900 + self.trace.len());
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            r#"{{"rollout_id":{id},"status":"completed","success_status":"{success}","task_id":"stub.house_rules","seed":{index},"#
        );
        let _ = write!(
            out,
            r#""reward_info":{{"outcome_reward":{reward},"event_rewards":[],"details":{{"example_id":"{split}:{index}"}}}},"#
        );
        let _ = write!(
            out,
            r#""objective_scores":[{{"objective":"accuracy","value":{value},"source":"stub"}},{{"objective":"brevity","value":{brevity},"source":"stub"}}],"#
        );
        let _ = write!(
            out,
            r#""actionable_side_info":{{"feedback":"{}"}},"#,
            feedback(row, missing.first().copied().or(task.needed(row).next()), solved)
        );
        let _ = write!(out, r#""summary":{{"outcome_reward":{reward},"example_id":"{split}:{index}"}},"#);
        let (total, cost) = (prompt + completion, nano as f64 / 1e9);
        let usage = self.usage.clone().unwrap_or_else(|| {
            format!(r#"{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total},"cost_usd":{cost}}}"#)
        });
        let _ = write!(out, r#""usage":{usage},"#);
        if let Some(model) = &self.policy_echo {
            let _ = write!(out, r#""policy":{{"model":{}}},"#, quoted(model));
        }
        let echo = serde_json::to_string(candidate).unwrap_or_default();
        let _ = write!(
            out,
            r#""trace":{},"metadata":{{"candidate":{echo}}},"created_at":"{now}","updated_at":"{now}"}}"#,
            self.trace
        );
        if self.extra.is_empty() {
            return out.into_bytes();
        }
        out.truncate(out.len() - 1);
        out.push_str(r#","extra":"#);
        [out.as_bytes(), &self.extra, b"}"].concat()
    }
}

/// Returns the feedback for a proposer: a rule that the row needs, on train rows only.
fn feedback(row: Row, rule: Option<(u32, &str)>, solved: bool) -> String {
    match (solved, row.heldout, rule) {
        (true, ..) => "solved".to_owned(),
        (false, false, Some((rule, field))) => format!("missing rule: r{rule} in {field}"),
        (false, ..) => "not solved".to_owned(),
    }
}

/// Renders a record without a result.
pub(super) fn unfinished(rollout_id: &str, status: &str, success: &str, detail: &str) -> String {
    let (id, now) = (quoted(rollout_id), now());
    format!(
        r#"{{"rollout_id":{id},"status":"{status}","success_status":"{success}","status_detail":"{detail}","created_at":"{now}","updated_at":"{now}","summary":{{}},"metadata":{{}}}}"#
    )
}

/// Renders an error body.
pub(super) fn detail(text: &str) -> String {
    format!(r#"{{"detail":{}}}"#, quoted(text))
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(u64::try_from(since.as_millis()).unwrap_or_default())
}

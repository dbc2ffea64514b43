//! What a proposer is told: the command of the engine with the rows and replies that it points to.

use serde_json::Value;

use crate::container::Task;
use crate::proposer::{Evidence, ProposalRequest};
use crate::workspace::Reader;
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::model::answer::{Proposal, ProposalAnswer};
use synth_optimizer_core::model::command::ProposeCommand;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::ids::RequestId;

/// Parts of a reply that tell when and under which name it ran, and nothing about the task.
const VOLATILE: &[&str] = &["rollout_id", "trace_correlation_id", "created_at", "updated_at"];

/// Gathers the evidence of a proposal. Its rollouts must be committed.
pub(super) fn proposal_request(
    command: &ProposeCommand,
    direction: Direction,
    task: &Task,
    stored: &Reader,
) -> Result<ProposalRequest, OptimizerError> {
    Ok(ProposalRequest {
        question: command.question.clone(),
        program: task.program.clone(),
        task_info: task.task_info.as_ref().ok().cloned(),
        direction,
        evidence: stored.at_once(|_| evidence(command, task, stored))?,
        refused: match command.repairs {
            Some(answered) => refused(stored, answered)?,
            None => Vec::new(),
        },
    })
}

fn evidence(command: &ProposeCommand, task: &Task, stored: &Reader) -> Result<Vec<Evidence>, OptimizerError> {
    let first = command.question.parents.first();
    let mut evidence = Vec::with_capacity(command.evidence.len());
    for shown in &command.evidence {
        let row = task.rows.get(&shown.row_id).map_or(Value::Null, |row| row.value.clone());
        let rollout = match first {
            Some(parent) => stored.evidence(&parent.candidate_id, &shown.row_id, command.request)?,
            None => None,
        };
        let reply = match rollout {
            Some(rollout) => stored.reply(rollout)?.map(|bytes| read(&bytes)).transpose()?,
            None => None,
        };
        evidence.push(Evidence { row_id: shown.row_id.clone(), row, score: shown.score, reply });
    }
    Ok(evidence)
}

/// What the answer before proposed.
fn refused(stored: &Reader, answered: RequestId) -> Result<Vec<Proposal>, OptimizerError> {
    let Some(bytes) = stored.reply(answered)? else { return Ok(Vec::new()) };
    let answer: ProposalAnswer = serde_json::from_slice(&bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "a stored answer is not JSON", error))?;
    Ok(answer.proposals)
}

fn read(bytes: &[u8]) -> Result<Value, OptimizerError> {
    let mut reply: Value = serde_json::from_slice(bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "a stored reply is not JSON", error))?;
    if let Some(fields) = reply.as_object_mut() {
        fields.retain(|name, _| !VOLATILE.contains(&name.as_str()));
    }
    Ok(reply)
}

//! What a proposer is told: the command of the engine with the rows and replies that it points to.

use serde_json::Value;

use crate::config::gepa::Direction;
use crate::container::Task;
use crate::model::answer::{Proposal, ProposalAnswer};
use crate::model::command::ProposeCommand;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::ids::{CandidateId, Payload, RequestId};
use crate::proposer::{Evidence, NamedPayload, ProposalRequest};
use crate::workspace::Reader;

/// Parts of a reply that tell when and under which name it ran, and nothing about the task.
const VOLATILE: &[&str] = &["rollout_id", "trace_correlation_id", "created_at", "updated_at"];

/// Gathers the evidence of a proposal. Its rollouts must be committed.
pub(super) fn proposal_request(
    command: &ProposeCommand,
    direction: Direction,
    task: &Task,
    stored: &Reader,
) -> Result<ProposalRequest, OptimizerError> {
    let named = |(candidate_id, payload): &(CandidateId, Payload)| NamedPayload {
        candidate_id: candidate_id.clone(),
        payload: payload.clone(),
    };
    let evidence = stored.at_once(|stored| evidence(command, task, stored))?;
    Ok(ProposalRequest {
        operation: command.operation,
        generation: command.generation,
        program: task.program.clone(),
        task_info: task.task_info.as_ref().ok().cloned(),
        parents: command.parents.iter().map(named).collect(),
        ancestor: command.ancestor.as_ref().map(named),
        base: command.base.clone(),
        components: command.components.clone(),
        proposal_count: command.proposal_count,
        direction,
        evidence,
        carried_failures: command.carried_failures.clone(),
        relatives: command.relatives.clone(),
        frontier: command.frontier.clone(),
        frontier_size: command.frontier_size,
        problems: command.problems.clone(),
        refused: match command.repairs {
            Some(answered) => refused(stored, answered)?,
            None => Vec::new(),
        },
    })
}

fn evidence(command: &ProposeCommand, task: &Task, stored: &Reader) -> Result<Vec<Evidence>, OptimizerError> {
    let first = command.parents.first();
    let mut evidence = Vec::with_capacity(command.evidence.len());
    for shown in &command.evidence {
        let row = task.rows.get(&shown.row_id).map_or(Value::Null, |row| row.value.clone());
        let rollout = match first {
            Some((parent, _)) => stored.evidence(parent, &shown.row_id, command.request)?,
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
        .map_err(|error| OptimizerError::new(ErrorCode::Json, format!("a stored answer is not JSON: {error}")))?;
    Ok(answer.proposals)
}

fn read(bytes: &[u8]) -> Result<Value, OptimizerError> {
    let mut reply: Value = serde_json::from_slice(bytes)
        .map_err(|error| OptimizerError::new(ErrorCode::Json, format!("a stored reply is not JSON: {error}")))?;
    if let Some(fields) = reply.as_object_mut() {
        fields.retain(|name, _| !VOLATILE.contains(&name.as_str()));
    }
    Ok(reply)
}

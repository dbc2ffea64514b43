//! A proposal request for unit tests.

use serde_json::json;

use super::{Evidence, ProposalRequest};
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::model::command::{NamedPayload, ProposerQuestion};
use synth_optimizer_core::model::event_fields::Operation;
use synth_optimizer_core::model::ids::{CandidateId, Payload, RowId};

pub(super) fn request() -> ProposalRequest {
    let base = Payload::from([("instructions".to_owned(), "Answer briefly.".to_owned())]);
    let question = ProposerQuestion {
        operation: Operation::Mutate,
        generation: 1,
        parents: vec![NamedPayload { candidate_id: CandidateId::of("c", &base), payload: base.clone() }],
        ancestor: None,
        base,
        components: vec!["instructions".into()],
        edit_fields: Vec::new(),
        proposal_count: 1,
        carried_failures: Vec::new(),
        relatives: Vec::new(),
        frontier: Vec::new(),
        frontier_size: 1,
        problems: Vec::new(),
        rules: Default::default(),
    };
    ProposalRequest {
        question,
        program: json!({"mutable_fields": ["instructions"]}),
        task_info: None,
        direction: Direction::Maximize,
        evidence: vec![Evidence { row_id: RowId::new("train:0"), row: json!({"q": 1}), score: Some(0.0), reply: None }],
        refused: Vec::new(),
    }
}

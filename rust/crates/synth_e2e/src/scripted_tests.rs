use std::collections::BTreeMap;

use super::*;
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::model::command::{CarriedAttempt, ProposerQuestion};
use synth_optimizer_core::model::event_fields::Problem;
use synth_optimizer_core::model::ids::{CandidateId, RowId};
use synth_optimizer_platform::proposer::Evidence;

fn request(feedback: &[&str]) -> ProposalRequest {
    let evidence = feedback.iter().enumerate().map(|(index, text)| Evidence {
        row_id: RowId::new(&format!("train:{index}")),
        row: Value::Null,
        score: Some(0.0),
        reply: Some(json!({"reward_info": {"details": {"feedback": text}}})),
    });
    let question = ProposerQuestion {
        operation: Operation::Mutate,
        generation: 2,
        parents: Vec::new(),
        ancestor: None,
        base: BTreeMap::from([("notes".to_owned(), "Rules: r0".to_owned())]),
        components: vec!["notes".to_owned()],
        edit_fields: Vec::new(),
        proposal_count: 2,
        carried_failures: Vec::new(),
        relatives: Vec::new(),
        frontier: Vec::new(),
        frontier_size: 0,
        problems: Vec::new(),
        rules: Default::default(),
    };
    ProposalRequest {
        question,
        program: Value::Null,
        task_info: None,
        direction: Direction::Maximize,
        evidence: evidence.collect(),
        refused: Vec::new(),
    }
}

fn texts(answer: &ProposalAnswer) -> Vec<&str> {
    answer.proposals.iter().flat_map(|proposal| proposal.fields.values().map(String::as_str)).collect()
}

#[test]
fn each_proposal_adds_one_missing_rule() {
    let request =
        request(&["missing rule: r3 in notes", "solved", "missing rule: r3 in notes", "missing rule: r5 in notes"]);
    let answer = ScriptedProposer::default().answer(&request).unwrap();
    assert_eq!(texts(&answer), ["Rules: r0 r3", "Rules: r0 r5"]);
}

#[test]
fn rules_of_other_fields_and_known_rules_are_ignored() {
    let request = request(&["missing rule: r3 in other", "missing rule: r0 in notes"]);
    let answer = ScriptedProposer::default().answer(&request).unwrap();
    assert_eq!(texts(&answer), ["Rules: r0 (seen again in generation 2)"]);
}

#[test]
fn a_rejected_text_is_not_proposed_again() {
    let mut request = request(&["missing rule: r3 in notes", "missing rule: r5 in notes"]);
    request.question.carried_failures = vec![CarriedAttempt {
        candidate_id: CandidateId::new("c"),
        payload: BTreeMap::from([("notes".to_owned(), "Rules: r0 r3".to_owned())]),
        reason: "no gain".to_owned(),
    }];
    assert_eq!(texts(&ScriptedProposer::default().answer(&request).unwrap()), ["Rules: r0 r5"]);
}

#[test]
fn faults_depend_on_the_generation_and_a_repair_succeeds() {
    let fault = Some(ScriptedFault::InvalidFields { every: 2 });
    let proposer = ScriptedProposer { fault, ..ScriptedProposer::default() };
    let mut request = request(&["missing rule: r3 in notes"]);
    assert!(proposer.answer(&request).unwrap().proposals[0].fields.contains_key("no_such_field"));
    request.question.problems = vec![Problem { code: "field_unknown".into(), field: None, message: "no".into() }];
    assert_eq!(texts(&proposer.answer(&request).unwrap()), ["Rules: r0 r3"]);
}

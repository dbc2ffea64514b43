//! The protocol without a process.

use super::*;

#[test]
fn whatever_is_asked_is_answered_and_nothing_is_granted() {
    for method in ["item/commandExecution/requestApproval", "item/fileChange/requestApproval"] {
        assert_eq!(answer_to(method), json!({ "result": { "decision": "decline" } }));
    }
    assert_eq!(answer_to("execCommandApproval"), json!({ "result": { "decision": "denied" } }));
    assert_eq!(answer_to("item/permissions/requestApproval"), json!({ "result": { "permissions": {} } }));
    assert_eq!(answer_to("item/tool/requestUserInput"), json!({ "result": { "answers": {} } }));
    assert_eq!(answer_to("something/new").pointer("/error/code"), Some(&json!(-32601)));
}

fn state() -> (State, mpsc::Receiver<Value>) {
    let (out, sent) = mpsc::channel();
    (State { out: Some(out), ..State::default() }, sent)
}

/// A state with the thread `t`, whose turn has come this far.
fn state_with(turn: Turn) -> (State, mpsc::Receiver<Value>, Notes) {
    let (mut state, sent) = state();
    let (listener, notes) = channel::unbounded_channel();
    state.threads.insert("t".into(), Thread { listener: Some(listener), turn });
    (state, sent, notes)
}

#[test]
fn a_request_of_the_server_is_not_taken_for_an_answer() {
    let (mut state, sent) = state();
    let asked = state.request("a", json!({}));
    assert!(asked.is_some() && sent.recv().is_ok());
    state.take(json!({ "id": 1, "method": "item/fileChange/requestApproval", "params": {} }));
    assert_eq!(sent.recv(), Ok(json!({ "result": { "decision": "decline" }, "id": 1 })));
    assert_eq!(state.pending.len(), 1);
    state.take(json!({ "id": 1, "result": {} }));
    assert!(state.pending.is_empty());
}

fn told(method: &str) -> Value {
    json!({ "method": method, "params": { "threadId": "t", "turn": { "id": "u" } } })
}

const INTERRUPT: &str = "turn/interrupt";
const CLEAN: &str = "thread/backgroundTerminals/clean";
const UNSUBSCRIBE: &str = "thread/unsubscribe";

#[test]
fn a_turn_that_begins_after_it_was_left_is_interrupted_and_cleaned_up() {
    let (mut state, sent, _notes) = state_with(Turn::Starting);
    state.leave("t");
    state.take(told("turn/started"));
    state.take(told("item/started"));
    state.take(told("turn/completed"));
    assert!(state.threads.is_empty());
    state.close();
    let methods: Vec<String> =
        sent.iter().filter_map(|message| Some(message.get("method")?.as_str()?.to_owned())).collect();
    assert_eq!(methods, [INTERRUPT, CLEAN, UNSUBSCRIBE]);
    assert!(state.request("late", json!({})).is_none());
}

#[test]
fn a_turn_whose_beginning_was_told_before_it_was_left_is_interrupted() {
    let named = || Turn::Running("u".into());
    for (turn, heard, wanted) in [
        (Turn::Starting, vec!["turn/started"], vec![INTERRUPT, CLEAN]),
        (named(), vec![], vec![INTERRUPT, CLEAN]),
        (named(), vec!["turn/started"], vec![INTERRUPT, CLEAN]),
        (Turn::Starting, vec!["turn/started", "turn/completed"], vec![CLEAN, UNSUBSCRIBE]),
        (named(), vec!["turn/started", "turn/completed"], vec![CLEAN, UNSUBSCRIBE]),
        (Turn::Over, vec![], vec![CLEAN, UNSUBSCRIBE]),
        (Turn::Starting, vec![], vec![]),
    ] {
        let (mut state, sent, _notes) = state_with(turn.clone());
        heard.iter().for_each(|method| state.take(told(method)));
        state.leave("t");
        state.close();
        let sent: Vec<Value> = sent.iter().collect();
        let methods: Vec<&str> = sent.iter().filter_map(|message| message.get("method")?.as_str()).collect();
        assert_eq!(methods, wanted, "{turn:?} {heard:?}");
        let mut interrupts = sent.iter().filter(|message| message["method"] == INTERRUPT);
        assert!(interrupts.all(|message| message["params"]["turnId"] == "u"));
    }
}

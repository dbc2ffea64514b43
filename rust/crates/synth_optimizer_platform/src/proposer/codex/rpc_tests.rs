//! The protocol, tested without a process.

use super::*;

#[test]
fn every_request_of_the_server_is_declined() {
    for method in ["item/commandExecution/requestApproval", "item/fileChange/requestApproval"] {
        assert_eq!(decline(method), json!({ "result": { "decision": "decline" } }));
    }
    assert_eq!(decline("execCommandApproval"), json!({ "result": { "decision": "denied" } }));
    assert_eq!(decline("item/permissions/requestApproval"), json!({ "result": { "permissions": {} } }));
    assert_eq!(decline("item/tool/requestUserInput"), json!({ "result": { "answers": {} } }));
    assert_eq!(decline("something/new").pointer("/error/code"), Some(&json!(-32601)));
}

fn state() -> (RpcState, mpsc::Receiver<Value>) {
    let (out, sent) = mpsc::channel();
    (RpcState { out: Some(out), ..RpcState::default() }, sent)
}

/// Returns a state with the thread `t` and its turn in this phase.
fn state_with(turn: TurnPhase) -> (RpcState, mpsc::Receiver<Value>, Notifications) {
    let (mut state, sent) = state();
    let (listener, notes) = channel::unbounded_channel();
    state.threads.insert("t".into(), ThreadListener { listener: Some(listener), turn });
    (state, sent, notes)
}

#[test]
fn a_server_request_is_not_mistaken_for_an_answer() {
    let (mut state, sent) = state();
    let asked = state.request("a", json!({}));
    assert!(asked.is_some() && sent.recv().is_ok());
    state.handle_message(json!({ "id": 1, "method": "item/fileChange/requestApproval", "params": {} }));
    assert_eq!(sent.recv(), Ok(json!({ "result": { "decision": "decline" }, "id": 1 })));
    assert_eq!(state.pending.len(), 1);
    state.handle_message(json!({ "id": 1, "result": {} }));
    assert!(state.pending.is_empty());
}

fn notification(method: &str) -> Value {
    json!({ "method": method, "params": { "threadId": "t", "turn": { "id": "u" } } })
}

const INTERRUPT: &str = "turn/interrupt";
const CLEAN: &str = "thread/backgroundTerminals/clean";
const UNSUBSCRIBE: &str = "thread/unsubscribe";

#[test]
fn a_turn_that_starts_after_its_release_is_interrupted_and_cleaned_up() {
    let (mut state, sent, _notes) = state_with(TurnPhase::Starting);
    state.leave("t");
    state.handle_message(notification("turn/started"));
    state.handle_message(notification("item/started"));
    state.handle_message(notification("turn/completed"));
    assert!(state.threads.is_empty());
    state.close();
    let methods: Vec<String> =
        sent.iter().filter_map(|message| Some(message.get("method")?.as_str()?.to_owned())).collect();
    assert_eq!(methods, [INTERRUPT, CLEAN, UNSUBSCRIBE]);
    assert!(state.request("late", json!({})).is_none());
}

#[test]
fn releasing_a_thread_interrupts_or_cleans_up_its_turn() {
    let named = || TurnPhase::Running("u".into());
    for (turn, heard, wanted) in [
        (TurnPhase::Starting, vec!["turn/started"], vec![INTERRUPT, CLEAN]),
        (named(), vec![], vec![INTERRUPT, CLEAN]),
        (named(), vec!["turn/started"], vec![INTERRUPT, CLEAN]),
        (TurnPhase::Starting, vec!["turn/started", "turn/completed"], vec![CLEAN, UNSUBSCRIBE]),
        (named(), vec!["turn/started", "turn/completed"], vec![CLEAN, UNSUBSCRIBE]),
        (TurnPhase::Ended, vec![], vec![CLEAN, UNSUBSCRIBE]),
        (TurnPhase::Starting, vec![], vec![]),
    ] {
        let (mut state, sent, _notes) = state_with(turn.clone());
        heard.iter().for_each(|method| state.handle_message(notification(method)));
        state.leave("t");
        state.close();
        let sent: Vec<Value> = sent.iter().collect();
        let methods: Vec<&str> = sent.iter().filter_map(|message| message.get("method")?.as_str()).collect();
        assert_eq!(methods, wanted, "{turn:?} {heard:?}");
        let mut interrupts = sent.iter().filter(|message| message["method"] == INTERRUPT);
        assert!(interrupts.all(|message| message["params"]["turnId"] == "u"));
    }
}

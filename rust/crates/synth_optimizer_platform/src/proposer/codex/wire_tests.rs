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
    let state = State {
        out: Some(out),
        next_id: 0,
        pending: BTreeMap::new(),
        threads: BTreeMap::new(),
        left: BTreeSet::new(),
        turns: BTreeMap::new(),
    };
    (state, sent)
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

#[test]
fn a_turn_that_begins_after_it_was_left_is_interrupted_and_cleaned_up() {
    let (mut state, sent) = state();
    state.left.insert("t".into());
    state.take(json!({ "method": "turn/started", "params": { "threadId": "t", "turn": { "id": "u" } } }));
    state.take(json!({ "method": "turn/completed", "params": { "threadId": "t", "turn": { "id": "u" } } }));
    state.close();
    let methods: Vec<String> =
        sent.iter().filter_map(|message| Some(message.get("method")?.as_str()?.to_owned())).collect();
    assert_eq!(methods, ["turn/interrupt", "thread/backgroundTerminals/clean", "thread/unsubscribe"]);
    assert!(state.request("late", json!({})).is_none());
}

#[test]
fn a_turn_whose_beginning_was_told_before_it_was_left_is_interrupted() {
    let begun = json!({ "method": "turn/started", "params": { "threadId": "t", "turn": { "id": "u" } } });
    let over = json!({ "method": "turn/completed", "params": { "threadId": "t", "turn": { "id": "u" } } });
    let (interrupt, clean, unsubscribe) = ("turn/interrupt", "thread/backgroundTerminals/clean", "thread/unsubscribe");
    for (told, left, wanted) in [
        (vec![&begun], Left::Starting, vec![interrupt, clean]),
        (vec![&begun], Left::Running { turn: "u" }, vec![interrupt, clean]),
        (vec![&begun, &over], Left::Starting, vec![clean, unsubscribe]),
        (vec![&begun, &over], Left::Running { turn: "u" }, vec![clean, unsubscribe]),
        (vec![], Left::Starting, vec![]),
    ] {
        let (mut state, sent) = state();
        let (listener, _notes) = channel::unbounded_channel();
        state.threads.insert("t".into(), listener);
        told.into_iter().for_each(|note| state.take(note.clone()));
        state.leave("t", left);
        assert!(state.turns.is_empty());
        state.close();
        let sent: Vec<Value> = sent.iter().collect();
        let methods: Vec<&str> = sent.iter().filter_map(|message| message.get("method")?.as_str()).collect();
        assert_eq!(methods, wanted, "{left:?}");
        let mut interrupts = sent.iter().filter(|message| message["method"] == interrupt);
        assert!(interrupts.all(|message| message["params"]["turnId"] == "u"));
    }
}

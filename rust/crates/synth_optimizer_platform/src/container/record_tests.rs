//! Reading of status words, and of bodies without a valid status.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use serde_json::Value;

use super::{ReceivedRecord, RolloutStatus};
use synth_optimizer_core::model::answer::FailureClass;

#[test]
fn status_fields_are_read_in_order() {
    let cases = [
        (r#"{"status":"Running "}"#, RolloutStatus::Active),
        (r#"{"status":"completed","success_status":"failed"}"#, RolloutStatus::Succeeded),
        (r#"{"status":null,"state":"queued"}"#, RolloutStatus::Active),
        (r#"{"phase":"timed_out"}"#, RolloutStatus::Failed),
        (r#"{"success_status":"error"}"#, RolloutStatus::Failed),
        (r#"{"reward":1}"#, RolloutStatus::Absent),
    ];
    for (body, expected) in cases {
        assert_eq!(ReceivedRecord::read(Bytes::from(body)).record.unwrap().status().unwrap(), expected, "{body}");
    }
}

#[test]
fn an_invalid_status_is_a_contract_failure() {
    for body in [r#"{"status":"weird"}"#, r#"{"status":7}"#, r#"{"status":""}"#] {
        let failure = ReceivedRecord::read(Bytes::from(body)).record.unwrap().status().unwrap_err();
        assert_eq!((failure.class, failure.retryable), (FailureClass::Contract, false), "{body}");
    }
    for body in ["[]x", "[]", "[\"r\", \"completed\"]", "", "<html>", "\"text\"", "7", r#"{"a":"#] {
        assert_eq!(ReceivedRecord::read(Bytes::from(body)).record.unwrap_err().class, FailureClass::Contract, "{body}");
    }
}

#[test]
fn a_body_is_stored_in_a_form_that_every_reader_accepts() {
    let deep = format!(r#"{{"status":"done","trace":{}{}}}"#, "[".repeat(500), "]".repeat(500));
    let bodies: [&[u8]; 5] = [
        br#"{"status":"done","trace":"\ud83d"}"#,
        b"{\"status\":\"done\",\"trace\":\"\xff\"}",
        br#"{"status":"done","trace":[1e999]}"#,
        br#"{"status":"done","trace":[NaN]}"#,
        deep.as_bytes(),
    ];
    for body in bodies {
        let received = ReceivedRecord::read(Bytes::copy_from_slice(body));
        assert_eq!(received.record.unwrap().status().unwrap(), RolloutStatus::Succeeded);
        assert!(received.altered.is_some());
        let stored: Value = serde_json::from_slice(&received.body).unwrap();
        assert!(!stored["trace"].is_null());
        assert!(ReceivedRecord::read(received.body).altered.is_none(), "a stored body is not changed again");
    }
}

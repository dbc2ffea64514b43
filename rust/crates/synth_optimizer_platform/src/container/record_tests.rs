//! Every status word, and the bodies that have none.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;

use super::{Received, Status};
use synth_optimizer_core::model::answer::FailureClass;

#[test]
fn words_are_looked_up_in_order() {
    let cases = [
        (r#"{"status":"Running "}"#, Status::Active),
        (r#"{"status":"completed","success_status":"failed"}"#, Status::Succeeded),
        (r#"{"status":null,"state":"queued"}"#, Status::Active),
        (r#"{"phase":"timed_out"}"#, Status::Failed),
        (r#"{"success_status":"error"}"#, Status::Failed),
        (r#"{"reward":1}"#, Status::Absent),
    ];
    for (body, expected) in cases {
        assert_eq!(Received::read(Bytes::from(body)).record.unwrap().status().unwrap(), expected, "{body}");
    }
}

#[test]
fn what_is_no_status_breaks_the_contract() {
    for body in [r#"{"status":"weird"}"#, r#"{"status":7}"#, r#"{"status":""}"#] {
        let failure = Received::read(Bytes::from(body)).record.unwrap().status().unwrap_err();
        assert_eq!((failure.class, failure.retryable), (FailureClass::Contract, false), "{body}");
    }
    for body in ["[]x", "[]", "[\"r\", \"completed\"]", "", "<html>", "\"text\"", "7", r#"{"a":"#] {
        assert_eq!(Received::read(Bytes::from(body)).record.unwrap_err().class, FailureClass::Contract, "{body}");
    }
    for body in [r#"{"reward": NaN}"#, r#"{"reward": -Infinity}"#] {
        assert_eq!(Received::read(Bytes::from(body)).record.unwrap_err().class, FailureClass::InvalidScore, "{body}");
    }
}

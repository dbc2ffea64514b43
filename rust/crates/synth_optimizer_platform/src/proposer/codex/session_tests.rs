//! Checks of the thread that codex reports against the requested one.

use serde_json::json;

use super::*;

fn found(change: impl Fn(&mut Value), may_write: bool) -> Vec<String> {
    let mut echo = json!({
        "model": "m", "modelProvider": "p", "approvalPolicy": "never", "cwd": "/w", "instructionSources": [],
        "sandbox": { "type": "workspaceWrite", "writableRoots": ["/w"], "networkAccess": false },
        "activePermissionProfile": { "id": "proposer" },
    });
    change(&mut echo);
    mismatches(&echo, Some("m"), "p", Utf8Path::new("/w"), may_write)
}

#[test]
fn every_difference_from_the_requested_thread_is_reported() {
    assert_eq!(found(|_| {}, true), Vec::<String>::new());
    let changes: [(&str, Value); 7] = [
        ("/model", json!("n")),
        ("/modelProvider", Value::Null),
        ("/approvalPolicy", json!("on-request")),
        ("/cwd", json!("/")),
        ("/sandbox/networkAccess", json!(true)),
        ("/sandbox/writableRoots", json!(["/w", "/"])),
        ("/activePermissionProfile", Value::Null),
    ];
    for (place, value) in changes {
        let set = |echo: &mut Value| {
            if let Some(slot) = echo.pointer_mut(place) {
                *slot = value.clone();
            }
        };
        assert_eq!(found(set, true).len(), 1, "{place}");
    }
    let other = json!({ "model": "n" });
    let of_model = |model| mismatches(&other, model, "p", Utf8Path::new("/w"), true).join("; ");
    assert!(of_model(Some("m")).contains("model is") && !of_model(None).contains("model is"));
    assert_eq!(found(|_| {}, false).len(), 1, "a workspace that is to be read only can be written");
}

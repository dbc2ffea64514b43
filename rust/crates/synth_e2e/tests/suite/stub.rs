//! Tests of the stub container, on which the tests of complete runs rely.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::harness::{TestDir, stub};
use serde_json::{Value, json};
use synth_e2e::wait::wait_until;
use synth_e2e::{RowNames, ServerProcess, read_bill, small_config};
use synth_optimizer_core::config::{ConfigContent, ConfigSource, load};

/// Sends a request on a new connection and returns status and body, or `None` if the server closes the connection.
fn call(server: &ServerProcess, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let body = body.to_string();
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    let status = first.split(' ').nth(1).unwrap().parse().unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).unwrap();
    Some((status, serde_json::from_slice(&bytes).unwrap()))
}

fn rollout(id: &str, row: u32, text: &str, mode: &str) -> Value {
    json!({
        "rollout_id": id, "submission_mode": mode, "candidate": {"instructions": text},
        "task": {"task_id": format!("train:{row}"), "split": "train", "seed": row},
    })
}

fn post(server: &ServerProcess, body: &Value) -> (u16, Value) {
    call(server, "POST", "/rollouts", body).unwrap()
}

#[test]
fn a_text_solves_a_row_when_it_names_its_rule() {
    let server = stub(&[]);
    let (status, reply) = post(&server, &rollout("a", 4, "r0 r4.", "sync"));
    assert_eq!((status, &reply["reward_info"]["outcome_reward"]), (200, &json!(1.0)));
    assert_eq!(reply["seed"], 4);
    let (_, reply) = post(&server, &rollout("b", 4, "r0 r44", "sync"));
    assert_eq!(reply["actionable_side_info"]["feedback"], "missing rule: r4 in instructions");
    assert_eq!(reply["metadata"]["candidate"]["instructions"], "r0 r44");
    assert!(reply["usage"]["cost_usd"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_row_that_needs_several_rules_rewards_the_share_that_the_text_names() {
    let server = stub(&["--train", "6", "--needs", "4"]);
    let (_, reply) = post(&server, &rollout("a", 4, "r4 r10 r22", "sync"));
    assert_eq!(reply["reward_info"]["outcome_reward"], 0.75);
    assert_eq!(reply["actionable_side_info"]["feedback"], "missing rule: r16 in instructions");
    let (_, reply) = post(&server, &rollout("b", 4, "r4 r10 r16 r22", "sync"));
    assert_eq!(reply["reward_info"]["outcome_reward"], 1.0);
    assert_eq!(reply["actionable_side_info"]["feedback"], "solved");
}

#[test]
fn rows_are_read_by_id_and_by_seed() {
    let server = stub(&["--dialect", "both"]);
    let asked = json!({"split": "test", "task_ids": ["test:2"], "filters": {}});
    let (_, tasks) = call(&server, "POST", "/taskset/tasks", &asked).unwrap();
    let (_, rows) =
        call(&server, "POST", "/dataset/rows", &json!({"split": "test", "seeds": [2], "filters": {}})).unwrap();
    assert_eq!(tasks["tasks"], rows["rows"]);
    let unknown = json!({"split": "test", "task_ids": ["test:3"], "filters": {}});
    assert_eq!(call(&server, "POST", "/taskset/tasks", &unknown).unwrap().0, 422);
    // Like real containers of this kind, it reads the row from `dataset_row` and runs a default row without it.
    assert_eq!(post(&server, &rollout("a", 4, "r0", "sync")).1["seed"], 0);
}

#[test]
fn a_repeated_id_is_answered_from_memory_and_billed_once() {
    let place = TestDir::new();
    let bill = place.path().join("bill");
    let server = stub(&["--bill", bill.as_str()]);
    let first = post(&server, &rollout("a", 1, "r0", "sync"));
    assert_eq!(post(&server, &rollout("a", 1, "r0", "sync")), first);
    assert_eq!(call(&server, "GET", "/rollouts/a", &Value::Null).unwrap(), first);
    assert_eq!(call(&server, "GET", "/rollouts/a/state", &Value::Null).unwrap().1["status"], "completed");
    assert_eq!(post(&server, &rollout("a", 2, "r0", "sync")).0, 409);
    assert_eq!(read_bill(&bill).unwrap().len(), 1);
}

#[test]
fn a_container_that_forgets_runs_again_and_bills_again() {
    let place = TestDir::new();
    let bill = place.path().join("bill");
    let server = stub(&["--bill", bill.as_str(), "--memory", "forget"]);
    post(&server, &rollout("a", 1, "r0", "sync"));
    post(&server, &rollout("a", 1, "r0", "sync"));
    assert_eq!(call(&server, "GET", "/rollouts/a", &Value::Null).unwrap().0, 404);
    let lines = read_bill(&bill).unwrap();
    assert_eq!((lines.len(), &lines[0]), (2, &lines[1]));
}

#[test]
fn an_async_rollout_is_read_by_id_until_it_ends() {
    for memory in ["remember", "forget"] {
        let server = stub(&["--memory", memory, "--latency-ms", "300"]);
        assert_eq!(post(&server, &rollout("a", 1, "r0", "async")).1["status"], "running");
        assert_eq!(call(&server, "GET", "/rollouts/a", &Value::Null).unwrap().1["status"], "running");
        let state = || call(&server, "GET", "/rollouts/a/state", &Value::Null).unwrap().1["status"].clone();
        wait_until("the end of the rollout", || state() != "running");
        assert_eq!(state(), "completed");
        let record = call(&server, "GET", "/rollouts/a", &Value::Null).unwrap().1;
        assert_eq!(record["reward_info"]["outcome_reward"], 0.0);
        post(&server, &rollout("b", 1, "r0", "async"));
        let ended = call(&server, "POST", "/rollouts/b/terminate", &json!({"reason": "enough"})).unwrap();
        assert_eq!(ended.1["status"], "terminated");
    }
}

#[test]
fn configured_faults_occur() {
    let every = |flag: &str| stub(&[flag, "2"]);
    let server = every("--fail-every");
    assert_eq!(post(&server, &rollout("a", 1, "r0", "sync")).0, 200);
    assert_eq!(post(&server, &rollout("b", 1, "r0", "sync")).0, 500);
    let server = every("--overload-every");
    assert_eq!(post(&server, &rollout("a", 1, "r0", "sync")).0, 200);
    assert_eq!(post(&server, &rollout("b", 1, "r0", "sync")).0, 429);
    assert_eq!(post(&server, &rollout("b", 1, "r0", "sync")).0, 200);
    let server = every("--reset-every");
    assert_eq!(post(&server, &rollout("a", 1, "r0", "sync")).0, 200);
    assert_eq!(call(&server, "POST", "/rollouts", &rollout("b", 1, "r0", "sync")), None);
    assert_eq!(post(&server, &rollout("b", 1, "r0", "sync")).0, 200, "the lost reply is still known");
    let server = stub(&["--wrong-row"]);
    assert_eq!(post(&server, &rollout("a", 3, "r0", "sync")).1["seed"], 0);
    let server = stub(&["--nan"]);
    assert_eq!(post(&server, &rollout("a", 3, "r0", "sync")).1["reward_info"]["outcome_reward"], Value::Null);
    let server = stub(&["--modes", "blocking"]);
    assert_eq!(post(&server, &rollout("a", 3, "r0", "async")).0, 422);
    let server = stub(&["--modes", "at-once"]);
    assert_eq!(post(&server, &rollout("a", 3, "r0", "async")).1["status"], "completed");
}

#[test]
fn the_small_config_can_be_loaded_again() {
    for names in [RowNames::Seeds, RowNames::TaskIds] {
        let config = small_config("http://127.0.0.1:9", names, 6, 3, &["instructions"]);
        let place = TestDir::new();
        let text = toml::to_string(&config).unwrap();
        let source = ConfigSource { name: "gepa.toml", content: ConfigContent::Toml(&text), base_dir: place.path() };
        let loaded = load(source, &std::collections::BTreeMap::new(), &[]).unwrap();
        assert_eq!(loaded.config.run.output_dir, place.path().join("runs"));
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    }
}

//! Taking requests in: once each, whole, and without secrets.

use synth_optimizer_service::Code;
use synth_optimizer_service::queue::{Completion, Hold, Submission, Which};

use crate::bench::{Bench, claim, config, no, plain, submit};

#[test]
fn the_same_key_and_body_give_the_same_request() {
    let bench = Bench::new();
    let config = config("", "http://one.test", None);
    let keyed = Submission { idempotency_key: Some("key"), ..plain(&config) };
    let first = bench.queue.submit(&keyed).unwrap();
    assert!(!first.replayed && first.entry.run_id.starts_with("gepa_"));
    let again = bench.again().submit(&keyed).unwrap();
    assert!(again.replayed);
    assert_eq!(again.entry, first.entry);
    assert_eq!(bench.queue.find_by_idempotency_key("key", "digest").unwrap().unwrap(), first.entry);
    let other = Submission { body_digest: "another", ..keyed };
    let refused = bench.queue.submit(&other).unwrap_err();
    assert_eq!(refused.code, Some(Code::IdempotencyConflict));
    assert!(refused.error.message.contains(&first.entry.run_id), "{refused}");
    assert_eq!(bench.queue.list(&[], 10, None).unwrap().items.len(), 1);
    // It stays so when the run is over.
    let claimed = bench.claim().unwrap();
    bench.queue.start(&claimed.request_id, Hold::Current).unwrap();
    bench.queue.complete(&claimed.request_id, Hold::Current, &Completion::default()).unwrap();
    let over = bench.queue.submit(&keyed).unwrap();
    assert!(over.replayed && over.entry.is_terminal);
}

#[test]
fn many_submits_with_one_key_make_one_request() {
    let bench = Bench::new();
    let config = config("", "http://one.test", None);
    let submits: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..50)
            .map(|_| {
                let (queue, config) = (bench.again(), &config);
                scope.spawn(move || queue.submit(&Submission { idempotency_key: Some("key"), ..plain(config) }))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    assert_eq!(submits.iter().filter(|submitted| !submitted.replayed).count(), 1);
    assert!(submits.iter().all(|submitted| submitted.entry.request_id == submits[0].entry.request_id));
    assert_eq!(bench.queue.counts().unwrap()["queued"], 1);
}

#[test]
fn a_run_id_is_used_by_one_request_at_a_time() {
    let bench = Bench::new();
    let (running, token) = bench.running("mine");
    let config = config("mine", "http://other.test", None);
    let refused = bench.queue.submit(&plain(&config)).unwrap_err();
    assert_eq!((refused.code, refused.state.unwrap().word()), (Some(Code::RunIdInUse), "running"));
    bench.queue.fail(&running.request_id, Hold::Token(token), &no(), None, None).unwrap();
    // What failed or was cancelled can be tried again under its name, and goes on where it was.
    let again = submit(&bench.queue, &config);
    assert_eq!(bench.queue.get("mine").unwrap().request_id, again.request_id);
    let claimed = claim(&bench.queue, "lease", Which::Any).unwrap();
    bench.queue.start(&claimed.request_id, Hold::Current).unwrap();
    bench.queue.complete(&claimed.request_id, Hold::Current, &Completion::default()).unwrap();
    let refused = bench.queue.submit(&plain(&config)).unwrap_err();
    assert_eq!((refused.code, refused.state.unwrap().word()), (Some(Code::RunExists), "completed"));
    assert_eq!(bench.queue.list(&[], 10, None).unwrap().items.len(), 2, "the history is kept");
}

#[test]
fn a_full_queue_takes_no_more() {
    let bench = Bench::new();
    let configs: Vec<_> = (0..3).map(|n| config(&format!("run-{n}"), &format!("http://h{n}.test"), None)).collect();
    let limited = |n: usize| Submission { most_queued: Some(2), ..plain(&configs[n]) };
    bench.queue.submit(&limited(0)).unwrap();
    bench.queue.submit(&limited(1)).unwrap();
    let refused = bench.queue.submit(&limited(2)).unwrap_err();
    assert_eq!(refused.code, Some(Code::QueueFull));
    assert!(refused.error.message.contains('2') && refused.error.hint.contains("--max-queued"), "{refused:?}");
    bench.claim().unwrap();
    bench.queue.submit(&limited(2)).unwrap();
}

#[test]
fn what_is_stored_is_complete_and_shows_where_each_value_came_from() {
    let bench = Bench::new();
    let entry = bench.submit("whole");
    let (config, values) = bench.queue.config(&entry.request_id).unwrap();
    assert_eq!(config["run"]["run_id"], "whole");
    assert_eq!(config["gepa"]["minibatch_size"].as_i64(), Some(8), "defaults are written out: {}", config["gepa"]);
    let values = values.as_array().unwrap();
    let origin = |field: &str| {
        let found = values.iter().find(|value| value["field"] == field);
        found.unwrap_or_else(|| panic!("{field}"))["origin"].as_str().unwrap().to_owned()
    };
    assert_eq!(origin("gepa.minibatch_size"), "default");
    assert_ne!(origin("container.url"), "default");
    assert_eq!(entry.run_dir, "/nowhere/runs/whole");
}

//! Submitting requests: exactly once, complete, and without secrets.

use synth_optimizer_service::ServiceErrorCode;
use synth_optimizer_service::queue::{ClaimFilter, Completion, LeaseProof, Submission};

use crate::fixture::{QueueFixture, claim, config, failure, submission, submit};

#[test]
fn the_same_key_and_body_return_the_same_request() {
    let fixture = QueueFixture::new();
    let config = config("", "http://one.test", None);
    let keyed = Submission { idempotency_key: Some("key"), ..submission(&config) };
    let first = fixture.queue.submit(&keyed).unwrap();
    assert!(!first.replayed && first.entry.run_id.starts_with("gepa_"));
    let again = fixture.reopen().submit(&keyed).unwrap();
    assert!(again.replayed);
    assert_eq!(again.entry, first.entry);
    assert_eq!(fixture.queue.find_by_idempotency_key("key", "digest").unwrap().unwrap(), first.entry);
    let other = Submission { body_digest: "another", ..keyed };
    let refused = fixture.queue.submit(&other).unwrap_err();
    assert_eq!(refused.code, Some(ServiceErrorCode::IdempotencyConflict));
    assert!(refused.error.message.contains(&first.entry.run_id), "{refused}");
    assert_eq!(fixture.queue.list(&[], 10, None).unwrap().items.len(), 1);
    // The same holds after the run has ended.
    let claimed = fixture.claim().unwrap();
    fixture.queue.start(&claimed.request_id, LeaseProof::Current).unwrap();
    fixture.queue.complete(&claimed.request_id, LeaseProof::Current, &Completion::default()).unwrap();
    let over = fixture.queue.submit(&keyed).unwrap();
    assert!(over.replayed && over.entry.is_terminal);
}

#[test]
fn concurrent_submissions_with_one_key_create_one_request() {
    let fixture = QueueFixture::new();
    let config = config("", "http://one.test", None);
    let submits: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..50)
            .map(|_| {
                let (queue, config) = (fixture.reopen(), &config);
                scope.spawn(move || queue.submit(&Submission { idempotency_key: Some("key"), ..submission(config) }))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    assert_eq!(submits.iter().filter(|submitted| !submitted.replayed).count(), 1);
    assert!(submits.iter().all(|submitted| submitted.entry.request_id == submits[0].entry.request_id));
    assert_eq!(fixture.queue.counts().unwrap()["queued"], 1);
}

#[test]
fn a_run_id_has_one_unfinished_request() {
    let fixture = QueueFixture::new();
    let (running, token) = fixture.running("mine");
    let config = config("mine", "http://other.test", None);
    let refused = fixture.queue.submit(&submission(&config)).unwrap_err();
    assert_eq!((refused.code, refused.state.unwrap().as_str()), (Some(ServiceErrorCode::RunIdInUse), "running"));
    fixture.queue.fail(&running.request_id, LeaseProof::Token(token), &failure(), None, None).unwrap();
    // A failed or cancelled run can be submitted again under its id, and is resumed.
    let again = submit(&fixture.queue, &config);
    assert_eq!(fixture.queue.get("mine").unwrap().request_id, again.request_id);
    let claimed = claim(&fixture.queue, "lease", ClaimFilter::Any).unwrap();
    fixture.queue.start(&claimed.request_id, LeaseProof::Current).unwrap();
    fixture.queue.complete(&claimed.request_id, LeaseProof::Current, &Completion::default()).unwrap();
    let refused = fixture.queue.submit(&submission(&config)).unwrap_err();
    assert_eq!((refused.code, refused.state.unwrap().as_str()), (Some(ServiceErrorCode::RunExists), "completed"));
    assert_eq!(fixture.queue.list(&[], 10, None).unwrap().items.len(), 2, "the history is kept");
}

#[test]
fn a_full_queue_rejects_submissions() {
    let fixture = QueueFixture::new();
    let configs: Vec<_> = (0..3).map(|n| config(&format!("run-{n}"), &format!("http://h{n}.test"), None)).collect();
    let limited = |n: usize| Submission { max_queued: Some(2), ..submission(&configs[n]) };
    fixture.queue.submit(&limited(0)).unwrap();
    fixture.queue.submit(&limited(1)).unwrap();
    let refused = fixture.queue.submit(&limited(2)).unwrap_err();
    assert_eq!(refused.code, Some(ServiceErrorCode::QueueFull));
    assert!(refused.error.message.contains('2') && refused.error.hint.contains("--max-queued"), "{refused:?}");
    fixture.claim().unwrap();
    fixture.queue.submit(&limited(2)).unwrap();
}

#[test]
fn the_stored_configuration_is_complete_and_has_the_origin_of_each_value() {
    let fixture = QueueFixture::new();
    let entry = fixture.submit("whole");
    let (config, values) = fixture.queue.config(&entry.request_id).unwrap();
    assert_eq!(config["run"]["run_id"], "whole");
    assert_eq!(config["gepa"]["carry_failures"].as_i64(), Some(3), "defaults are written out: {}", config["gepa"]);
    let values = values.as_array().unwrap();
    let origin = |field: &str| {
        let found = values.iter().find(|value| value["field"] == field);
        found.unwrap_or_else(|| panic!("{field}"))["origin"].as_str().unwrap().to_owned()
    };
    assert_eq!(origin("gepa.minibatch_size"), "default");
    assert_ne!(origin("container.url"), "default");
    assert_eq!(entry.run_dir, "/nowhere/runs/whole");
}

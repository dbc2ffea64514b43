//! Concurrent workers: every request is executed exactly once, and no lane has two holders.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use synth_optimizer_service::queue::{Claim, ClaimFilter, Completion, LeaseHolder, LeaseProof, Queue};
use tempfile::TempDir;

use crate::fixture::{LEASE, config, submit};

const WORKERS: usize = 8;
const REQUESTS: usize = 200;
const CONTAINERS: usize = 4;

#[test]
fn concurrent_workers_execute_every_request_once_and_never_share_a_lane() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("service.sqlite");
    let queue = Queue::open(&path).unwrap();
    for n in 0..REQUESTS {
        let url = format!("http://container-{}.test", n % CONTAINERS);
        submit(&queue, &config(&format!("run-{n}"), &url, None));
    }
    let held: Mutex<BTreeSet<String>> = Mutex::default();
    let done: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (path, held, done, is_over) = (&path, &held, &done, &is_over);
            scope.spawn(move || {
                let queue = Queue::open(path).unwrap();
                let worker_id = format!("worker-{worker}");
                while !is_over.load(Ordering::Relaxed) {
                    let claim = Claim {
                        lease_id: &worker_id,
                        worker_id: Some(&worker_id),
                        lease: LEASE,
                        holder: LeaseHolder::Caller,
                        filter: ClaimFilter::Background,
                    };
                    let Some(entry) = queue.claim(&claim).unwrap() else { continue };
                    assert!(
                        held.lock().unwrap().insert(entry.container_url.clone()),
                        "two workers hold {}",
                        entry.container_url
                    );
                    let lease_proof = LeaseProof::Token(entry.fencing_token);
                    queue.start(&entry.request_id, lease_proof).unwrap();
                    assert!(held.lock().unwrap().remove(&entry.container_url));
                    queue.complete(&entry.request_id, lease_proof, &Completion::default()).unwrap();
                    let mut done = done.lock().unwrap();
                    *done.entry(entry.run_id).or_default() += 1;
                    is_over.store(done.len() == REQUESTS, Ordering::Relaxed);
                }
            });
        }
    });
    let done = done.into_inner().unwrap();
    assert!(done.len() == REQUESTS && done.values().all(|times| *times == 1));
    assert_eq!(queue.counts().unwrap(), BTreeMap::from([("completed".to_owned(), REQUESTS as i64)]));
    // Within a lane, requests are claimed in order of age.
    for lane in 0..CONTAINERS {
        let mut order: Vec<(i64, usize)> = (lane..REQUESTS)
            .step_by(CONTAINERS)
            .map(|n| (queue.get(&format!("run-{n}")).unwrap().fencing_token, n))
            .collect();
        order.sort_unstable();
        assert!(order.windows(2).all(|pair| pair[0].1 < pair[1].1), "lane {lane}");
    }
}

//! Panics in the thread of a run: the run request ends, and its end names the panic.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use synth_e2e::stub::FIELDS;
use synth_e2e::wait::WAIT_TIMEOUT;
use synth_e2e::{RowNames, small_config, submission, write_config};
use synth_optimizer_core::config::{Config, ConfigContent, ConfigSource, load};
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_platform::proposer::Proposer;
use synth_optimizer_service::queue::{Clock, LeaseHolder, Moment, Queue, SystemClock};
use synth_optimizer_service::service::{Job, RequestEnd, Settings, Workers};

use crate::harness::TestDir;

/// A clock that panics once, at the first write of a run after its proposer has panicked.
#[derive(Debug)]
struct BrokenClock {
    is_broken: bool,
    has_panicked: AtomicBool,
}

impl Clock for BrokenClock {
    fn now(&self) -> Moment {
        let is_run = std::thread::current().name() == Some("synth-optimizers-run");
        if self.is_broken && is_run && PROPOSER_PANICKED.with(|panicked| panicked.load(Ordering::SeqCst)) {
            assert!(self.has_panicked.swap(true, Ordering::SeqCst), "the clock is broken");
        }
        SystemClock.now()
    }
}

thread_local! {
    static PROPOSER_PANICKED: AtomicBool = const { AtomicBool::new(false) };
}

fn broken_proposer(config: &Config) -> Option<Arc<dyn Proposer>> {
    PROPOSER_PANICKED.with(|panicked| panicked.store(true, Ordering::SeqCst));
    panic!("the proposer of {} is broken", config.run.run_id.as_deref().unwrap_or_default())
}

/// Executes a run whose proposer panics, and returns how its job ended.
fn end_of_job(is_broken: bool) -> RequestEnd {
    let dir = TestDir::new();
    let mut config = small_config("http://127.0.0.1:9", RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.run.run_id = Some("panics".into());
    write_config(&dir.config(), &config).unwrap();
    let text = std::fs::read_to_string(dir.config()).unwrap();
    let source = ConfigSource { name: "gepa.toml", content: ConfigContent::Toml(&text), base_dir: dir.path() };
    let config = load(source, &BTreeMap::new(), &[]).unwrap();
    let clock = BrokenClock { is_broken, has_panicked: AtomicBool::new(false) };
    let queue = Queue::open_with(dir.path().join("service.sqlite").as_std_path(), Arc::new(clock), WAIT_TIMEOUT);
    let queue = queue.unwrap();
    queue.submit(&submission(&config)).unwrap();
    let settings = Settings { proposers: Some(broken_proposer), ..Settings::default() };
    let workers = Arc::new(Workers::new(queue, settings, LeaseHolder::Worker));
    let job: Arc<Job> = workers.start_next().unwrap().unwrap();
    job.wait(WAIT_TIMEOUT).unwrap()
}

#[test]
fn a_run_that_panics_fails_with_the_message_of_the_panic() {
    let RequestEnd { entry, .. } = end_of_job(false);
    assert_eq!(entry.status, RequestState::Failed);
    let error = entry.error.unwrap();
    assert_eq!(error["error_code"], "synth_optimizer_invariant_error", "{error}");
    assert_eq!(error["message"], "the thread of the run ended without a result", "{error}");
    assert_eq!(error["detail"], "the proposer of panics is broken", "{error}");
}

#[test]
fn a_job_ends_even_if_recording_its_end_panics() {
    let RequestEnd { entry, message } = end_of_job(true);
    assert_eq!(entry.status, RequestState::Running, "its lease runs out and another worker recovers it");
    assert!(message.contains("the thread of the end of a run ended without a result"), "{message}");
}

//! Rollouts whose answers were lost in a crash or an outage: the container is asked for them by id.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{ActiveRollout, PollResult, RecordResult, Transport, unknown};
use crate::clock::unix_millis;
use crate::outage::Outage;
use synth_optimizer_core::config::gepa::SubmissionMode;

/// Without `container.recovery_timeout_seconds`, a rollout may run this many times as long as the longest one so far, and at
/// least `MIN_COPY_TIME`, before it counts as ended.
const COPY_TIME_FACTOR: u32 = 4;
const MIN_COPY_TIME: Duration = Duration::from_secs(5);

/// What a container remembers of rollouts from before a crash or an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RolloutMemory {
    /// Every rollout that it received.
    Every,
    /// Rollouts that have ended. One that it does not know may still run.
    Ended,
    Nothing,
}

/// What the container remembers of rollouts from before an outage. The start of a process counts as outage 0.
#[derive(Debug, Default)]
struct MemoryProbe {
    outage: u64,
    memory: Option<RolloutMemory>,
}

/// What a resumed run knows about the rollouts of earlier processes.
#[derive(Debug, Clone, Default)]
pub struct EarlierRollouts {
    /// The id of one that ended with a score.
    pub ended_id: Option<String>,
    /// The longest duration of one.
    pub longest: Duration,
}

/// What is known about ended rollouts, and what the container remembers of them.
#[derive(Debug)]
pub(super) struct RolloutMemories {
    probe: tokio::sync::Mutex<MemoryProbe>,
    /// Number of outages so far.
    outages: AtomicU64,
    /// The last rollout that ended before the last outage.
    earlier_id: Mutex<Option<String>>,
    /// The rollout that ended last, and the longest duration of one.
    ended: Mutex<EarlierRollouts>,
}

impl RolloutMemories {
    pub(super) fn new(earlier: EarlierRollouts) -> Self {
        Self {
            probe: tokio::sync::Mutex::default(),
            outages: AtomicU64::new(0),
            earlier_id: Mutex::new(earlier.ended_id.clone()),
            ended: Mutex::new(earlier),
        }
    }

    /// Records a rollout that ended with a score.
    pub(super) fn note_end(&self, rollout_id: &str, duration: Duration) {
        let mut ended = self.ended.lock();
        ended.longest = ended.longest.max(duration);
        ended.ended_id = Some(rollout_id.to_owned());
    }
}

impl Transport {
    /// Records that an outage begins: the container may have forgotten every rollout when it is available again.
    pub fn begin_outage(&self) {
        let memories = &self.memories;
        *memories.earlier_id.lock() = memories.ended.lock().ended_id.clone();
        memories.outages.fetch_add(1, Ordering::Relaxed);
    }

    /// Finds out what the container remembers, once per outage: it is asked for a rollout that ended before. An error says why
    /// it did not answer.
    async fn memory(&self) -> Result<RolloutMemory, String> {
        if self.contract.remembers_rollouts {
            return Ok(RolloutMemory::Every);
        }
        let mut probe = self.memories.probe.lock().await;
        let outage = self.memories.outages.load(Ordering::Relaxed);
        if let Some(memory) = probe.memory.filter(|_| probe.outage == outage) {
            return Ok(memory);
        }
        let Some(earlier) = self.memories.earlier_id.lock().clone() else { return Ok(RolloutMemory::Nothing) };
        let mut rollout = ActiveRollout::new(self, &earlier);
        let memory = match rollout.poll(Instant::now() + self.client.request_timeout()).await {
            PollResult::Active | PollResult::Ended(_) if self.mode() == SubmissionMode::Async => RolloutMemory::Every,
            PollResult::Active | PollResult::Ended(_) => RolloutMemory::Ended,
            PollResult::Unknown => RolloutMemory::Nothing,
            PollResult::Missed(reason) => return Err(reason),
        };
        *probe = MemoryProbe { outage, memory: Some(memory) };
        Ok(memory)
    }

    /// Returns for how long a copy of a rollout that was sent at this time may still run.
    fn copy_time(&self, sent_at: u64) -> Duration {
        let usual = (self.memories.ended.lock().longest.saturating_mul(COPY_TIME_FACTOR)).max(MIN_COPY_TIME);
        let most = self.client.container.recovery_timeout_seconds.map_or(usual, Duration::from_secs);
        let since = Duration::from_millis(unix_millis().saturating_sub(sent_at));
        most.min(self.timeout(self.mode())).saturating_sub(since)
    }
}

impl ActiveRollout<'_> {
    /// Asks the container for a rollout that was sent before, as long as a copy may still run. Returns `None` if the rollout
    /// did not run and may be sent under the same id.
    pub(super) async fn recover(&mut self, sent_at: u64) -> Option<RecordResult> {
        let transport = self.transport;
        let copies_end = Instant::now() + transport.copy_time(sent_at);
        loop {
            let deadline = Instant::now() + transport.timeout(transport.mode());
            if let Some(outcome) = self.find(deadline, deadline, None).await {
                return Some(outcome);
            }
            match transport.memory().await {
                Ok(RolloutMemory::Every) => return None,
                Ok(RolloutMemory::Ended) if transport.is_managed => break,
                Ok(RolloutMemory::Ended) if Instant::now() >= copies_end => return None,
                Ok(RolloutMemory::Ended) => tokio::time::sleep(self.poll_interval()).await,
                Ok(RolloutMemory::Nothing) => break,
                Err(reason) => {
                    self.end.outage = Some(Outage::new(transport.client.unreachable(&reason)));
                    return Some(Err(unknown(&reason)));
                }
            }
        }
        self.end.is_lost = true;
        Some(Err(unknown("the container does not remember it")))
    }
}

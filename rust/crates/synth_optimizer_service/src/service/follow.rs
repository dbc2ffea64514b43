//! Follows the logs of runs that clients watch, each once for all of its clients: from the live events where this process
//! carries the run out, and from the log otherwise. No database is read while nothing happens.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::broadcast::{self, Receiver, Sender};
use tokio::sync::{Notify, watch};

use super::context::Context;
use super::job::Job;
use super::runs::RunFiles;
use crate::queue::RequestEntry;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_core::model::run_totals::BestMark;
use synth_optimizer_platform::workspace::Stored;
use synth_optimizer_platform::workspace::models::ReadError;

/// The log of a run that another process carries out is looked at this often.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The shortest time between two looks at the queue for one run that this process does not carry out.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest time between two chunks: what comes within it is sent together.
const CHUNK_INTERVAL: Duration = Duration::from_millis(5);
/// Events that are read and sent at once.
const PAGE: usize = 128;
/// Chunks that a reader may fall behind before it is dropped. It comes back with the last id that it has seen.
const BUFFER: usize = 1024;

/// Events in a row as they go over the wire. All readers share the bytes.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    /// The sequence of the first event, and that after the last one. What is before the first is in the log.
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) bytes: Bytes,
}

/// What clients are sent; nothing when the run is over, and what is left is in the log.
pub(super) type News = Option<Chunk>;

/// Every run that clients watch.
#[derive(Debug, Default)]
pub(super) struct Hub {
    tails: Mutex<BTreeMap<String, Weak<Tail>>>,
}

/// The end of the log of one run, followed as long as a client watches.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) news: Sender<News>,
    /// What every client is sent last, once the run is over.
    pub(super) end: OnceLock<Bytes>,
    /// For clients that wait for a better candidate.
    best: watch::Sender<BestWatch>,
    /// Wakes the task that follows the log: a client asks for the best candidate, or the last client has left.
    attention: Arc<Notify>,
}

/// How far a run is, for clients that wait for its best candidate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BestWatch {
    pub(super) best: Option<BestMark>,
    pub(super) is_over: bool,
    /// Whether the best candidate was looked up.
    pub(super) is_known: bool,
    /// Whether the log cannot be read any more, for whatever reason.
    pub(super) is_lost: bool,
}

impl Tail {
    /// How far the run is, from now on.
    pub(super) fn standing(&self) -> watch::Receiver<BestWatch> {
        let standing = self.best.subscribe();
        // It was not kept up as long as no client asked for it.
        self.best.send_modify(|known| known.is_known &= known.is_over);
        self.attention.notify_one();
        standing
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.attention.notify_one();
    }
}

impl Hub {
    /// The tail of a run and the first news of it. The first client starts the task that follows the log.
    pub(super) fn watch(&self, context: &Arc<Context>, run: &RunFiles) -> (Arc<Tail>, Receiver<News>) {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        tails.retain(|_, tail| tail.strong_count() > 0);
        if let Some(tail) = tails.get(run.run_id()).and_then(Weak::upgrade) {
            let news = tail.news.subscribe();
            return (tail, news);
        }
        let (sender, news) = broadcast::channel(BUFFER);
        let attention = Arc::new(Notify::new());
        let following = Arc::clone(&attention);
        let tail = Arc::new(Tail { news: sender, end: OnceLock::new(), best: watch::Sender::default(), attention });
        tails.insert(run.run_id().to_owned(), Arc::downgrade(&tail));
        let follower = Follower {
            context: Arc::clone(context),
            run: run.clone(),
            tail: Arc::downgrade(&tail),
            attention: following,
            next: 0,
        };
        tokio::spawn(follower.follow());
        (tail, news)
    }

    fn forget(&self, run_id: &str, tail: &Weak<Tail>) {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        if tails.get(run_id).is_some_and(|known| known.ptr_eq(tail)) {
            tails.remove(run_id);
        }
    }
}

/// What a reader is sent last when the log cannot be read on. It comes back with the last id that it has seen.
pub(super) const UNREADABLE: &[u8] = b"event: dropped\ndata: {\"reason\":\"the log of the run cannot be read\"}\n\n";

/// The task that follows the log of a run.
struct Follower {
    context: Arc<Context>,
    run: RunFiles,
    tail: Weak<Tail>,
    attention: Arc<Notify>,
    /// The first event that was not sent.
    next: u64,
}

/// Why a follower stops waiting.
enum Woken {
    /// The log or the queue is to be looked at.
    Look,
    /// No client watches any more.
    Left,
}

impl Follower {
    /// Sends what happens to every client, until none watches or the run is over.
    async fn follow(mut self) {
        let (end, is_over) = match self.follow_to_end().await {
            Ok(None) => return,
            Ok(Some(status)) => (Bytes::from(format!("event: end\ndata: {{\"status\":\"{status}\"}}\n\n")), true),
            Err(error) => {
                tracing::warn!(run_id = self.run.run_id(), %error, "the events of the run cannot be read");
                (Bytes::from_static(UNREADABLE), false)
            }
        };
        // A client that comes from now on starts another task.
        self.context.hub.forget(self.run.run_id(), &self.tail);
        if let Some(tail) = self.tail.upgrade() {
            // The end is set once, and no client may listen.
            let _ = tail.end.set(end);
            let _ = tail.news.send(None);
            tail.best.send_modify(|standing| match is_over {
                true => (standing.is_over, standing.is_known) = (true, true),
                false => standing.is_lost = true,
            });
        }
    }

    /// How the run ended; nothing when no client watches any more.
    async fn follow_to_end(&mut self) -> Result<Option<String>, OptimizerError> {
        let run = self.run.clone();
        self.next = self.context.read(move || run.last_sequence()).await?.map_or(0, |last| last + 1);
        match self.tail.upgrade() {
            // Clients that have read less of the log read on. One may not listen yet.
            Some(tail) => drop(tail.news.send(Some(chunk(&self.run, self.next, [].into_iter())?))),
            None => return Ok(None),
        }
        self.look_up_best().await?;
        loop {
            let changes = *self.context.queue().changes.get();
            let job = self.context.workers.job(self.run.request_id());
            // Before the log is read: no event can be missed in between.
            let live = job.as_ref().map(|job| job.subscribe());
            let entry = self.run.entry(&self.context).await?;
            while let Some(chunk) = read(&self.context, &self.run, self.next).await? {
                self.send(chunk).await?;
            }
            if entry.is_terminal {
                // A client that asked for the best candidate just now is sent the last one.
                self.look_up_best().await?;
                return Ok(Some(entry.status.word().to_owned()));
            }
            let woken = match (job, live) {
                (Some(job), Some(live)) => self.follow_live(&job, live).await?,
                _ => self.wait(&entry, changes).await?,
            };
            if matches!(woken, Woken::Left) {
                return Ok(None);
            }
        }
    }

    /// Sends the events of a run that this process carries out, until its job ends or the log has to be read.
    async fn follow_live(&mut self, job: &Job, mut live: Receiver<Arc<Stored>>) -> Result<Woken, OptimizerError> {
        loop {
            let stored = tokio::select! {
                stored = live.recv() => stored,
                _ = job.end() => return Ok(Woken::Look),
                () = self.attention.notified() => {
                    if self.tail.strong_count() == 0 {
                        return Ok(Woken::Left);
                    }
                    self.look_up_best().await?;
                    continue;
                }
            };
            // What was missed is in the log.
            let Ok(stored) = stored else { return Ok(Woken::Look) };
            let more = std::iter::from_fn(|| live.try_recv().ok()).take(PAGE - 1);
            let events: Vec<_> =
                std::iter::once(stored).chain(more).skip_while(|stored| stored.sequence < self.next).collect();
            match events.first() {
                None => continue,
                Some(first) if first.sequence > self.next => return Ok(Woken::Look),
                Some(_) => self.send(chunk(&self.run, self.next, events.iter().map(AsRef::as_ref))?).await?,
            }
            tokio::time::sleep(CHUNK_INTERVAL).await;
        }
    }

    /// Waits until something may have happened to a run that this process does not carry out.
    async fn wait(&self, entry: &RequestEntry, changes: u64) -> Result<Woken, OptimizerError> {
        let is_held = matches!(entry.status, RequestState::Leased | RequestState::Running);
        let changed = async {
            self.context.queue().changes.wait_for(|now| *now != changes).await;
            tokio::time::sleep(LOOK_INTERVAL).await;
        };
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(POLL_INTERVAL), if is_held => {}
            () = self.attention.notified() => {
                if self.tail.strong_count() == 0 {
                    return Ok(Woken::Left);
                }
                self.look_up_best().await?;
            }
        }
        Ok(Woken::Look)
    }

    async fn send(&mut self, chunk: Chunk) -> Result<(), OptimizerError> {
        self.next = chunk.next;
        let Some(tail) = self.tail.upgrade() else { return Ok(()) };
        // A client may not listen just now.
        let _ = tail.news.send(Some(chunk));
        if tail.best.receiver_count() > 0 {
            self.look_up_best().await?;
        }
        Ok(())
    }

    /// Looks up which candidate is the best, for the clients that wait for that.
    async fn look_up_best(&self) -> Result<(), OptimizerError> {
        let run = self.run.clone();
        let reading = self.context.read(move || match run.reader()? {
            Some(reader) => reader.best_mark().map_err(|error| match error {
                ReadError::Failed(error) => error,
                ReadError::Invalid(refused) | ReadError::NotFound(refused) => {
                    OptimizerError::new(ErrorCode::Invariant, refused.message)
                }
            }),
            None => Ok(None),
        });
        let best = reading.await?;
        if let Some(tail) = self.tail.upgrade() {
            tail.best.send_modify(|standing| (standing.best, standing.is_known) = (best, true));
        }
        Ok(())
    }
}

/// The events from this one on, as many as go at once; none when there is nothing new.
pub(super) async fn read(context: &Arc<Context>, run: &RunFiles, first: u64) -> Result<Option<Chunk>, OptimizerError> {
    let run = run.clone();
    context
        .read(move || match run.events(first, PAGE)? {
            events if events.is_empty() => Ok(None),
            events => chunk(&run, first, events.iter()).map(Some),
        })
        .await
}

/// Events in a row as they go over the wire.
fn chunk<'a>(run: &RunFiles, first: u64, events: impl Iterator<Item = &'a Stored>) -> Result<Chunk, OptimizerError> {
    let (mut next, mut text) = (first, String::new());
    for stored in events {
        // Writing to a String cannot fail.
        let _ = write!(text, "id: {}\ndata: {}\n\n", stored.sequence, run.line(stored)?);
        next = stored.sequence + 1;
    }
    Ok(Chunk { first, next, bytes: Bytes::from(text) })
}

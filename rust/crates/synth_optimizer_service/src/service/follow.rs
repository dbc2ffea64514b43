//! Live events. Each run that clients watch is followed once for all of them: from its live events where this process carries
//! it out, and from its log otherwise. No database is read while nothing happens. A client is sent what it has missed from the
//! log, then what the follower of its run sends; one that falls behind is dropped.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use futures_util::stream::unfold;
use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Receiver, Sender};

use super::context::{Context, RunFiles};
use super::job::Job;
use crate::queue::RequestEntry;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_platform::workspace::Stored;

/// The log of a run that another process carries out is looked at this often.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The shortest time between two looks at the queue for one run that this process does not carry out.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest time between two chunks: what comes within it is sent together.
const CHUNK_INTERVAL: Duration = Duration::from_millis(5);
/// A line is sent this often when nothing else is, so that both sides notice a connection that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events that are read and sent at once.
const PAGE: usize = 128;
/// Chunks that a reader may fall behind before it is dropped. It comes back with the last id that it has seen.
const BUFFER: usize = 1024;

/// Events in a row as they go over the wire. All readers share the bytes.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    /// The sequence of the first event, and that after the last one. What is before the first is in the log.
    first: u64,
    next: u64,
    bytes: Bytes,
}

/// What clients are sent; nothing when the run is over, and what is left is in the log.
type News = Option<Chunk>;

/// Every run that clients watch.
#[derive(Debug, Default)]
pub(super) struct Hub {
    tails: Mutex<BTreeMap<String, Arc<Tail>>>,
}

/// The end of the log of one run, followed as long as a client listens.
#[derive(Debug)]
pub(super) struct Tail {
    news: Sender<News>,
    /// How the run ended, once it is over; nothing in it when the log cannot be read on.
    pub(super) end: OnceLock<Option<RequestState>>,
}

impl Hub {
    /// The tail of a run and the first news of it. The first client starts the task that follows the log.
    pub(super) fn watch(&self, context: &Arc<Context>, run: &RunFiles) -> (Arc<Tail>, Receiver<News>) {
        let mut tails = self.tails.lock();
        if let Some(tail) = tails.get(run.paths.run_id()) {
            return (Arc::clone(tail), tail.news.subscribe());
        }
        let (sender, news) = broadcast::channel(BUFFER);
        let tail = Arc::new(Tail { news: sender, end: OnceLock::new() });
        tails.insert(run.paths.run_id().to_owned(), Arc::clone(&tail));
        let follower = Follower { context: Arc::clone(context), run: run.clone(), tail: Arc::clone(&tail), next: 0 };
        tokio::spawn(follower.follow());
        (tail, news)
    }

    /// Forgets a tail that no client listens to; whether that is so.
    fn leave(&self, run_id: &str, tail: &Tail) -> bool {
        let mut tails = self.tails.lock();
        let is_left = tail.news.receiver_count() == 0;
        if is_left {
            tails.remove(run_id);
        }
        is_left
    }
}

/// The task that follows the log of a run.
struct Follower {
    context: Arc<Context>,
    run: RunFiles,
    tail: Arc<Tail>,
    /// The first event that was not sent.
    next: u64,
}

impl Drop for Follower {
    /// A client that comes from now on starts another task.
    fn drop(&mut self) {
        let mut tails = self.context.hub.tails.lock();
        if tails.get(self.run.paths.run_id()).is_some_and(|known| Arc::ptr_eq(known, &self.tail)) {
            tails.remove(self.run.paths.run_id());
        }
    }
}

impl Follower {
    /// Sends what happens to every client, until none listens or the run is over.
    async fn follow(mut self) {
        let end = match self.follow_to_end().await {
            Ok(None) => return,
            Ok(end) => end,
            Err(error) => {
                unreadable(&self.run, &error);
                None
            }
        };
        // The end is set once, and no client may listen.
        let _ = self.tail.end.set(end);
        let _ = self.tail.news.send(None);
    }

    /// How the run ended; nothing when no client listens any more.
    async fn follow_to_end(&mut self) -> Result<Option<RequestState>, OptimizerError> {
        let (run, tail, context) = (self.run.clone(), Arc::clone(&self.tail), Arc::clone(&self.context));
        let last = context.read(move || run.last_sequence()).await?;
        // Clients that have read less of the log read on.
        self.send(chunk(&self.run, last.map_or(0, |last| last + 1), [].into_iter())?);
        loop {
            let changes = *context.workers.queue.changes.get();
            let job = context.workers.job(&self.run.request_id);
            // Before the log is read: no event can be missed in between.
            let live = job.as_ref().map(|job| job.subscribe());
            let entry = self.run.entry(&context).await?;
            while let Some(chunk) = read(&context, &self.run, self.next).await? {
                self.send(chunk);
            }
            if entry.is_terminal {
                return Ok(Some(entry.status));
            }
            let happens = async {
                match (job, live) {
                    (Some(job), Some(live)) => self.follow_live(&job, live).await,
                    _ => {
                        self.wait(&entry, changes).await;
                        Ok(())
                    }
                }
            };
            let is_left = tokio::select! {
                happened = happens => happened.map(|()| false)?,
                () = tail.news.closed() => true,
            };
            if is_left && context.hub.leave(self.run.paths.run_id(), &tail) {
                return Ok(None);
            }
        }
    }

    /// Sends the events of a run that this process carries out, until its job ends or the log has to be read.
    async fn follow_live(&mut self, job: &Job, mut live: Receiver<Arc<Stored>>) -> Result<(), OptimizerError> {
        loop {
            let stored = tokio::select! {
                stored = live.recv() => stored,
                _ = job.end() => return Ok(()),
            };
            // What was missed is in the log.
            let Ok(stored) = stored else { return Ok(()) };
            let more = std::iter::from_fn(|| live.try_recv().ok()).take(PAGE - 1);
            let events: Vec<_> =
                std::iter::once(stored).chain(more).skip_while(|stored| stored.sequence < self.next).collect();
            match events.first() {
                None => continue,
                Some(first) if first.sequence > self.next => return Ok(()),
                Some(_) => self.send(chunk(&self.run, self.next, events.iter().map(AsRef::as_ref))?),
            }
            tokio::time::sleep(CHUNK_INTERVAL).await;
        }
    }

    /// Waits until something may have happened to a run that this process does not carry out.
    async fn wait(&self, entry: &RequestEntry, changes: u64) {
        let is_held = matches!(entry.status, RequestState::Leased | RequestState::Running);
        let changed = async {
            self.context.workers.queue.changes.wait_for(|now| *now != changes).await;
            tokio::time::sleep(LOOK_INTERVAL).await;
        };
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(POLL_INTERVAL), if is_held => {}
        }
    }

    fn send(&mut self, chunk: Chunk) {
        self.next = chunk.next;
        // A client may not listen just now.
        let _ = self.tail.news.send(Some(chunk));
    }
}

/// The events from this one on, as many as go at once; none when there is nothing new.
async fn read(context: &Arc<Context>, run: &RunFiles, first: u64) -> Result<Option<Chunk>, OptimizerError> {
    let run = run.clone();
    context
        .read(move || match run.events(first, PAGE)? {
            events if events.is_empty() => Ok(None),
            events => chunk(&run, first, events.iter()).map(Some),
        })
        .await
}

fn unreadable(run: &RunFiles, error: &OptimizerError) {
    tracing::warn!(run_id = run.paths.run_id(), %error, "the events of the run cannot be read");
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

/// One client, from catching up to the end.
struct Watcher {
    context: Arc<Context>,
    run: RunFiles,
    /// The first event that was not sent.
    next: u64,
    caught_up: bool,
    tail: Arc<Tail>,
    news: Receiver<News>,
    over: bool,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.context.workers.metrics.streams.dec();
    }
}

impl Watcher {
    /// What to send next; nothing ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        while !self.over {
            if !self.caught_up {
                // What is told while the log is read is in the log: only what comes after it counts.
                self.news = self.tail.news.subscribe();
                let end = self.tail.end.get().copied();
                let read = read(&self.context, &self.run, self.next).await;
                match (read.inspect_err(|error| unreadable(&self.run, error)), end) {
                    (Ok(Some(chunk)), _) => return Some(self.sent(chunk)),
                    (Ok(None), None) => self.caught_up = true,
                    (Ok(None), Some(Some(status))) => {
                        return self.last(format!("event: end\ndata: {{\"status\":\"{}\"}}\n\n", status.word()));
                    }
                    // The client comes back with the last id that it has seen.
                    (Ok(None), Some(None)) | (Err(_), _) => {
                        return self
                            .last("event: dropped\ndata: {\"reason\":\"the log of the run cannot be read\"}\n\n");
                    }
                }
            }
            let told = tokio::select! {
                told = self.news.recv() => told,
                () = tokio::time::sleep(KEEP_ALIVE) => return Some(Bytes::from_static(b": still here\n\n")),
                () = self.context.closing() => return None,
            };
            match told {
                Ok(Some(chunk)) if chunk.next <= self.next => {}
                Ok(Some(chunk)) if chunk.first == self.next => return Some(self.sent(chunk)),
                // What is between what was sent and this is in the log.
                Ok(_) => self.caught_up = false,
                Err(RecvError::Lagged(_)) => {
                    self.context.workers.metrics.dropped_streams.inc();
                    return self.last("event: dropped\ndata: {\"reason\":\"too slow\"}\n\n");
                }
                Err(RecvError::Closed) => return None,
            }
        }
        None
    }

    fn sent(&mut self, chunk: Chunk) -> Bytes {
        self.next = chunk.next;
        chunk.bytes
    }

    fn last(&mut self, text: impl Into<String>) -> Option<Bytes> {
        self.over = true;
        Some(Bytes::from(text.into()))
    }
}

/// The events of a run from `next` on, as a stream that ends with the run.
pub(super) fn stream(context: &Arc<Context>, run: RunFiles, next: u64) -> Response<Body> {
    let (tail, news) = context.hub.watch(context, &run);
    context.workers.metrics.streams.inc();
    let watcher = Watcher { context: Arc::clone(context), run, next, caught_up: false, tail, news, over: false };
    let bytes = unfold(watcher, |mut watcher| async move {
        watcher.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), watcher))
    });
    let mut response = Response::new(Body::from_stream(bytes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

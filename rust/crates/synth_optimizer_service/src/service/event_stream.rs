//! Server-sent events of runs.
//!
//! One follower per run serves all clients of that run. It receives the live events of a run that this process executes, and
//! reads the log of any other run. An idle run causes no database reads. A new client first gets the events of the log, then
//! the events that the follower sends. A client that falls too far behind is dropped.

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
use tracing::{Instrument, Span};

use super::context::{Context, RunFiles};
use super::job::Job;
use crate::queue::RequestEntry;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_platform::workspace::StoredEvent;

/// How often to read the log of a run that another process executes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum time between two queue reads for one run that this process does not execute.
const QUEUE_READ_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum time between two chunks. Events within it are sent together.
const CHUNK_INTERVAL: Duration = Duration::from_millis(5);
/// How often to send a comment line on an idle stream, so that both sides notice a broken connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Maximum number of events per chunk.
const CHUNK_EVENTS: usize = 128;
/// How many chunks a client may fall behind before it is dropped. It can reconnect with the last event id that it has seen.
const BUFFERED_CHUNKS: usize = 1024;

/// Consecutive events in wire format. All clients share the bytes.
#[derive(Debug, Clone)]
pub(super) struct EventChunk {
    /// Sequence number of the first event, and one past the last. Earlier events are in the log.
    first: u64,
    next: u64,
    bytes: Bytes,
}

/// A message to the clients; `None` when the run has ended and the remaining events are in the log.
type StreamUpdate = Option<EventChunk>;

/// The runs that clients watch.
#[derive(Debug, Default)]
pub(super) struct EventHub {
    tails: Mutex<BTreeMap<String, Arc<LogTail>>>,
}

/// The tail of one run's log, followed as long as a client is connected.
#[derive(Debug)]
pub(super) struct LogTail {
    updates: Sender<StreamUpdate>,
    /// The final state of the run, once it has ended; `None` inside if the log became unreadable.
    pub(super) end: OnceLock<Option<RequestState>>,
}

impl EventHub {
    /// Subscribes to the tail of a run. The first client starts the task that follows the log.
    pub(super) fn subscribe(&self, context: &Arc<Context>, run: &RunFiles) -> (Arc<LogTail>, Receiver<StreamUpdate>) {
        let mut tails = self.tails.lock();
        if let Some(tail) = tails.get(run.paths.run_id()) {
            return (Arc::clone(tail), tail.updates.subscribe());
        }
        let (sender, updates) = broadcast::channel(BUFFERED_CHUNKS);
        let tail = Arc::new(LogTail { updates: sender, end: OnceLock::new() });
        tails.insert(run.paths.run_id().to_owned(), Arc::clone(&tail));
        let follower = LogFollower { context: Arc::clone(context), run: run.clone(), tail: Arc::clone(&tail), next: 0 };
        // Without the span of this request: the task serves later clients too.
        tokio::spawn(follower.follow());
        (tail, updates)
    }

    /// Removes the tail if it has no clients. Returns whether it was removed.
    fn remove_if_unused(&self, run_id: &str, tail: &LogTail) -> bool {
        let mut tails = self.tails.lock();
        let is_unused = tail.updates.receiver_count() == 0;
        if is_unused {
            tails.remove(run_id);
        }
        is_unused
    }
}

/// The task that follows the log of a run.
struct LogFollower {
    context: Arc<Context>,
    run: RunFiles,
    tail: Arc<LogTail>,
    /// Sequence number of the first event that was not sent.
    next: u64,
}

impl Drop for LogFollower {
    /// Removes the tail, so that the next client starts another task.
    fn drop(&mut self) {
        let mut tails = self.context.hub.tails.lock();
        if tails.get(self.run.paths.run_id()).is_some_and(|known| Arc::ptr_eq(known, &self.tail)) {
            tails.remove(self.run.paths.run_id());
        }
    }
}

impl LogFollower {
    /// Sends new events to all clients, until no client is left or the run has ended.
    async fn follow(mut self) {
        let end = match self.follow_until_end().await {
            Ok(None) => return,
            Ok(end) => end,
            Err(error) => {
                warn_unreadable(&self.run, &error);
                None
            }
        };
        // Ignored: the end is set only once, and there may be no clients.
        let _ = self.tail.end.set(end);
        let _ = self.tail.updates.send(None);
    }

    /// Follows the run and returns its final state, or `None` when no client is left.
    async fn follow_until_end(&mut self) -> Result<Option<RequestState>, OptimizerError> {
        let (run, tail, context) = (self.run.clone(), Arc::clone(&self.tail), Arc::clone(&self.context));
        let last = context.run_blocking(move || run.last_sequence()).await?;
        // Clients that have read less continue from the log.
        self.send(chunk(&self.run, last.map_or(0, |last| last + 1), [].into_iter())?);
        loop {
            let changes = *context.workers.queue.changes.get();
            let job = context.workers.job(&self.run.request_id);
            // Subscribing before reading the log ensures that no event is missed in between.
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
            let is_unused = tokio::select! {
                happened = happens => happened.map(|()| false)?,
                () = tail.updates.closed() => true,
            };
            if is_unused && context.hub.remove_if_unused(self.run.paths.run_id(), &tail) {
                return Ok(None);
            }
        }
    }

    /// Sends the live events of a run that this process executes, until its job ends or events must be read from the log.
    async fn follow_live(&mut self, job: &Job, mut live: Receiver<Arc<StoredEvent>>) -> Result<(), OptimizerError> {
        loop {
            let stored = tokio::select! {
                stored = live.recv() => stored,
                _ = job.wait_for_end() => return Ok(()),
            };
            // Missed events are read from the log.
            let Ok(stored) = stored else { return Ok(()) };
            let more = std::iter::from_fn(|| live.try_recv().ok()).take(CHUNK_EVENTS - 1);
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

    /// Waits until a run that this process does not execute may have new events.
    async fn wait(&self, entry: &RequestEntry, changes: u64) {
        let is_held = matches!(entry.status, RequestState::Leased | RequestState::Running);
        let changed = async {
            self.context.workers.queue.changes.wait_for(|now| *now != changes).await;
            tokio::time::sleep(QUEUE_READ_INTERVAL).await;
        };
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(POLL_INTERVAL), if is_held => {}
        }
    }

    fn send(&mut self, chunk: EventChunk) {
        self.next = chunk.next;
        // Ignored: there may be no clients at the moment.
        let _ = self.tail.updates.send(Some(chunk));
    }
}

/// Reads the next chunk of events from the log, starting at `first`. Returns `None` if there are none.
async fn read(context: &Arc<Context>, run: &RunFiles, first: u64) -> Result<Option<EventChunk>, OptimizerError> {
    let run = run.clone();
    context
        .run_blocking(move || match run.events(first, CHUNK_EVENTS)? {
            events if events.is_empty() => Ok(None),
            events => chunk(&run, first, events.iter()).map(Some),
        })
        .await
}

fn warn_unreadable(run: &RunFiles, error: &OptimizerError) {
    tracing::warn!(run_id = run.paths.run_id(), %error, "reading the events of the run failed");
}

/// Formats consecutive events for the wire.
fn chunk<'a>(
    run: &RunFiles,
    first: u64,
    events: impl Iterator<Item = &'a StoredEvent>,
) -> Result<EventChunk, OptimizerError> {
    let (mut next, mut text) = (first, String::new());
    for stored in events {
        // Writing to a String cannot fail.
        let _ = write!(text, "id: {}\ndata: {}\n\n", stored.sequence, run.line(stored)?);
        next = stored.sequence + 1;
    }
    Ok(EventChunk { first, next, bytes: Bytes::from(text) })
}

/// One connected client: first it catches up from the log, then it follows the tail.
struct StreamClient {
    context: Arc<Context>,
    run: RunFiles,
    /// Sequence number of the first event that was not sent.
    next: u64,
    caught_up: bool,
    tail: Arc<LogTail>,
    updates: Receiver<StreamUpdate>,
    has_ended: bool,
}

impl Drop for StreamClient {
    fn drop(&mut self) {
        self.context.workers.metrics.streams.dec();
    }
}

impl StreamClient {
    /// Returns the next bytes to send; `None` ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        while !self.has_ended {
            if !self.caught_up {
                // Updates before this subscription are in the log, which is read next.
                self.updates = self.tail.updates.subscribe();
                let end = self.tail.end.get().copied();
                let read = read(&self.context, &self.run, self.next).await;
                match (read.inspect_err(|error| warn_unreadable(&self.run, error)), end) {
                    (Ok(Some(chunk)), _) => return Some(self.advance(chunk)),
                    (Ok(None), None) => self.caught_up = true,
                    (Ok(None), Some(Some(status))) => {
                        return self.finish(format!("event: end\ndata: {{\"status\":\"{}\"}}\n\n", status.as_str()));
                    }
                    // The client can reconnect with the last event id that it has seen.
                    (Ok(None), Some(None)) | (Err(_), _) => {
                        return self
                            .finish("event: dropped\ndata: {\"reason\":\"reading the log of the run failed\"}\n\n");
                    }
                }
            }
            let update = tokio::select! {
                update = self.updates.recv() => update,
                () = tokio::time::sleep(KEEP_ALIVE) => return Some(Bytes::from_static(b": still here\n\n")),
                () = self.context.wait_for_shutdown() => return None,
            };
            match update {
                Ok(Some(chunk)) if chunk.next <= self.next => {}
                Ok(Some(chunk)) if chunk.first == self.next => return Some(self.advance(chunk)),
                // The events in between are in the log.
                Ok(_) => self.caught_up = false,
                Err(RecvError::Lagged(_)) => {
                    self.context.workers.metrics.dropped_streams.inc();
                    return self.finish("event: dropped\ndata: {\"reason\":\"too slow\"}\n\n");
                }
                Err(RecvError::Closed) => return None,
            }
        }
        None
    }

    fn advance(&mut self, chunk: EventChunk) -> Bytes {
        self.next = chunk.next;
        chunk.bytes
    }

    fn finish(&mut self, text: impl Into<String>) -> Option<Bytes> {
        self.has_ended = true;
        Some(Bytes::from(text.into()))
    }
}

/// Returns the events of a run, starting at `next`, as a stream that ends with the run.
pub(super) fn stream(context: &Arc<Context>, run: RunFiles, next: u64) -> Response<Body> {
    let (tail, updates) = context.hub.subscribe(context, &run);
    context.workers.metrics.streams.inc();
    let client =
        StreamClient { context: Arc::clone(context), run, next, caught_up: false, tail, updates, has_ended: false };
    let span = Span::current();
    let bytes = unfold(client, move |mut client| {
        async move { client.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), client)) }.instrument(span.clone())
    });
    let mut response = Response::new(Body::from_stream(bytes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

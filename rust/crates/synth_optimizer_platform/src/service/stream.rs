//! Live events for many readers: each run's log is read once, and whoever falls behind is let go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use futures_util::stream::{self, Stream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Receiver, Sender};
use tokio::sync::watch;

use super::context::Context;
use super::metrics::Metrics;
use super::runs::RunFiles;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::workspace::models::{BestMark, ReadError};

/// How often the log of a run that somebody watches is looked at.
const GLANCE: Duration = Duration::from_millis(100);
/// A line is sent this often when nothing else is, so that both sides notice a connection that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events that are read and sent at once.
const PAGE: usize = 128;
/// Chunks that a reader may fall behind before it is let go. It comes back with the last id that it has seen.
const BUFFER: usize = 64;

/// Events in a row as they go over the wire. All readers share the bytes.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    /// The sequence of the first event, and that after the last one.
    first: u64,
    next: u64,
    bytes: Bytes,
}

#[derive(Debug, Clone)]
pub(super) enum News {
    /// What is before this is in the log, and will not be told.
    Begun(u64),
    Events(Chunk),
    /// The run is over: what is left is in the log.
    End,
}

/// Everybody who watches a run.
#[derive(Debug, Default)]
pub(super) struct Hub {
    tails: Mutex<BTreeMap<String, Weak<Tail>>>,
}

/// The end of the log of one run, read as long as somebody watches.
#[derive(Debug)]
pub(super) struct Tail {
    news: Sender<News>,
    /// What every reader is sent last, once the run is over.
    end: OnceLock<Bytes>,
    /// For whoever waits for a better candidate only.
    best: watch::Sender<Standing>,
}

/// How far a run is, for whoever waits for its best candidate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) best: Option<BestMark>,
    pub(super) is_over: bool,
    /// Whether it was looked at.
    pub(super) is_known: bool,
    /// Whether it cannot be looked at any more, for whatever reason.
    pub(super) is_lost: bool,
}

impl Tail {
    /// How far the run is, from now on.
    pub(super) fn standing(&self) -> watch::Receiver<Standing> {
        self.best.subscribe()
    }
}

impl Hub {
    /// The tail of a run and the first news of it. Who comes first starts the reading, which goes on as long as somebody
    /// has the tail.
    pub(super) fn watch(&self, context: &Arc<Context>, run: &RunFiles) -> (Arc<Tail>, Receiver<News>) {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        tails.retain(|_, tail| tail.strong_count() > 0);
        if let Some(tail) = tails.get(run.run_id()).and_then(Weak::upgrade) {
            let news = tail.news.subscribe();
            return (tail, news);
        }
        let (sender, news) = broadcast::channel(BUFFER);
        let tail = Arc::new(Tail { news: sender, end: OnceLock::new(), best: watch::Sender::default() });
        tails.insert(run.run_id().to_owned(), Arc::downgrade(&tail));
        tokio::spawn(follow(Arc::clone(context), run.clone(), Arc::downgrade(&tail)));
        (tail, news)
    }

    fn forget(&self, run_id: &str, tail: &Weak<Tail>) {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        if tails.get(run_id).is_some_and(|known| known.ptr_eq(tail)) {
            tails.remove(run_id);
        }
    }
}

/// What a reader is sent last when nobody can read on for it. It comes back with the last id that it has seen.
const UNREADABLE: &[u8] = b"event: dropped\ndata: {\"reason\":\"the log of the run cannot be read\"}\n\n";

/// Reads the log as it grows and tells everybody, until nobody listens or the run is over.
async fn follow(context: Arc<Context>, run: RunFiles, tail: Weak<Tail>) {
    let (end, is_over) = match followed(&context, &run, &tail).await {
        Ok(None) => return,
        Ok(Some(status)) => (end_frame(&status), true),
        Err(error) => {
            context.workers.crew().log.line(&format!("the log of run {} cannot be read: {error}", run.run_id()));
            (Bytes::from_static(UNREADABLE), false)
        }
    };
    // Whoever comes from now on starts another reading.
    context.hub().forget(run.run_id(), &tail);
    if let Some(tail) = tail.upgrade() {
        let _ = tail.end.set(end);
        let _ = tail.news.send(News::End);
        tail.best.send_modify(|standing| match is_over {
            true => (standing.is_over, standing.is_known) = (true, true),
            false => standing.is_lost = true,
        });
    }
}

/// How the run ended; nothing when nobody listens any more.
async fn followed(context: &Arc<Context>, run: &RunFiles, tail: &Weak<Tail>) -> Result<Option<String>, OptimizerError> {
    let mut next = newest(context, run).await?;
    if let Some(tail) = tail.upgrade() {
        let _ = tail.news.send(News::Begun(next));
        tail.best.send_replace(Standing { best: best(context, run).await?, is_known: true, ..Standing::default() });
    }
    loop {
        // Whether it is over is asked before the events are read: none can come after the last one that is read then.
        let end = run.end(context).await?;
        let chunk = read(context, run, next).await?;
        let Some(tail) = tail.upgrade() else { return Ok(None) };
        let is_all = chunk.as_ref().is_none_or(|chunk| chunk.next - chunk.first < PAGE as u64);
        if let Some(chunk) = chunk {
            next = chunk.next;
            // Nobody may listen just now.
            let _ = tail.news.send(News::Events(chunk));
            let best = best(context, run).await?;
            tail.best.send_if_modified(|standing| std::mem::replace(&mut standing.best, best.clone()) != best);
        }
        drop(tail);
        if is_all {
            if end.is_some() {
                return Ok(end);
            }
            tokio::time::sleep(GLANCE).await;
        }
    }
}

/// The sequence that the next event will have.
async fn newest(context: &Arc<Context>, run: &RunFiles) -> Result<u64, OptimizerError> {
    let run = run.clone();
    context.read(move || run.last_sequence().map(|last| last.map_or(0, |last| last + 1))).await
}

/// Which candidate is the best.
async fn best(context: &Arc<Context>, run: &RunFiles) -> Result<Option<BestMark>, OptimizerError> {
    let run = run.clone();
    context
        .read(move || match run.reader()? {
            Some(reader) => reader.best_mark().map_err(|error| match error {
                ReadError::Failed(error) => error,
                ReadError::Invalid(refused) | ReadError::NotFound(refused) => {
                    OptimizerError::new(ErrorCode::Invariant, refused.message)
                }
            }),
            None => Ok(None),
        })
        .await
}

/// The events from this one on, as many as go at once; none when there is nothing new.
async fn read(context: &Arc<Context>, run: &RunFiles, first: u64) -> Result<Option<Chunk>, OptimizerError> {
    let run = run.clone();
    context
        .read(move || {
            let lines = run.lines(first, PAGE)?;
            let Some((last, _)) = lines.last() else { return Ok(None) };
            let next = last + 1;
            let bytes: String =
                lines.iter().map(|(sequence, line)| format!("id: {sequence}\ndata: {line}\n\n")).collect();
            Ok(Some(Chunk { first, next, bytes: Bytes::from(bytes) }))
        })
        .await
}

fn end_frame(status: &str) -> Bytes {
    Bytes::from(format!("event: end\ndata: {{\"status\":\"{status}\"}}\n\n"))
}

/// One reader, from catching up to the end.
struct Watcher {
    context: Arc<Context>,
    run: RunFiles,
    /// The first event that was not sent.
    next: u64,
    caught_up: bool,
    tail: Arc<Tail>,
    news: Receiver<News>,
    over: bool,
    _open: Open,
}

/// Counts the stream as long as it is open.
struct Open(Arc<Metrics>);

impl Open {
    fn new(metrics: &Arc<Metrics>) -> Self {
        metrics.stream_opened();
        Self(Arc::clone(metrics))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.stream_closed();
    }
}

impl Watcher {
    /// What to send next; nothing ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.over {
                return None;
            }
            if !self.caught_up {
                // What is told while the log is read is in the log: only what comes after it counts.
                self.news = self.tail.news.subscribe();
                let end = self.tail.end.get().cloned();
                let Ok(found) = read(&self.context, &self.run, self.next).await else {
                    self.over = true;
                    return Some(Bytes::from_static(UNREADABLE));
                };
                match found {
                    Some(chunk) => return Some(self.sent(chunk)),
                    None if end.is_some() => {
                        self.over = true;
                        return end;
                    }
                    None => self.caught_up = true,
                }
            }
            let closing = self.context.closing();
            let told = tokio::select! {
                told = self.news.recv() => told,
                () = tokio::time::sleep(KEEP_ALIVE) => return Some(Bytes::from_static(b": still here\n\n")),
                () = closing => return None,
            };
            match told {
                // What is between what was sent and what is told is in the log.
                Ok(News::Begun(first)) => self.caught_up = first <= self.next,
                Ok(News::Events(chunk)) if chunk.next <= self.next => {}
                Ok(News::Events(chunk)) if chunk.first == self.next => return Some(self.sent(chunk)),
                Ok(News::Events(_) | News::End) => self.caught_up = false,
                Err(RecvError::Lagged(_)) => {
                    self.context.metrics().stream_dropped();
                    self.over = true;
                    return Some(Bytes::from_static(b"event: dropped\ndata: {\"reason\":\"too slow\"}\n\n"));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }

    fn sent(&mut self, chunk: Chunk) -> Bytes {
        self.next = chunk.next;
        chunk.bytes
    }
}

/// The events of a run from `next` on, as a stream that ends with the run.
pub(super) fn events(context: &Arc<Context>, run: RunFiles, next: u64) -> Response<Body> {
    let (tail, news) = context.hub().watch(context, &run);
    let watcher = Watcher {
        context: Arc::clone(context),
        run,
        next,
        caught_up: false,
        tail,
        news,
        over: false,
        _open: Open::new(context.metrics()),
    };
    let mut response = Response::new(Body::from_stream(bytes(watcher)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn bytes(watcher: Watcher) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> {
    stream::unfold(watcher, |mut watcher| async move { watcher.next().await.map(|bytes| (Ok(bytes), watcher)) })
}

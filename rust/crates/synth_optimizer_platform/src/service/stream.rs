//! Live events for many readers: each run's log is read once, and whoever falls behind is let go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use futures_util::stream::{self, Stream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Receiver, Sender};

use super::context::Context;
use super::metrics::Metrics;
use super::runs::RunFiles;
use crate::model::error::OptimizerError;

/// How often the log of a run that somebody watches is looked at.
const GLANCE: Duration = Duration::from_millis(100);
/// A line is sent this often when nothing else is, so that both sides notice a connection that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events that a reader may fall behind before it is let go. It comes back with the last id that it has seen.
const BUFFER: usize = 1024;
/// Events that are read at once for one reader that catches up.
const PAGE: usize = 64;

/// One event as it goes over the wire. All readers share its bytes.
#[derive(Debug, Clone)]
struct Frame {
    sequence: u64,
    bytes: Bytes,
}

#[derive(Debug, Clone)]
enum News {
    /// What is before this is in the log, and will not be told.
    Begun(u64),
    Event(Frame),
    /// Nothing follows but these bytes.
    End(Bytes),
}

/// Everybody who watches a run.
#[derive(Debug, Default)]
pub(super) struct Hub {
    tails: Mutex<BTreeMap<String, Weak<Tail>>>,
}

/// The end of the log of one run, read as long as somebody watches.
#[derive(Debug)]
struct Tail {
    news: Sender<News>,
}

impl Hub {
    /// The tail of a run and the first news of it. Who comes first starts the reading.
    fn watch(&self, context: &Arc<Context>, run: &RunFiles) -> (Arc<Tail>, Receiver<News>) {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        tails.retain(|_, tail| tail.strong_count() > 0);
        if let Some(tail) = tails.get(run.run_id()).and_then(Weak::upgrade) {
            let news = tail.news.subscribe();
            return (tail, news);
        }
        let (sender, news) = broadcast::channel(BUFFER);
        let tail = Arc::new(Tail { news: sender });
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

/// Reads the log as it grows and tells everybody, until nobody listens or the run is over.
async fn follow(context: Arc<Context>, run: RunFiles, tail: Weak<Tail>) {
    let end = match followed(&context, &run, &tail).await {
        Ok(None) => return,
        Ok(Some(status)) => end_frame(&status),
        Err(_) => Bytes::from_static(b"event: dropped\ndata: {\"reason\":\"the log of the run cannot be read\"}\n\n"),
    };
    // Whoever comes from now on starts another reading.
    context.hub().forget(run.run_id(), &tail);
    if let Some(tail) = tail.upgrade() {
        let _ = tail.news.send(News::End(end));
    }
}

/// How the run ended; nothing when nobody listens any more.
async fn followed(context: &Arc<Context>, run: &RunFiles, tail: &Weak<Tail>) -> Result<Option<String>, OptimizerError> {
    let mut next = newest(context, run).await?;
    if let Some(tail) = tail.upgrade() {
        let _ = tail.news.send(News::Begun(next));
    }
    loop {
        // Whether it is over is asked before the events are read: none can come after the last one that is read then.
        let end = run.end(context).await?;
        let frames = page(context, run, next, BUFFER / 2).await?;
        let is_all = frames.len() < BUFFER / 2;
        let Some(tail) = tail.upgrade() else { return Ok(None) };
        for frame in frames {
            next = frame.sequence + 1;
            // Nobody may listen just now.
            let _ = tail.news.send(News::Event(frame));
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

async fn page(context: &Arc<Context>, run: &RunFiles, from: u64, limit: usize) -> Result<Vec<Frame>, OptimizerError> {
    let run = run.clone();
    context
        .read(move || {
            let lines = run.lines(from, limit)?;
            Ok(lines.into_iter().map(|(sequence, line)| frame(sequence, &line)).collect())
        })
        .await
}

fn frame(sequence: u64, line: &str) -> Frame {
    Frame { sequence, bytes: Bytes::from(format!("id: {sequence}\ndata: {line}\n\n")) }
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
    behind: std::vec::IntoIter<Frame>,
    caught_up: bool,
    _tail: Arc<Tail>,
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
            if let Some(frame) = self.behind.next() {
                self.next = frame.sequence + 1;
                return Some(frame.bytes);
            }
            if !self.caught_up {
                let frames = page(&self.context, &self.run, self.next, PAGE).await.ok()?;
                self.caught_up = frames.len() < PAGE;
                self.behind = frames.into_iter();
                continue;
            }
            let closing = self.context.closing();
            let told = tokio::select! {
                told = self.news.recv() => told,
                () = tokio::time::sleep(KEEP_ALIVE) => return Some(Bytes::from_static(b": still here\n\n")),
                () = closing => return None,
            };
            match told {
                // What is between what was read and what is told is in the log.
                Ok(News::Begun(first)) => self.caught_up = first <= self.next,
                Ok(News::Event(frame)) if frame.sequence > self.next => self.caught_up = false,
                Ok(News::Event(frame)) if frame.sequence < self.next => {}
                Ok(News::Event(frame)) => {
                    self.next = frame.sequence + 1;
                    return Some(frame.bytes);
                }
                Ok(News::End(bytes)) => {
                    // Events that were stored before the end and after the last page.
                    let rest = page(&self.context, &self.run, self.next, BUFFER).await.ok()?;
                    self.over = true;
                    let rest: Vec<u8> = rest.iter().flat_map(|frame| frame.bytes.iter().copied()).collect();
                    return Some(Bytes::from([rest.as_slice(), &bytes].concat()));
                }
                Err(RecvError::Lagged(_)) => {
                    self.context.metrics().stream_dropped();
                    self.over = true;
                    return Some(Bytes::from_static(b"event: dropped\ndata: {\"reason\":\"too slow\"}\n\n"));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

/// The events of a run from `next` on, as a stream that ends with the run.
pub(super) fn events(context: &Arc<Context>, run: RunFiles, next: u64) -> Response<Body> {
    let (tail, news) = context.hub().watch(context, &run);
    let watcher = Watcher {
        context: Arc::clone(context),
        run,
        next,
        behind: Vec::new().into_iter(),
        caught_up: false,
        _tail: tail,
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

//! Live events for one client: what it has missed from the log, then what its run's follower sends. A client that falls behind
//! is dropped.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use futures_util::stream::{self, Stream};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::context::Context;
use super::follow::{Chunk, News, Tail, UNREADABLE, read};
use super::metrics::Metrics;
use super::runs::RunFiles;

/// A line is sent this often when nothing else is, so that both sides notice a connection that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

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
                Ok(Some(chunk)) if chunk.next <= self.next => {}
                Ok(Some(chunk)) if chunk.first == self.next => return Some(self.sent(chunk)),
                // What is between what was sent and this is in the log.
                Ok(_) => self.caught_up = false,
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
    let (tail, news) = context.hub.watch(context, &run);
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

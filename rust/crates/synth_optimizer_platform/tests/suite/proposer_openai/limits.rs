//! Concurrent turns and interrupted turns.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::usage::Usage;
use synth_optimizer_platform::proposer::Proposer;

use super::{ProposerFixture, end, good, nothing_used};
use crate::container::server::{Server, ServerAction};
use crate::waiting::{wait_until_async, with_timeout};

async fn until_asked(server: &Server) {
    wait_until_async("the endpoint is asked", || !server.lines().is_empty()).await;
}

#[tokio::test]
async fn concurrent_requests_are_limited() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (inside, seen) = (Arc::clone(&now), Arc::clone(&most));
    // Each request waits for another one, so they only proceed in pairs.
    let pair = Barrier::new(2);
    let server = Server::start(move |_| {
        let count = inside.fetch_add(1, Ordering::SeqCst) + 1;
        seen.fetch_max(count, Ordering::SeqCst);
        pair.wait();
        inside.fetch_sub(1, Ordering::SeqCst);
        good()
    });
    let fixture = ProposerFixture::of(&server, |section| section.max_concurrent_requests = Some(2));
    let turns = (1..=6).map(|number| fixture.turn(number));
    for outcome in with_timeout(join_all(turns)).await {
        outcome.unwrap();
    }
    assert_eq!((most.load(Ordering::SeqCst), server.lines().len()), (2, 6));
}

#[tokio::test]
async fn an_interrupt_ends_every_turn_at_once() {
    let server = Server::start(|_| ServerAction::Hang);
    let fixture = Arc::new(ProposerFixture::of(&server, |section| section.max_concurrent_requests = Some(1)));
    let (first, second) = (Arc::clone(&fixture), Arc::clone(&fixture));
    let first = tokio::spawn(async move { first.turn(1).await });
    until_asked(&server).await;
    let second = tokio::spawn(async move { second.turn(2).await });
    tokio::task::yield_now().await;
    fixture.proposer.interrupt();
    let (first, second) = with_timeout(async { (first.await.unwrap(), second.await.unwrap()) }).await;
    // The first request was sent and may be billed; the second one was still waiting.
    assert_eq!(end(&first), (FailureClass::Abandoned, false, false));
    assert_eq!(first.unwrap_err().failure.usage, Usage::default());
    assert_eq!(end(&second), (FailureClass::Withdrawn, false, false));
    assert_eq!(second.unwrap_err().failure.usage, nothing_used());
    assert_eq!(server.lines().len(), 1);
    assert!(fixture.transcripts().contains("interrupted"));
}

#[tokio::test]
async fn an_interrupt_affects_only_active_turns() {
    let server = Server::start(|_| good());
    let fixture = ProposerFixture::of(&server, |_| {});
    fixture.proposer.interrupt();
    fixture.propose().await.unwrap();
}

#[tokio::test]
async fn an_interrupt_ends_a_retry_delay() {
    let headers = || vec![("retry-after", "1".into()), ("connection", "close".into())];
    let server = Server::start(move |_| ServerAction::Reply { status: 429, headers: headers(), body: Vec::new() });
    let fixture = Arc::new(ProposerFixture::of(&server, |_| {}));
    let turn = Arc::clone(&fixture);
    let turn = tokio::spawn(async move { turn.propose().await });
    // The connection closes after the response has been read.
    wait_until_async("the pause has begun", || server.closed() == 1).await;
    fixture.proposer.interrupt();
    assert_eq!(end(&turn.await.unwrap()), (FailureClass::Withdrawn, false, false));
}

#[tokio::test]
async fn a_turn_that_is_dropped_leaves_its_transcript() {
    let server = Server::start(|_| ServerAction::Hang);
    let fixture = ProposerFixture::of(&server, |_| {});
    tokio::select! {
        _ = fixture.propose() => panic!("it hangs"),
        () = until_asked(&server) => {}
    }
    assert!(fixture.transcripts().contains("gepa_proposal"));
}

async fn join_all<T>(turns: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut turns: Vec<_> = turns.map(|turn| (Box::pin(turn), None)).collect();
    std::future::poll_fn(|context| {
        for (turn, outcome) in turns.iter_mut().filter(|(_, outcome)| outcome.is_none()) {
            if let std::task::Poll::Ready(ended) = turn.as_mut().poll(context) {
                *outcome = Some(ended);
            }
        }
        if turns.iter().all(|(_, outcome)| outcome.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    turns.into_iter().filter_map(|(_, outcome)| outcome).collect()
}

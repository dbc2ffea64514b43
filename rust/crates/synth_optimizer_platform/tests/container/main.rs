//! Tests of the container boundary against scripted servers and real processes on this machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod client;
mod process;
mod program;
mod replies;
mod rows;
mod server;
mod toy;
mod transport;
mod transport_async;

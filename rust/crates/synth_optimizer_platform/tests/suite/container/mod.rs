//! Tests of the container boundary against scripted servers and real processes on this machine.
mod client;
mod process;
mod program;
mod replies;
mod rows;
pub(crate) mod server;
mod toy;
mod transport;
mod transport_async;

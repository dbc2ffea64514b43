//! The durable queue: what it promises, checked on real files, with real processes and several connections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bench;
mod fencing;
mod lanes;
mod leases;
mod lifecycle;
mod many;
mod opening;
mod reading;
mod submitting;
mod tidying;

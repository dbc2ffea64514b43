//! Tests of the durable queue, on real files, with real processes and several connections, and of the page that shows its runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod concurrency;
mod fencing;
mod fixture;
mod lanes;
mod leases;
mod lifecycle;
mod opening;
mod page;
mod pruning;
mod reading;
mod submitting;

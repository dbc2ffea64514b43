//! Connections that are lent to one caller each. Nobody waits for one longer than for another process that writes.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::error::{QueueCode, QueueError};

/// Connections to one file.
#[derive(Debug)]
pub(super) struct Lender {
    connections: Vec<Mutex<Connection>>,
    /// The numbers of those that nobody has.
    idle: Mutex<Vec<usize>>,
    back: Condvar,
    patience: Duration,
}

/// A connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    connection: MutexGuard<'a, Connection>,
    lender: &'a Lender,
    number: usize,
}

impl Lender {
    pub(super) fn new(connections: Vec<Connection>, patience: Duration) -> Self {
        let idle = Mutex::new((0..connections.len()).collect());
        let connections = connections.into_iter().map(Mutex::new).collect();
        Self { connections, idle, back: Condvar::new(), patience }
    }

    /// A connection, as soon as one is free.
    pub(super) fn lend(&self) -> Result<Lent<'_>, QueueError> {
        let until = Instant::now() + self.patience;
        let mut idle = whole(&self.idle);
        loop {
            if let Some(number) = idle.pop() {
                drop(idle);
                return Ok(Lent { connection: whole(&self.connections[number]), lender: self, number });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!("others use the queue for more than {} s", self.patience.as_secs_f64());
                let hint = "Something writes to the queue for long: ask again in a moment.";
                return Err(QueueError::new(QueueCode::StoreBusy, message, hint));
            }
            idle = self.back.wait_timeout(idle, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A transaction that a panic interrupted was rolled back: the connection is as good as before.
fn whole<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Deref for Lent<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        whole(&self.lender.idle).push(self.number);
        self.lender.back.notify_one();
    }
}

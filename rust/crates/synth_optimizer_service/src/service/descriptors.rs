//! File descriptors: enough for the runs, whatever clients do.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the service itself has open.
const OWN: u64 = 128;
/// What one run has open at most: databases, feeds, locks, and connections to its container.
const OF_A_RUN: u64 = 128;

/// Takes as many descriptors as the system lets this process have, and tells how many connections of clients may use:
/// what is wanted, or less where the runs need the rest.
pub(super) fn connections(wanted: usize, runs: usize) -> usize {
    let limits = getrlimit(Resource::Nofile);
    // Where it cannot be raised, there is less.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }).is_ok();
    let limit = if raised { limits.maximum } else { limits.current };
    within(wanted, runs, limit)
}

fn within(wanted: usize, runs: usize, limit: Option<u64>) -> usize {
    let Some(limit) = limit else { return wanted };
    let left = limit.saturating_sub(OWN).saturating_sub(OF_A_RUN.saturating_mul(runs as u64));
    // A service that nobody can call is of no use: at worst, clients get a quarter.
    wanted.min(usize::try_from(left.max(limit / 4)).unwrap_or(usize::MAX)).max(1)
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn clients_leave_the_runs_their_files() {
        assert_eq!(within(8192, 4, None), 8192);
        assert_eq!(within(8192, 4, Some(1 << 20)), 8192);
        assert_eq!(within(8192, 4, Some(1024)), 1024 - 128 - 4 * 128);
        assert_eq!(within(8192, 1000, Some(1024)), 256);
        assert_eq!(within(1, 1000, Some(2)), 1);
    }
}

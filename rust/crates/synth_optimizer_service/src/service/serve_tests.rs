//! How many connections clients may have.

use super::connections_within;

#[test]
fn clients_leave_the_runs_their_files() {
    assert_eq!(connections_within(8192, 4, None), 8192);
    assert_eq!(connections_within(8192, 4, Some(1 << 20)), 8192);
    assert_eq!(connections_within(8192, 4, Some(1024)), 1024 - 128 - 4 * 128);
    assert_eq!(connections_within(8192, 1000, Some(1024)), 256);
    assert_eq!(connections_within(1, 1000, Some(2)), 1);
}

//! The limit of client connections.

use super::connection_limit;

#[test]
fn the_connection_limit_reserves_descriptors_for_runs() {
    assert_eq!(connection_limit(8192, 4, None), 8192);
    assert_eq!(connection_limit(8192, 4, Some(1 << 20)), 8192);
    assert_eq!(connection_limit(8192, 4, Some(1024)), 1024 - 128 - 4 * 128);
    assert_eq!(connection_limit(8192, 1000, Some(1024)), 256);
    assert_eq!(connection_limit(1, 1000, Some(2)), 1);
}

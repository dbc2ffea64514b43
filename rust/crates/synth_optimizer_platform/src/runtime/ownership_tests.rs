#![allow(clippy::unwrap_used)]

use super::RunLease;
use crate::workspace::is_ownership_lost;

#[test]
fn a_lease_expires_at_its_deadline_and_any_clone_can_extend_it() {
    let lease = RunLease::until(u64::MAX);
    assert!(lease.check().is_ok());
    assert!(lease.clone().extend_to(0));
    let error = lease.check().unwrap_err();
    assert!(is_ownership_lost(&error) && error.message.contains("has expired"), "{error}");
    assert!(lease.extend_to(u64::MAX));
    assert!(lease.check().is_ok());
}

#[test]
fn a_revoked_lease_stays_revoked() {
    let lease = RunLease::until(u64::MAX);
    lease.clone().revoke();
    assert!(!lease.extend_to(u64::MAX));
    let error = lease.check().unwrap_err();
    assert!(is_ownership_lost(&error) && error.message.contains("revoked"), "{error}");
}

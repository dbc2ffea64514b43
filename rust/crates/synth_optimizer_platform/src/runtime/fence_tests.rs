#![allow(clippy::unwrap_used)]

use super::LeaseWatch;
use crate::workspace::is_fenced;

#[test]
fn a_lease_lasts_until_its_end_and_is_extended_by_any_clone() {
    let lease = LeaseWatch::until(u64::MAX);
    assert!(lease.check().is_ok());
    assert!(lease.clone().extend_to(0));
    let error = lease.check().unwrap_err();
    assert!(is_fenced(&error) && error.message.contains("run out"), "{error}");
    assert!(lease.extend_to(u64::MAX));
    assert!(lease.check().is_ok());
}

#[test]
fn a_revoked_lease_stays_revoked() {
    let lease = LeaseWatch::until(u64::MAX);
    lease.clone().revoke();
    assert!(!lease.extend_to(u64::MAX));
    let error = lease.check().unwrap_err();
    assert!(is_fenced(&error) && error.message.contains("revoked"), "{error}");
}

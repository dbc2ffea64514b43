//! Tests of the shapes of fields of each kind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{Shape, root};

fn at(path: &str) -> Option<&'static Shape> {
    root().below(&path.split('.').map(str::to_owned).collect::<Vec<_>>())
}

#[test]
fn the_schema_gives_every_kind_of_shape() {
    assert_eq!(at("run.run_id"), Some(&Shape::Text));
    assert_eq!(at("run.seed"), Some(&Shape::Integer { least: 0, most: i128::from(u64::MAX) }));
    assert_eq!(at("gepa.minibatch_size"), Some(&Shape::Integer { least: 1, most: i128::from(u32::MAX) }));
    assert_eq!(at("gepa.rollout_failure_rate_tolerance"), Some(&Shape::Number { least: 0.0, most: 1.0 }));
    assert_eq!(at("dataset.train_seeds"), Some(&Shape::Rows { by_number: true }));
    assert_eq!(at("taskset.train_ids"), Some(&Shape::Rows { by_number: false }));
    assert_eq!(at("seed_candidate.anything"), Some(&Shape::Text));
    assert_eq!(at("policy.config.a.b.c"), Some(&Shape::Anything));
    assert!(matches!(at("proposer.sandbox_mode"), Some(Shape::Word { words, .. }) if words.len() == 3));
    assert!(matches!(at("gepa.task_pools"), Some(Shape::Table(fields)) if fields.len() == 4));
    assert_eq!(at("gepa.max_tokens"), at("gepa.max_total_tokens"));
    assert_eq!(at("gepa.nothing"), None);
    assert_eq!(at("run.run_id.x"), None);
}

#[test]
fn no_field_is_left_unchecked() {
    for (path, field) in root().leaves() {
        assert_ne!(field.shape, Shape::Anything, "{path}");
    }
}

#[test]
fn no_field_of_a_configuration_is_a_credential() {
    for (path, _) in root().leaves() {
        assert!(!path.split('.').any(crate::secrets::is_credential_name), "{path}");
    }
}

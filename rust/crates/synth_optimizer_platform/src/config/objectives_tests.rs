//! The deciding objective comes first, wherever it is declared.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{GepaSection, OUTCOME_REWARD, objective_names};

#[test]
fn the_deciding_objective_comes_first() {
    let cases: [(Option<&str>, &[&str], &[&str]); 5] = [
        (None, &[], &[OUTCOME_REWARD]),
        (None, &["a", "b"], &["a", "b"]),
        (Some("b"), &["a", "b", "c"], &["b", "a", "c"]),
        (Some("x"), &["a", "b"], &["x", "a", "b"]),
        (Some("x"), &[], &["x"]),
    ];
    for (selection, keys, expected) in cases {
        let gepa = GepaSection {
            selection_objective: selection.map(str::to_owned),
            objective_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            ..GepaSection::default()
        };
        assert_eq!(objective_names(&gepa), expected, "{selection:?} {keys:?}");
    }
}

//! Tests of the pools, caps and objectives of small configurations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{Config, GepaSection, OUTCOME_REWARD, Pools, RolloutCaps, effective_caps, objective_names, pools};
use crate::config::sections::DatasetSection;

fn caps(total: u32, train: Option<u32>, heldout: Option<u32>) -> RolloutCaps {
    let mut config = Config::default();
    config.gepa.max_total_rollouts = total;
    config.gepa.max_train_rollouts = train;
    config.gepa.max_heldout_rollouts = heldout;
    effective_caps(&config)
}

#[test]
fn an_unset_half_falls_back_to_the_total() {
    assert_eq!(caps(50, None, None), RolloutCaps { train: 50, heldout: 50, total: Some(50) });
    assert_eq!(caps(50, Some(7), None), RolloutCaps { train: 7, heldout: 50, total: None });
    assert_eq!(caps(50, None, Some(7)), RolloutCaps { train: 50, heldout: 7, total: None });
    assert_eq!(caps(50, Some(80), Some(7)), RolloutCaps { train: 80, heldout: 7, total: None });
}

#[test]
fn an_empty_pool_contains_all_rows_of_its_source() {
    let mut config = Config::default();
    assert_eq!(pools(&config), Pools::default());
    config.dataset = Some(DatasetSection {
        train_seeds: vec![10, 20, 30].into(),
        heldout_seeds: vec![7, 8].into(),
        ..Default::default()
    });
    let all = pools(&config);
    assert_eq!(
        all,
        Pools { pareto: vec![0, 1, 2], minibatch: vec![0, 1, 2], reflection: vec![0, 1, 2], heldout: vec![0, 1] }
    );
    config.gepa.seed_pools.pareto_eval = vec![30, 10];
    assert_eq!(pools(&config).minibatch, [2, 0]);
    config.gepa.seed_pools.minibatch = vec![20];
    let some = pools(&config);
    assert_eq!((some.pareto, some.minibatch, some.reflection), (vec![2, 0], vec![1], vec![1]));
    config.gepa.seed_pools.validation = vec![8];
    assert_eq!(pools(&config).heldout, [1]);
}

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

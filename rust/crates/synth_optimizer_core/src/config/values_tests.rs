//! A stored configuration can be loaded again, unless it had secrets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::json;

use super::from_stored;
use crate::config::gepa::SearchMode;
use crate::config::{
    Config, ConfigContent, ConfigSource, Origin, adopt_stored, load, redacted_config, search_differences,
};
use crate::model::error::ErrorCode;

fn config(container: serde_json::Value) -> Config {
    let value = json!({
        "container": container,
        "dataset": {"train_seeds": [0, 1, 2], "heldout_seeds": [0]},
        "candidate": {"target_modules": ["prompt"]},
        "gepa": {"minibatch_size": 2, "max_total_rollouts": 40},
    });
    let source = ConfigSource { name: "test", content: ConfigContent::Mapping(value), base_dir: "/base".into() };
    load(source, &Default::default(), &[]).unwrap().config
}

#[test]
fn a_stored_configuration_round_trips() {
    let config = config(json!({"url": "http://127.0.0.1:9100"}));
    let loaded = from_stored(&redacted_config(&config), "workspace.sqlite").unwrap();
    assert_eq!(loaded.config, config);
    assert_eq!(search_differences(&redacted_config(&config), &loaded.config), Vec::<String>::new());
    assert!(loaded.values.iter().all(|value| value.origin == Origin::Run) && loaded.values.len() > 50);
}

#[test]
fn a_run_of_an_earlier_version_keeps_the_defaults_of_that_version() {
    let today = config(json!({"url": "http://127.0.0.1:9100"}));
    let mut stored = redacted_config(&today);
    let gepa = stored["gepa"].as_object_mut().unwrap();
    for unknown in ["search", "sprint", "rebase"] {
        assert!(gepa.shift_remove(unknown).is_some(), "{unknown}");
    }
    gepa.insert("proposals_per_generation".to_owned(), json!(2));
    gepa.insert("max_generations".to_owned(), json!(2));
    gepa.insert("max_perfect_skips".to_owned(), json!(16));
    gepa.insert("min_full_coverage".to_owned(), json!(0.25));
    assert!(stored["proposer"].as_object_mut().unwrap().shift_remove("edits").is_some());

    let resumed = from_stored(&stored, "workspace.sqlite").unwrap().config;
    let gepa = &resumed.gepa;
    assert_eq!((gepa.search, gepa.rebase), (SearchMode::Reference, false));
    assert_eq!((gepa.proposals_per_generation, gepa.max_generations), (2, Some(2)));
    assert_eq!(search_differences(&stored, &resumed), Vec::<String>::new());

    // The same file with the defaults of today is another search, and the difference has a name.
    let mut again = today;
    adopt_stored(&mut again, &stored);
    assert_eq!(search_differences(&stored, &again), ["gepa.proposals_per_generation: 2 -> 1"]);
    again.gepa.proposals_per_generation = 2;
    assert_eq!(search_differences(&stored, &again), Vec::<String>::new());
}

#[test]
fn a_configuration_that_had_secrets_is_refused_with_their_places() {
    let mut config = config(json!({"url": "http://127.0.0.1:9100"}));
    config.container.url = "http://me:hush-hush@127.0.0.1:9100".into();
    let error = from_stored(&redacted_config(&config), "workspace.sqlite").unwrap_err();
    assert_eq!(error.code, ErrorCode::Config);
    assert!(error.message.contains("container.url") && error.hint.contains("gepa run --config"), "{error:?}");
    assert!(!error.message.contains("hush"), "{error}");
}

#[test]
fn a_configuration_of_another_shape_is_rejected() {
    let error = from_stored(&json!({"run": 7}), "workspace.sqlite").unwrap_err();
    assert!(error.message.contains("workspace.sqlite cannot be read"), "{error}");
}

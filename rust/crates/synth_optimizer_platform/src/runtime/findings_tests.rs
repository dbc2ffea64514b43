//! Finds the config field that a message names.

use super::named_field;

#[test]
fn the_config_field_in_a_message_is_found() {
    let named = |text| named_field(text).unwrap_or_default();
    assert_eq!(named("`candidate.target_modules[1]` names \"x\""), "candidate.target_modules[1]");
    assert_eq!(named("Set X, or name another variable in proposer.api_key_env."), "proposer.api_key_env");
    assert_eq!(named("Its whole output is in /tmp/a/container.log."), "");
    assert_eq!(named("run.lock is held; raise gepa.max_cost_usd"), "gepa.max_cost_usd");
    assert_eq!(named("the program has modules.0.candidate_field"), "");
}

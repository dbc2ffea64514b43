//! Which configurations a service refuses.

#![allow(clippy::unwrap_used)]

use super::{AccessPolicy, EgressPolicy, starts_processes};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::proposer::ProposerBackend;
use synth_optimizer_core::config::sections::CacheMode;

fn service() -> AccessPolicy {
    AccessPolicy {
        containers: EgressPolicy::containers(),
        proposers: EgressPolicy::proposers(),
        key_variables: Some(["MY_TOKEN".to_owned()].into()),
        refuses_commands: true,
    }
}

/// A configuration that breaks every rule.
fn hostile() -> Config {
    let mut config = Config::default();
    config.container.url = "http://169.254.169.254".into();
    config.container.command = vec!["sh".into()];
    config.container.token_env = Some("OPENAI_API_KEY".into());
    config.policy.get_or_insert_default().api_key_env = Some("AWS_SECRET_ACCESS_KEY".into());
    config.proposer.base_url = Some("http://10.0.0.1/v1".into());
    config.proposer.api_key_env = Some("AWS_SECRET_ACCESS_KEY".into());
    config
}

#[tokio::test]
async fn every_rule_that_a_configuration_breaks_is_reported() {
    let refusals = service().refusals(&hostile()).await;
    let told: Vec<(&str, &str)> =
        refusals.iter().map(|(field, error)| (*field, error.message.split(':').next().unwrap())).collect();
    assert_eq!(
        told,
        [
            ("container.url", "container_not_allowed"),
            ("proposer.base_url", "proposer_not_allowed"),
            ("container.token_env", "variable_not_allowed"),
            ("proposer.api_key_env", "variable_not_allowed"),
            ("policy.api_key_env", "variable_not_allowed"),
            ("container.command", "command_not_allowed"),
            ("proposer.backend", "command_not_allowed"),
        ]
    );
    assert!(refusals.iter().all(|(_, error)| error.hint.contains("--allow-")), "{refusals:?}");
}

#[tokio::test]
async fn a_service_reads_no_prices_from_files_of_its_machine() {
    let mut config = Config::default();
    config.cache.mode = CacheMode::Readonly;
    config.proposer.price_file = Some("/etc/shadow".into());
    let refusals = service().refusals(&config).await;
    assert_eq!(refusals.len(), 1);
    assert!(refusals[0].1.message.starts_with("file_not_allowed: proposer.price_file"), "{refusals:?}");
    assert_eq!(AccessPolicy::default().refusals(&config).await, []);
}

#[tokio::test]
async fn the_command_line_and_readonly_runs_are_not_restricted() {
    assert_eq!(AccessPolicy::default().refusals(&hostile()).await, []);
    let mut config = hostile();
    assert!(starts_processes(&config));
    config.cache.mode = CacheMode::Readonly;
    assert!(!starts_processes(&config));
    assert_eq!(service().refusals(&config).await, []);
}

#[tokio::test]
async fn allowed_addresses_and_variables_are_accepted() {
    let mut config = Config::default();
    config.container.url = "http://127.0.0.1:9100".into();
    config.container.token_env = Some("MY_TOKEN".into());
    // The container was not started by the run, and reads its own environment.
    config.policy.get_or_insert_default().api_key_env = Some("ANYTHING".into());
    config.proposer.backend = ProposerBackend::OpenaiCompatible;
    config.proposer.base_url = Some("http://127.0.0.1:11434/v1".into());
    for variable in ["OPENAI_API_KEY", "GROQ_API_KEY", "MY_TOKEN"] {
        config.proposer.api_key_env = Some(variable.into());
        assert_eq!(service().refusals(&config).await, [], "{variable}");
    }
    assert!(!starts_processes(&config));
}

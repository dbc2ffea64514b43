//! What a configuration may reach and start. On the command line a user runs their own configuration, and everything is
//! allowed; a service executes the configurations of its clients and restricts them.

mod egress_policy;
mod providers;

use std::collections::BTreeSet;

pub use egress_policy::EgressPolicy;
pub(crate) use providers::{is_provider_variable, provider_of};

use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::proposer::ProposerBackend;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// The addresses, environment variables and commands that configurations may name. The default allows everything.
#[derive(Debug, Clone, Default)]
pub struct AccessPolicy {
    pub containers: EgressPolicy,
    pub proposers: EgressPolicy,
    /// Variables that hold a token or a key and that a configuration may name. The keys of well-known providers may be used
    /// for models without being named here. `None` allows every variable.
    pub key_variables: Option<BTreeSet<String>>,
    /// Whether a configuration that starts processes is refused.
    pub refuses_commands: bool,
}

/// A rule that a configuration breaks, and the field that breaks it.
pub type Refusal = (&'static str, OptimizerError);

impl AccessPolicy {
    /// Returns every rule that a configuration breaks. Calls and starts nothing. A readonly run, which does neither, breaks
    /// only rules about files.
    pub async fn refusals(&self, config: &Config) -> Vec<Refusal> {
        let mut refusals: Vec<Refusal> = Vec::new();
        // A service that restricts variables reads no files for its clients either: an error could show what is in them.
        if let Some(file) = config.proposer.price_file.as_ref().filter(|_| self.key_variables.is_some()) {
            let message =
                format!("file_not_allowed: proposer.price_file names {file}, which the service does not read");
            let error = OptimizerError::new(ErrorCode::Proposer, message)
                .with_hint("Write the prices into [proposer.prices.MODEL].");
            refusals.push(("proposer.price_file", error));
        }
        if config.cache.mode == CacheMode::Readonly {
            return refusals;
        }
        refusals.extend(self.containers.check(&config.container.url).await.err().map(|error| ("container.url", error)));
        if let Some(base_url) = &config.proposer.base_url {
            refusals.extend(self.proposers.check(base_url).await.err().map(|error| ("proposer.base_url", error)));
        }
        // Without a command, the container reads the variable of the policy in its own environment.
        let policy_key = config
            .policy
            .as_ref()
            .and_then(|policy| policy.api_key_env.as_ref())
            .filter(|_| !config.container.command.is_empty());
        for (field, code, name) in [
            ("container.token_env", ErrorCode::Container, config.container.token_env.as_ref()),
            ("proposer.api_key_env", ErrorCode::Proposer, config.proposer.api_key_env.as_ref()),
            ("policy.api_key_env", ErrorCode::Container, policy_key),
        ] {
            let is_model_key = field != "container.token_env";
            if let Some(name) = name.filter(|name| !self.allows_variable(name, is_model_key)) {
                let message = format!("variable_not_allowed: {field} names {name:?}, which the service may not use");
                let hint = format!("Start the service with --allow-key-env {name} to allow it.");
                refusals.push((field, OptimizerError::new(code, message).with_hint(hint)));
            }
        }
        if self.refuses_commands {
            refusals.extend(commands(config).into_iter().map(|(field, code, what)| {
                let message = format!("command_not_allowed: {field} {what}, and the service starts no commands");
                let hint = "Start the service with --allow-commands if every caller may run commands as its user.";
                (field, OptimizerError::new(code, message).with_hint(hint))
            }));
        }
        refusals
    }

    /// Returns whether a configuration may name this variable. Keys of well-known providers may be used for models only.
    fn allows_variable(&self, name: &str, is_model_key: bool) -> bool {
        let is_allowed =
            |allowed: &BTreeSet<String>| allowed.contains(name) || (is_model_key && is_provider_variable(name));
        self.key_variables.as_ref().is_none_or(is_allowed)
    }
}

/// Returns whether a run or a check of this configuration starts processes.
pub fn starts_processes(config: &Config) -> bool {
    config.cache.mode != CacheMode::Readonly && !commands(config).is_empty()
}

/// Returns the fields that make a run start processes, with what each does.
fn commands(config: &Config) -> Vec<(&'static str, ErrorCode, &'static str)> {
    let mut commands = Vec::new();
    if !config.container.command.is_empty() {
        commands.push(("container.command", ErrorCode::Container, "starts a container"));
    }
    if config.proposer.backend == ProposerBackend::CodexAppServer {
        let field = if config.proposer.command.is_empty() { "proposer.backend" } else { "proposer.command" };
        commands.push((field, ErrorCode::Proposer, "starts codex"));
    }
    commands
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;

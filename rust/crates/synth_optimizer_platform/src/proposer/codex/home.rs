//! The run-local home of codex: its complete configuration and an empty working directory. It contains nothing of the
//! host.

use std::io;
use std::os::unix::fs::symlink;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};

use super::access::{AUTH_FILE, ModelAccess, OWN_PROVIDER};
use crate::container::ProcessOwner;
use crate::file_error;
use crate::proposer::files::{make_dir, remove_dir, write_new};
use synth_optimizer_core::config::proposer::{ProposerSection, ReasoningEffort, SandboxMode};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Name of the home directory in the run directory.
pub(super) const HOME: &str = ".codex_home";
/// Name of the file that describes a model that codex does not know.
const CATALOG: &str = "catalog.json";
/// Name of the permission profile under which commands run.
pub(super) const PROFILE: &str = "proposer";
const BASE_INSTRUCTIONS: &str = "You improve the texts of a program. Work only inside the current directory, with the \
                                 files that are there. There is no network.";

/// Returns whether commands may write to their workspace.
pub(super) fn may_write(section: &ProposerSection) -> bool {
    match section.sandbox_mode {
        Some(SandboxMode::ReadOnly) => false,
        // The config rejects full access, so it is never granted here.
        Some(SandboxMode::WorkspaceWrite | SandboxMode::DangerFullAccess) | None => true,
    }
}

/// A codex home on disk.
#[derive(Debug)]
pub(super) struct CodexHome {
    pub(super) run_dir: Utf8PathBuf,
    pub(super) path: Utf8PathBuf,
}

impl CodexHome {
    /// Creates the home from scratch. Commands may read `package` in addition to the system and their workspace.
    /// `token` marks their processes as ours.
    pub(super) fn create(
        run_dir: &Utf8Path,
        section: &ProposerSection,
        access: &ModelAccess,
        package: &Utf8Path,
        token: &str,
    ) -> Result<Self, OptimizerError> {
        let home = Self { run_dir: run_dir.to_owned(), path: run_dir.join(HOME) };
        home.remove()?;
        make_dir(&home.scratch_dir()).map_err(|error| failed("made", &home.path, error))?;
        let write = |name: &str, text: &str| {
            let path = home.path.join(name);
            write_new(&path, text.as_bytes()).map_err(|error| failed("written", &path, error))
        };
        let invariant = |error| OptimizerError::from_cause(ErrorCode::Invariant, "codex's config", error);
        let mut config = config(section, access, package, token).map_err(invariant)?;
        // Codex gives a model that it does not know no tool to edit files, so describe such a model. It knows the model
        // that it chooses itself.
        if let Some(model) = section.model.as_deref().filter(|_| !access.is_openai()) {
            config["model_catalog_json"] = home.path.join(CATALOG).into_string().into();
            write(CATALOG, &catalog(model).to_string())?;
        }
        let config = toml::to_string(&config)
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Invariant, "codex's config", error))?;
        write("config.toml", &config)?;
        if let ModelAccess::Host { auth } = access {
            // A link, not a copy, so that codex renews the sign-in in its original place.
            let link = home.path.join(AUTH_FILE);
            symlink(auth, &link).map_err(|error| failed("linked", &link, error))?;
        }
        Ok(home)
    }

    /// Returns the empty directory in which codex runs and the sandbox probe runs.
    pub(super) fn scratch_dir(&self) -> Utf8PathBuf {
        self.path.join("desk")
    }

    pub(super) fn remove(&self) -> Result<(), OptimizerError> {
        remove_dir(&self.path).map_err(|error| failed("removed", &self.path, error))
    }
}

/// Builds the complete configuration.
fn config(
    section: &ProposerSection,
    access: &ModelAccess,
    package: &Utf8Path,
    token: &str,
) -> Result<Value, toml::de::Error> {
    let mut config: Value = toml::from_str(include_str!("config.toml"))?;
    if let Some(model) = &section.model {
        config["model"] = model.as_str().into();
    }
    config["model_provider"] = access.provider().into();
    // The token lets us find and end commands that outlive codex.
    config["shell_environment_policy"]["set"] = json!({ (ProcessOwner::Proposer.variable()): token });
    let files = &mut config["permissions"][PROFILE]["filesystem"];
    files[package.as_str()] = "read".into();
    files[":workspace_roots"] = json!({ ".": if may_write(section) { "write" } else { "read" } });
    if let ModelAccess::Endpoint { base_url, key } = access {
        let mut provider = json!({
            "name": section.provider,
            "base_url": base_url,
            "wire_api": "responses",
            "supports_websockets": false,
            "request_max_retries": section.request_retries,
            "stream_max_retries": section.request_retries,
            "stream_idle_timeout_ms": section.idle_timeout_seconds.saturating_mul(1000),
        });
        if let Some(key) = key {
            // Only the name of the variable; the key itself is only in the environment of codex.
            provider["env_key"] = key.variable.clone().into();
        }
        config["model_providers"] = json!({ (OWN_PROVIDER): provider });
    }
    Ok(config)
}

fn catalog(model: &str) -> Value {
    let levels: Vec<Value> =
        ReasoningEffort::NAMES.iter().map(|level| json!({ "effort": level, "description": level })).collect();
    json!({ "models": [{
        "slug": model,
        "display_name": model,
        "visibility": "list",
        "supported_in_api": true,
        "priority": 1,
        "base_instructions": BASE_INSTRUCTIONS,
        "supported_reasoning_levels": levels,
        "shell_type": "unified_exec",
        "apply_patch_tool_type": "freeform",
        "support_verbosity": false,
        "supports_parallel_tool_calls": false,
        "context_window": 200_000,
        "truncation_policy": { "mode": "tokens", "limit": 10_000 },
        "experimental_supported_tools": [],
    }] })
}

fn failed(done: &str, path: &Utf8Path, error: io::Error) -> OptimizerError {
    file_error::classified(format!("{path} cannot be {done}"), error)
}

#[cfg(test)]
#[path = "home_tests.rs"]
mod tests;

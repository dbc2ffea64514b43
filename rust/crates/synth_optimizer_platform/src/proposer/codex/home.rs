//! The run-local home of codex: its whole configuration, an empty desk to run on, and nothing of the host.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};

use super::access::{AUTH_FILE, Access};
use crate::container::Holder;
use synth_optimizer_core::config::proposer::{ProposerSection, ReasoningEffort, SandboxMode};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Name of the home in the run directory.
pub(super) const HOME: &str = ".codex_home";
/// Name of the permission profile under which commands run.
pub(super) const PROFILE: &str = "proposer";
/// The name under which a provider of our own definition is known.
const OWN_PROVIDER: &str = "proposer";

const BASE_INSTRUCTIONS: &str = "You improve the texts of a program. Work only inside the current directory, with the \
                                 files that are there. There is no network.";

/// What stands in the configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings<'a> {
    pub(super) section: &'a ProposerSection,
    pub(super) model: &'a str,
    pub(super) access: &'a Access,
    /// What commands may read besides the system and their workspace.
    pub(super) package: &'a Utf8Path,
    /// Marks every command as ours.
    pub(super) token: &'a str,
}

impl Settings<'_> {
    /// The provider's name in the configuration.
    pub(super) fn provider(&self) -> &'static str {
        match self.access {
            Access::Endpoint { .. } => OWN_PROVIDER,
            Access::Host { .. } => "openai",
        }
    }
}

/// Whether commands may write their workspace.
pub(super) fn may_write(section: &ProposerSection) -> bool {
    match section.sandbox_mode {
        Some(SandboxMode::ReadOnly) => false,
        // The config refuses full access; this never grants it.
        Some(SandboxMode::WorkspaceWrite | SandboxMode::DangerFullAccess) | None => true,
    }
}

/// A home on disk.
#[derive(Debug)]
pub(super) struct Home {
    path: Utf8PathBuf,
}

impl Home {
    /// Makes it anew.
    pub(super) fn create(run_dir: &Utf8Path, settings: &Settings<'_>) -> Result<Self, OptimizerError> {
        let home = Self { path: run_dir.join(HOME) };
        home.remove()?;
        let make = |dir: &Utf8Path| DirBuilder::new().recursive(true).mode(0o700).create(dir);
        make(&home.path).and_then(|()| make(&home.desk())).map_err(|error| failed("made", &home.path, error))?;
        let config = toml::to_string(&config(settings, &home.path))
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Invariant, "codex's config", error))?;
        write(&home.path.join("config.toml"), &config)?;
        if needs_catalog(settings) {
            write(&home.catalog(), &catalog(settings.model).to_string())?;
        }
        if let Access::Host { auth } = settings.access {
            // A link and not a copy: the sign-in stays where it is, and is renewed there.
            let link = home.path.join(AUTH_FILE);
            symlink(auth, &link).map_err(|error| failed("linked", &link, error))?;
        }
        Ok(home)
    }

    pub(super) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// The empty directory in which codex runs and the sandbox is tried.
    pub(super) fn desk(&self) -> Utf8PathBuf {
        self.path.join("desk")
    }

    fn catalog(&self) -> Utf8PathBuf {
        self.path.join("catalog.json")
    }

    pub(super) fn remove(&self) -> Result<(), OptimizerError> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("removed", &self.path, error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Codex knows the models of OpenAI; one that it does not know would get no tool to edit files.
fn needs_catalog(settings: &Settings<'_>) -> bool {
    !settings.access.is_openai()
}

/// The whole configuration. Codex is started so that it refuses what it does not know.
fn config(settings: &Settings<'_>, home: &Utf8Path) -> Value {
    let section = settings.section;
    let mut config = json!({
        "model": settings.model,
        "model_provider": settings.provider(),
        "approval_policy": "never",
        "default_permissions": PROFILE,
        "web_search": "disabled",
        "check_for_update_on_startup": false,
        "cli_auth_credentials_store": "file",
        // Instructions that lie in a workspace are data.
        "project_doc_max_bytes": 0,
        "features": {
            "plugins": false,
            "unbounded_connection_retries": false,
            "apps": false,
            "goals": false,
            "multi_agent": false,
            "view_image": false,
            "shell_snapshot": false,
        },
        "skills": { "include_instructions": false, "bundled": { "enabled": false } },
        "analytics": { "enabled": false },
        "feedback": { "enabled": false },
        "history": { "persistence": "none" },
        "shell_environment_policy": {
            "inherit": "core",
            "ignore_default_excludes": false,
            "exclude": ["*KEY*", "*SECRET*", "*TOKEN*", "*PASSWORD*"],
            // By this, commands that outlive codex are found and ended.
            "set": { (Holder::Proposer.variable()): settings.token },
        },
        "permissions": { (PROFILE): {
            "filesystem": {
                ":minimal": "read",
                (settings.package.as_str()): "read",
                ":workspace_roots": { ".": if may_write(section) { "write" } else { "read" } },
            },
            "network": { "enabled": false },
        } },
    });
    if let Access::Endpoint { base_url, key } = settings.access {
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
            // The name of the variable; the key itself is in the environment of codex and nowhere else.
            provider["env_key"] = key.variable.clone().into();
        }
        config["model_providers"] = json!({ (OWN_PROVIDER): provider });
    }
    if needs_catalog(settings) {
        config["model_catalog_json"] = home.join("catalog.json").into_string().into();
    }
    config
}

fn catalog(model: &str) -> Value {
    let levels: Vec<Value> =
        ReasoningEffort::WORDS.iter().map(|level| json!({ "effort": level, "description": level })).collect();
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

fn write(path: &Utf8Path, text: &str) -> Result<(), OptimizerError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| failed("written", path, error))
}

fn failed(done: &str, path: &Utf8Path, error: std::io::Error) -> OptimizerError {
    OptimizerError::from_cause(ErrorCode::Io, format!("{path} cannot be {done}"), error)
}

#[cfg(test)]
#[path = "home_tests.rs"]
mod tests;

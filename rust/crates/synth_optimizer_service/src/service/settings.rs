//! The settings of a service, and their validation.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use camino::Utf8PathBuf;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::guard::Token;
use super::workers::ProposerFactory;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::secrets::can_name_variable;
use synth_optimizer_platform::access::{AccessPolicy, EgressPolicy};

const MAX_LEASE: Duration = Duration::from_secs(30 * 24 * 3600);

/// The settings of a service. The defaults are those of the command line, and the serialized names are those of its options.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    #[serde(skip)]
    pub db: Utf8PathBuf,
    /// Address and port. Port 0 selects a free port.
    #[serde(rename = "bind_addr")]
    pub bind: String,
    /// The worker id of this service's leases.
    pub worker_id: String,
    /// Maximum number of concurrent runs.
    pub workers: usize,
    /// How long a lease lasts without a heartbeat.
    #[serde(rename = "lease_seconds", with = "seconds")]
    pub lease: Duration,
    /// Configuration files must be beneath this directory. Relative paths of an inline configuration resolve against it.
    #[serde(skip_serializing)]
    pub config_root: Utf8PathBuf,
    #[serde(skip_serializing)]
    pub token_file: Option<Utf8PathBuf>,
    /// Host names that clients may use besides the bound address.
    #[serde(skip_serializing)]
    pub allow_hosts: Vec<String>,
    /// Container addresses that runs may call besides loopback: hosts, hosts with a port, or networks.
    #[serde(skip_serializing)]
    pub allow_containers: Vec<String>,
    /// Proposer addresses that runs may call besides loopback and the well-known providers.
    #[serde(skip_serializing)]
    pub allow_proposers: Vec<String>,
    /// Environment variables that a configuration may name for a key or a token, besides the keys of well-known providers.
    #[serde(skip_serializing)]
    pub allow_key_envs: Vec<String>,
    /// Whether runs may start commands. `None` allows them only without a token: then every caller is a user of this machine.
    #[serde(skip_serializing)]
    pub allow_commands: Option<bool>,
    /// How long a run may stay paused before it is cancelled, unless the pause request sets another time. `None` cancels no
    /// paused run.
    #[serde(rename = "pause_timeout_seconds", with = "optional_seconds")]
    pub pause_timeout: Option<Duration>,
    /// Grace period for calls in flight at shutdown.
    #[serde(rename = "shutdown_grace_seconds", with = "seconds")]
    pub shutdown_grace: Duration,
    /// A run fails if it stores no event for this long, in addition to the longest timeout of its own configuration.
    #[serde(rename = "stall_timeout_seconds", with = "seconds")]
    pub stall_timeout: Duration,
    /// How long a run that an outage interrupted waits in the queue before a worker tries again.
    #[serde(rename = "outage_retry_seconds", with = "seconds")]
    pub outage_retry: Duration,
    /// Maximum number of queued requests. Further submissions are rejected.
    pub max_queued: u32,
    /// How long to wait for another process that writes to the database.
    #[serde(rename = "busy_timeout_seconds", with = "seconds")]
    pub busy_timeout: Duration,
    pub max_connections: usize,
    /// The largest request body, in megabytes.
    pub max_body_mb: usize,
    /// How long a client may take to send its headers.
    #[serde(rename = "header_timeout_seconds", with = "seconds")]
    pub header_timeout: Duration,
    /// How long a client may take to send its body.
    #[serde(rename = "body_timeout_seconds", with = "seconds")]
    pub body_timeout: Duration,
    /// How long a client may pause reading a response.
    #[serde(rename = "write_timeout_seconds", with = "seconds")]
    pub write_timeout: Duration,
    /// Path of the codex binary that is installed with the package.
    #[serde(skip_serializing)]
    pub codex_runtime: Option<Utf8PathBuf>,
    #[serde(skip)]
    pub proposers: Option<ProposerFactory>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            db: Utf8PathBuf::new(),
            bind: "127.0.0.1:8879".into(),
            worker_id: "local-gepa".into(),
            workers: 4,
            lease: Duration::from_secs(3600),
            config_root: ".".into(),
            token_file: None,
            allow_hosts: Vec::new(),
            allow_containers: Vec::new(),
            allow_proposers: Vec::new(),
            allow_key_envs: Vec::new(),
            allow_commands: None,
            pause_timeout: None,
            shutdown_grace: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(900),
            outage_retry: Duration::from_secs(60),
            max_queued: 10_000,
            busy_timeout: Duration::from_secs(5),
            max_connections: 8192,
            max_body_mb: 2,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            codex_runtime: None,
            proposers: None,
        }
    }
}

/// Returns a positive time of at most a billion seconds, which fits into milliseconds.
pub fn time_of_seconds(given: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(given).ok().filter(|time| !time.is_zero() && given <= 1e9)
}

/// Times as numbers of seconds.
mod seconds {
    use super::{Deserialize, Deserializer, Duration, Error, Serializer, time_of_seconds};

    pub(super) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let given = f64::deserialize(deserializer)?;
        let refused = || D::Error::custom(format!("{given} is not a positive number of seconds, at most a billion"));
        time_of_seconds(given).ok_or_else(refused)
    }
}

/// Times as numbers of seconds, or null.
mod optional_seconds {
    use super::{Deserialize, Deserializer, Duration, Serialize, Serializer};

    #[derive(Deserialize)]
    struct Seconds(#[serde(with = "super::seconds")] Duration);

    pub(super) fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs_f64()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Seconds>::deserialize(deserializer)?.map(|Seconds(time)| time))
    }
}

impl Settings {
    /// Reads settings from a JSON object. Missing ones have their defaults.
    pub fn from_json(text: &str) -> Result<Self, OptimizerError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Config, "reading the settings failed", error))?;
        serde_path_to_error::deserialize(value).map_err(|error| {
            let message = format!("{}: {}", error.path(), error.inner());
            OptimizerError::new(ErrorCode::Config, message).with_hint("Read `synth-optimizers gepa service --help`.")
        })
    }

    /// Returns the directory of running checks, where the next service finds leftovers after a crash.
    pub(super) fn checks_dir(&self) -> Utf8PathBuf {
        Utf8PathBuf::from(format!("{}.checks", self.db))
    }

    /// Validates the settings and reads the token file. Opens nothing else.
    pub(super) fn check(&self) -> Result<CheckedSettings, OptimizerError> {
        let refused =
            |message: String, hint: &str| Err(OptimizerError::new(ErrorCode::Config, message).with_hint(hint));
        let found =
            self.bind.to_socket_addrs().and_then(|mut found| found.next().ok_or(std::io::ErrorKind::NotFound.into()));
        let address = found.map_err(|error| {
            let message = format!("--bind {:?} is not an address", self.bind);
            OptimizerError::new(ErrorCode::Config, message).with_hint("Write it like 127.0.0.1:8879.").caused_by(error)
        })?;
        let token = self.token_file.as_deref().map(Token::read).transpose()?;
        if !address.ip().is_loopback() && token.is_none() {
            return refused(
                format!("--bind {} is reachable from other machines, and no token is configured", self.bind),
                "Add --token-file FILE with a token of at least 32 characters, or bind to 127.0.0.1.",
            );
        }
        if !(1..=1024).contains(&self.workers) {
            return refused(
                format!("--workers {} is not between 1 and 1024", self.workers),
                "Choose the number of runs that execute concurrently.",
            );
        }
        if self.lease < Duration::from_secs(1) || self.lease > MAX_LEASE {
            return refused(
                format!("--lease-seconds {} is not between 1 second and 30 days", self.lease.as_secs_f64()),
                "Use 3600. A worker renews its lease three times per period.",
            );
        }
        if !self.config_root.is_dir() {
            return refused(
                format!("--config-root {} is not a directory", self.config_root),
                "Name the directory that holds the configuration files.",
            );
        }
        let config_root = self.config_root.canonicalize_utf8().map_err(|error| {
            let what = format!("--config-root {} cannot be opened", self.config_root);
            OptimizerError::from_cause(ErrorCode::Io, what, error)
        })?;
        Ok(CheckedSettings { address, token, config_root, access: self.access()? })
    }

    /// Returns what the configurations of clients may reach and start.
    fn access(&self) -> Result<AccessPolicy, OptimizerError> {
        let allow = |policy: EgressPolicy, entries: &[String]| {
            entries.iter().try_fold(policy, |policy, entry| policy.allow(entry))
        };
        if let Some(name) = self.allow_key_envs.iter().find(|name| !can_name_variable(name)) {
            let message = format!("--allow-key-env {name:?} is not the name of a variable");
            return Err(OptimizerError::new(ErrorCode::Config, message).with_hint("Write a name such as MY_API_KEY."));
        }
        Ok(AccessPolicy {
            containers: allow(EgressPolicy::containers(), &self.allow_containers)?,
            proposers: allow(EgressPolicy::proposers(), &self.allow_proposers)?,
            key_variables: Some(self.allow_key_envs.iter().cloned().collect()),
            refuses_commands: !self.allow_commands.unwrap_or(self.token_file.is_none()),
        })
    }
}

/// The validated settings.
#[derive(Debug)]
pub(super) struct CheckedSettings {
    pub(super) address: SocketAddr,
    pub(super) token: Option<Token>,
    pub(super) config_root: Utf8PathBuf,
    pub(super) access: AccessPolicy,
}

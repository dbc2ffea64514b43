//! The sections of a configuration, one type each. Their doc comments are the reference that users read.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;

use super::gepa::{GepaSection, MAX_SECONDS, MAX_TOKENS};
use super::proposer::ProposerSection;
use super::row_selection::RowSelection;
use crate::string_enum;

/// Defines sections of the configuration, with their defaults and their part of the JSON Schema.
///
/// A field is `name: Type [range] = default,`. The range is that of `schemars`. Without a default, the field has the default
/// of its type. An unset `Option` is omitted from JSON.
macro_rules! section {
    ($($(#[$meta:meta])* $name:ident { $($fields:tt)* })+) => {
        $(section!(@fields [$(#[$meta])* $name] [] [] $($fields)*);)+
    };
    (@fields [$(#[$meta:meta])* $name:ident] [$($declared:tt)*] [$($defaults:tt)*]) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($declared)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($defaults)* }
            }
        }
    };
    (@fields $section:tt [$($declared:tt)*] [$($defaults:tt)*]
        $(#[$meta:meta])* $field:ident: Option<$type:ty> $([$($range:tt)*])?, $($rest:tt)*) => {
        section!(@fields $section [
            $($declared)*
            $(#[$meta])*
            #[serde(skip_serializing_if = "Option::is_none")]
            $(#[schemars(range($($range)*))])?
            pub $field: Option<$type>,
        ] [$($defaults)* $field: None,] $($rest)*);
    };
    (@fields $section:tt [$($declared:tt)*] [$($defaults:tt)*]
        $(#[$meta:meta])* $field:ident: $type:ty $([$($range:tt)*])? $(= $default:expr)?, $($rest:tt)*) => {
        section!(@fields $section [
            $($declared)*
            $(#[$meta])*
            $(#[schemars(range($($range)*))])?
            pub $field: $type,
        ] [$($defaults)* $field: section!(@default $($default)?),] $($rest)*);
    };
    (@default $default:expr) => { $default };
    (@default) => { Default::default() };
}

pub(super) use section;

section! {
    /// A whole configuration file.
    Config {
        run: RunSection,
        container: ContainerSection,
        /// Rows by row number. Give `[dataset]` or `[taskset]`, not both. Without both, a run uses all rows of the splits `train`
        /// and `test`.
        dataset: Option<DatasetSection>,
        /// Rows by task id.
        taskset: Option<TasksetSection>,
        candidate: CandidateSection,
        /// The initial candidate: its texts by mutable field. Empty: the container's own initial candidate.
        seed_candidate: BTreeMap<String, String>,
        /// The model inside the task. Unset: rollouts contain no policy.
        policy: Option<PolicySection>,
        proposer: ProposerSection,
        gepa: GepaSection,
        cache: CacheSection,
        disk_budget: DiskBudgetSection,
    }
}
string_enum! {
    /// What a committed event survives.
    Durability {
        /// A crash or kill of the process.
        Process = "process",
        /// Also a loss of power, at the cost of one fsync per commit.
        Power = "power",
    }
}

section! {
    /// Name, directory and random seed of the run.
    RunSection {
        /// Name of the run and of its directory: letters, digits, `.`, `_`, `-`, at most 128. Unset: `gepa_` and 32 random hex digits.
        run_id: Option<String>,
        /// Root directory of all runs. Relative to the config file.
        #[schemars(with = "String")]
        output_dir: Utf8PathBuf = "runs".into(),
        /// Random seed: determines every random choice of the search.
        seed: u64 = 0,
        /// What a committed event survives.
        durability: Durability = Durability::Process,
        /// How long an interrupt waits for calls in flight, in seconds.
        interrupt_grace_seconds: u64 [max = MAX_SECONDS] = 60,
        /// How long a cancel or a failure waits for calls in flight, in seconds.
        cancel_grace_seconds: u64 [max = MAX_SECONDS] = 1,
        /// How long the run waits if the container or the proposer is unavailable, in seconds. Then it is interrupted and can be
        /// resumed.
        outage_patience_seconds: u64 [max = MAX_SECONDS] = 600,
        /// Pause before the first try during an outage, in milliseconds. It doubles with each try.
        outage_retry_ms: u64 [min = 1, max = 3_600_000] = 1000,
        /// Maximum pause between two tries during an outage, in seconds. A server can ask for a longer one.
        outage_retry_max_seconds: u64 [min = 1, max = 600] = 30,
        /// Number of events that a slow subscriber of the live feed may fall behind before it must read from the workspace.
        feed_buffer: u32 [min = 1, max = 1_000_000] = 1024,
    }
    /// The task container, an HTTP service.
    ContainerSection {
        /// Base URL of the container, like `http://127.0.0.1:9100`. Required.
        url: String,
        /// Command that starts the container. Empty: it is already running.
        command: Vec<String>,
        /// Working directory of `command`. Relative to the config file.
        #[schemars(with = "Option<String>")]
        cwd: Option<Utf8PathBuf>,
        /// How long the container may take until `/health` answers, in seconds.
        startup_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 30,
        /// Interval between checks of `/health` while the container starts, in milliseconds.
        health_interval_ms: u64 [min = 1, max = 60_000] = 250,
        /// How long the container may take to end after the stop signal, in seconds. Then it is killed.
        stop_timeout_seconds: u64 [max = MAX_SECONDS] = 2,
        /// Names of environment variables that are passed to `command`, in addition to basic ones such as `PATH` and `HOME`.
        /// `"*"` passes all.
        pass_env: Vec<String>,
        /// Name of the variable that holds the token of the container. A name, never a token. Every call sends the token as
        /// `Authorization: Bearer`, and `command` receives the variable. Unset: no token is sent.
        token_env: Option<String>,
        /// How long a connection may take, in seconds.
        connect_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 5,
        /// How long any call but a rollout may take, in seconds.
        request_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 30,
        /// Timeout of a rollout in submission mode `sync`, in seconds.
        rollout_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 600,
        /// How often a call is retried if the connection is refused.
        connect_retries: u32 [max = 1000] = 3,
        /// How often a call is retried if the container answers 429 or 503.
        overload_retries: u32 [max = 1000] = 5,
        /// Pause before the first retry, in milliseconds. It doubles with each retry. `Retry-After` is honoured.
        retry_backoff_ms: u64 [min = 1, max = 3_600_000] = 200,
        /// Maximum pause between retries, in milliseconds. If the container asks for a longer one before a rollout, the run
        /// waits as in an outage.
        retry_backoff_max_ms: u64 [min = 1, max = 3_600_000] = 10_000,
        /// How long the container is asked for a rollout whose answer was lost, before it counts as not run, in seconds. Unset:
        /// four times as long as the longest rollout so far, and at least 5 seconds.
        recovery_timeout_seconds: Option<u64> [max = MAX_SECONDS],
        /// Maximum size of an answer, in megabytes.
        max_reply_mb: u64 [min = 1, max = 4096] = 16,
    }
    /// Rows by row number.
    DatasetSection {
        /// Split of the train rows.
        train_split: String = "train".into(),
        /// Split of the held-out rows.
        heldout_split: String = "test".into(),
        /// Row numbers of the train rows: `"all"`, a range such as `"0..359"` (both ends included), or a list of row numbers and
        /// ranges. `"all"` requires a container that names its splits.
        train_seeds: RowSelection<i64>,
        /// Row numbers of the held-out rows, written like `train_seeds`. If the container has rows in the train split only, a random
        /// fifth of them is set aside as held-out rows, at least 20 and at most half.
        heldout_seeds: RowSelection<i64>,
        /// Passed to the container unchanged.
        filters: BTreeMap<String, serde_json::Value>,
    }
    /// Rows by task id, instead of `[dataset]`.
    TasksetSection {
        /// Split of the train tasks.
        train_split: String = "train".into(),
        /// Split of the held-out tasks.
        heldout_split: String = "test".into(),
        /// Ids of the train tasks: `"all"`, a range such as `"train:0..359"` (both ends included), or a list of ids and ranges.
        /// `"all"` requires a container that names its splits.
        train_ids: RowSelection<String>,
        /// Ids of the held-out tasks, written like `train_ids`. If the container has tasks in the train split only, a random fifth of
        /// them is set aside as held-out tasks, at least 20 and at most half.
        heldout_ids: RowSelection<String>,
        /// Passed to the container unchanged.
        filters: BTreeMap<String, serde_json::Value>,
    }
    /// The texts that the search may change.
    CandidateSection {
        /// Mutable fields of the container's program that the search may change. Required.
        target_modules: Vec<String>,
        /// Prefix of candidate ids: letters, digits, `_`, `-`, at most 32.
        candidate_id_prefix: String = "gepa_".into(),
        /// Where the initial texts come from, by field, so that `runs apply` can write the best texts back: `@FILE`,
        /// `FILE.toml:KEY`, `FILE.yaml#KEY` or `FILE.py:NAME`. Files are relative to the config file.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        sources: BTreeMap<String, String>,
        /// Literal texts that every candidate must keep, each a `[[candidate.keep]]` table. A proposal that loses one is
        /// refused before any rollout.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        keep: Vec<KeepSpan>,
    }
    /// A literal text that every candidate must keep.
    KeepSpan {
        /// The text, with its case and white space. At most 4096 characters. Required.
        text: String,
        /// The target field that must keep it. Unset: every target field whose initial text contains it.
        field: Option<String>,
    }
}
string_enum! {
    /// The API family of the model endpoint.
    ApiFamily {
        /// Chat Completions.
        ChatCompletions = "chat_completions",
        /// The Responses API.
        Responses = "responses",
    }
    /// Whether to turn off the policy's reasoning.
    DisableReasoning { Auto = "auto", On = "on" | "true" | "1", Off = "off" | "false" | "0", }
    /// How the policy calls tools.
    ToolCallStyle { OpenaiChat = "openai_chat", OpenaiResponses = "openai_responses", CodexSessionNative = "codex_session_native", None = "none", }
    /// Whether the policy may call its model directly.
    ProxyMode { AllowDirect = "allow_direct", ProxyOnly = "proxy_only", AssertProxy = "assert_proxy", }
    /// Who holds the policy's credentials.
    CredentialMode {
        /// The container, in its own environment.
        Byok = "byok",
        /// The proxy at `inference_url`.
        Proxy = "proxy",
    }
}

section! {
    /// The model inside the task. The container receives this section with every rollout; keys stay in the container. Without
    /// this section, a rollout says nothing about a model, and the container decides.
    PolicySection {
        /// Provider of the model.
        provider: String = "openai".into(),
        /// Name of the model. Unset: the container's own.
        model: Option<String>,
        api_family: ApiFamily = ApiFamily::ChatCompletions,
        /// Base URL of the model's API. Unset: the provider's own.
        base_url: Option<String>,
        /// URL for the policy's calls. Required for `credential_mode = "proxy"`.
        inference_url: Option<String>,
        /// Maximum number of tokens of one answer of the policy.
        max_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        disable_reasoning: DisableReasoning = DisableReasoning::Auto,
        tool_call_style: ToolCallStyle = ToolCallStyle::None,
        proxy_mode: ProxyMode = ProxyMode::AllowDirect,
        credential_mode: CredentialMode = CredentialMode::Byok,
        /// Name of the variable that holds the policy's key in the container's environment. A name, never a key.
        api_key_env: Option<String>,
        /// Additional settings of the policy. Names that look like credentials are rejected.
        config: BTreeMap<String, serde_json::Value>,
    }
}
string_enum! {
    /// How the request cache is used.
    CacheMode {
        /// The cache is not used.
        Off = "off",
        /// Known answers come from the cache, and new answers are stored.
        Readwrite = "readwrite",
        /// Answers come only from the cache. A missing answer is an error and sends no call.
        Readonly = "readonly",
    }
}

section! {
    /// The request cache.
    CacheSection {
        mode: CacheMode = CacheMode::Readwrite,
        /// Cache file. Relative to the config file. Unset: `request_cache.sqlite` in the run directory.
        #[schemars(with = "Option<String>")]
        path: Option<Utf8PathBuf>,
        /// Namespace within the cache file. Unset: `gepa:` and the run id.
        namespace: Option<String>,
        /// Maximum size of the cache file, in megabytes.
        max_mb: u64 [min = 1, max = 1_000_000] = 4096,
    }
    /// Limits of the disk space of all runs.
    DiskBudgetSection {
        /// Whether the limits apply.
        enabled: bool = true,
        /// New runs are refused above this size, in gigabytes.
        soft_limit_gb: f64 = 5.0,
        /// Active runs stop above this size, in gigabytes.
        hard_limit_gb: f64 = 10.0,
        /// Directory to measure. Relative to the config file. Unset: `run.output_dir`.
        #[schemars(with = "Option<String>")]
        path: Option<Utf8PathBuf>,
    }
}

impl CacheSection {
    /// Returns whether another run with the same section reuses the answers of this one.
    pub fn is_shared(&self) -> bool {
        self.mode == CacheMode::Readwrite && self.path.is_some() && self.namespace.is_some()
    }

    /// Returns the namespace that a run uses.
    pub fn namespace_of(&self, run_id: &str) -> String {
        self.namespace.clone().unwrap_or_else(|| format!("gepa:{run_id}"))
    }
}

//! What a user may write, one type per section; the doc comments are the reference that users read.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;

use super::gepa::{GepaSection, MAX_SECONDS, MAX_TOKENS};
use super::proposer::ProposerSection;
use crate::string_enum;

/// Defines sections of the configuration, with their defaults and their part of the JSON Schema.
///
/// A field is `name: Type [range] = default,`. The range is that of `schemars`; without a default the field starts with
/// the default of its type. An `Option` is left out where it is unset.
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
        /// Rows by seed. Give `[dataset]` or `[taskset]`, not both.
        dataset: Option<DatasetSection>,
        /// Rows by task id.
        taskset: Option<TasksetSection>,
        candidate: CandidateSection,
        /// The texts to start from, by mutable field. Empty: the container's own seed candidate.
        seed_candidate: BTreeMap<String, String>,
        policy: PolicySection,
        proposer: ProposerSection,
        gepa: GepaSection,
        cache: CacheSection,
        disk_budget: DiskBudgetSection,
    }
}
string_enum! {
    /// What a committed event survives.
    Durability {
        /// The end of the process, however it comes.
        Process = "process",
        /// The loss of power as well, at the price of one fsync per commit.
        Power = "power",
    }
}

section! {
    /// Identity and place of the run.
    RunSection {
        /// Name of the run and of its directory: letters, digits, `.`, `_`, `-`, at most 128. Unset: `gepa_` and 32 random hex digits.
        run_id: Option<String>,
        /// Root directory of all runs. Relative to the config file.
        #[schemars(with = "String")]
        output_dir: Utf8PathBuf = "runs".into(),
        /// Drives every random choice of the search.
        seed: u64 = 0,
        /// What a committed event survives.
        durability: Durability = Durability::Process,
        /// How long an interrupt waits for the calls under way, in seconds.
        interrupt_grace_seconds: u64 [max = MAX_SECONDS] = 60,
        /// How long a cancel or a failure waits for the calls under way, in seconds.
        cancel_grace_seconds: u64 [max = MAX_SECONDS] = 1,
        /// Events that a slow subscriber of the live feed may fall behind before it has to read them from the workspace.
        feed_buffer: u32 [min = 1, max = 1_000_000] = 1024,
    }
    /// The task, as an HTTP service.
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
        /// How often `/health` is asked while the container starts, in milliseconds.
        health_interval_ms: u64 [min = 1, max = 60_000] = 250,
        /// How long the container may take to end after it is told to, in seconds. Then it is killed.
        stop_timeout_seconds: u64 [max = MAX_SECONDS] = 2,
        /// Names of variables that `command` gets from this environment, besides `PATH`, `HOME` and the like.
        pass_env: Vec<String>,
        /// How long a connection may take, in seconds.
        connect_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 5,
        /// How long any call but a rollout may take, in seconds.
        request_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 30,
        /// How long a rollout may take that is sent and waited for (`sync`), in seconds.
        rollout_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 600,
        /// How often a call that was never sent, because nobody listens, is sent again.
        connect_retries: u32 [max = 1000] = 3,
        /// How often a call that the container refused with 429 or 503 is sent again.
        overload_retries: u32 [max = 1000] = 5,
        /// Pause before the first of these, in milliseconds; it doubles every time. `Retry-After` is honoured.
        retry_backoff_ms: u64 [min = 1, max = 3_600_000] = 200,
        /// Longest pause, in milliseconds.
        retry_backoff_max_ms: u64 [min = 1, max = 3_600_000] = 10_000,
        /// Largest answer that is read, in megabytes.
        max_reply_mb: u64 [min = 1, max = 4096] = 16,
    }
    /// Rows by seed.
    DatasetSection {
        /// Name of the split that the train rows come from.
        train_split: String = "train".into(),
        /// Name of the split that the held-out rows come from.
        heldout_split: String = "test".into(),
        /// Seeds of the train rows. Required.
        train_seeds: Vec<i64>,
        /// Seeds of the held-out rows. Required.
        heldout_seeds: Vec<i64>,
        /// Passed to the container as it is.
        filters: BTreeMap<String, serde_json::Value>,
    }
    /// Rows by task id: the other spelling of `[dataset]`.
    TasksetSection {
        /// Name of the split that the train tasks come from.
        train_split: String = "train".into(),
        /// Name of the split that the held-out tasks come from.
        heldout_split: String = "test".into(),
        /// Ids of the train tasks. Required.
        train_ids: Vec<String>,
        /// Ids of the held-out tasks. Required.
        heldout_ids: Vec<String>,
        /// Passed to the container as it is.
        filters: BTreeMap<String, serde_json::Value>,
    }
    /// Which texts may change.
    CandidateSection {
        /// Mutable fields of the container's program that the search may change. Required.
        target_modules: Vec<String>,
        /// Prefix of candidate ids: letters, digits, `_`, `-`, at most 32.
        candidate_id_prefix: String = "gepa_".into(),
    }
}
string_enum! {
    /// Which OpenAI-shaped API is spoken.
    ApiFamily {
        /// Chat Completions.
        ChatCompletions = "chat_completions",
        /// The Responses API.
        Responses = "responses",
    }
    /// Whether the policy's reasoning is turned off.
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
    /// The model inside the task. Sent to the container with every rollout; keys stay in the container.
    PolicySection {
        /// Who serves the model.
        provider: String = "openai".into(),
        /// Name of the model.
        model: String = "gpt-4.1-nano".into(),
        api_family: ApiFamily = ApiFamily::ChatCompletions,
        /// Base URL of the model's API, if it is not the provider's own.
        base_url: Option<String>,
        /// URL that the policy's calls go to. Required when `credential_mode = "proxy"`.
        inference_url: Option<String>,
        /// Most tokens of one answer of the policy.
        max_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        disable_reasoning: DisableReasoning = DisableReasoning::Auto,
        tool_call_style: ToolCallStyle = ToolCallStyle::None,
        proxy_mode: ProxyMode = ProxyMode::AllowDirect,
        credential_mode: CredentialMode = CredentialMode::Byok,
        /// Name of the variable that holds the policy's key in the container's environment. A name, never a key.
        api_key_env: Option<String>,
        /// Anything else the policy takes. Names that look like credentials are refused.
        config: BTreeMap<String, serde_json::Value>,
    }
}
string_enum! {
    /// How the request cache is used.
    CacheMode {
        /// Not at all.
        Off = "off",
        /// What is known is not asked again, and new answers are kept.
        Readwrite = "readwrite",
        /// Only what is known is used. A missing answer is an error, never a call.
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
        /// Largest size of the cache file, in megabytes.
        max_mb: u64 [min = 1, max = 1_000_000] = 4096,
    }
    /// How much disk the runs may take.
    DiskBudgetSection {
        /// Whether the limits are kept.
        enabled: bool = true,
        /// A new run is refused at this size.
        soft_limit_gb: f64 = 5.0,
        /// A run stops at this size.
        hard_limit_gb: f64 = 10.0,
        /// Directory that is measured. Relative to the config file. Unset: `run.output_dir`.
        #[schemars(with = "Option<String>")]
        path: Option<Utf8PathBuf>,
    }
}

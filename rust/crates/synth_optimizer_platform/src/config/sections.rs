//! What a user may write, one type per section; the doc comments are the reference that users read.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gepa::{GepaSection, MOST_SECONDS, MOST_TOKENS};
use super::proposer::ProposerSection;
use super::words::words;

/// A whole configuration file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub run: RunSection,
    pub container: ContainerSection,
    /// Rows by seed. Give `[dataset]` or `[taskset]`, not both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<DatasetSection>,
    /// Rows by task id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taskset: Option<TasksetSection>,
    pub candidate: CandidateSection,
    /// The texts to start from, by mutable field. Empty: the container's own seed candidate.
    pub seed_candidate: BTreeMap<String, String>,
    pub policy: PolicySection,
    pub proposer: ProposerSection,
    pub gepa: GepaSection,
    pub cache: CacheSection,
    pub disk_budget: DiskBudgetSection,
}

words! {
    /// What a committed event survives.
    Durability {
        /// The end of the process, however it comes.
        Process = "process",
        /// The loss of power as well, at the price of one fsync per commit.
        Power = "power",
    }
}

/// Identity and place of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunSection {
    /// Name of the run and of its directory: letters, digits, `.`, `_`, `-`, at most 128. Unset: `gepa_` and 32 random hex digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Root directory of all runs. Relative to the config file.
    #[schemars(with = "String")]
    pub output_dir: Utf8PathBuf,
    /// Drives every random choice of the search.
    pub seed: u64,
    /// What a committed event survives.
    pub durability: Durability,
    /// How long an interrupt waits for the calls under way, in seconds.
    #[schemars(range(max = MOST_SECONDS))]
    pub interrupt_grace_seconds: u64,
    /// How long a cancel or a failure waits for the calls under way, in seconds.
    #[schemars(range(max = MOST_SECONDS))]
    pub cancel_grace_seconds: u64,
    /// Events that a slow subscriber of the live feed may fall behind before it has to read them from the workspace.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub feed_buffer: u32,
}

impl Default for RunSection {
    fn default() -> Self {
        Self {
            run_id: None,
            output_dir: "runs".into(),
            seed: 0,
            durability: Durability::Process,
            interrupt_grace_seconds: 60,
            cancel_grace_seconds: 1,
            feed_buffer: 1024,
        }
    }
}

/// The task, as an HTTP service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContainerSection {
    /// Base URL of the container, like `http://127.0.0.1:9100`. Required.
    pub url: String,
    /// Command that starts the container. Empty: it is already running.
    pub command: Vec<String>,
    /// Working directory of `command`. Relative to the config file.
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<Utf8PathBuf>,
    /// How long the container may take until `/health` answers, in seconds.
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub startup_timeout_seconds: u64,
    /// How often `/health` is asked while the container starts, in milliseconds.
    #[schemars(range(min = 1, max = 60_000))]
    pub health_interval_ms: u64,
    /// How long the container may take to end after it is told to, in seconds. Then it is killed.
    #[schemars(range(max = MOST_SECONDS))]
    pub stop_timeout_seconds: u64,
    /// Names of variables that `command` gets from this environment, besides `PATH`, `HOME` and the like.
    pub pass_env: Vec<String>,
    /// How long a connection may take, in seconds.
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub connect_timeout_seconds: u64,
    /// How long any call but a rollout may take, in seconds.
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub request_timeout_seconds: u64,
    /// How long a rollout may take that is sent and waited for (`sync`), in seconds.
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub rollout_timeout_seconds: u64,
    /// How often a call that was never sent, because nobody listens, is sent again.
    #[schemars(range(max = 1000))]
    pub connect_retries: u32,
    /// How often a call that the container refused with 429 or 503 is sent again.
    #[schemars(range(max = 1000))]
    pub overload_retries: u32,
    /// Pause before the first of these, in milliseconds; it doubles every time. `Retry-After` is honoured.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub retry_backoff_ms: u64,
    /// Longest pause, in milliseconds.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub retry_backoff_max_ms: u64,
    /// Largest answer that is read, in megabytes.
    #[schemars(range(min = 1, max = 4096))]
    pub max_reply_mb: u64,
}

impl Default for ContainerSection {
    fn default() -> Self {
        Self {
            url: String::new(),
            command: Vec::new(),
            cwd: None,
            startup_timeout_seconds: 30,
            health_interval_ms: 250,
            stop_timeout_seconds: 2,
            pass_env: Vec::new(),
            connect_timeout_seconds: 5,
            request_timeout_seconds: 30,
            rollout_timeout_seconds: 600,
            connect_retries: 3,
            overload_retries: 5,
            retry_backoff_ms: 200,
            retry_backoff_max_ms: 10_000,
            max_reply_mb: 16,
        }
    }
}

/// Rows by seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DatasetSection {
    /// Name of the split that the train rows come from.
    pub train_split: String,
    /// Name of the split that the held-out rows come from.
    pub heldout_split: String,
    /// Seeds of the train rows. Required.
    pub train_seeds: Vec<i64>,
    /// Seeds of the held-out rows. Required.
    pub heldout_seeds: Vec<i64>,
    /// Passed to the container as it is.
    pub filters: BTreeMap<String, serde_json::Value>,
}

impl Default for DatasetSection {
    fn default() -> Self {
        Self {
            train_split: "train".into(),
            heldout_split: "test".into(),
            train_seeds: Vec::new(),
            heldout_seeds: Vec::new(),
            filters: BTreeMap::new(),
        }
    }
}

/// Rows by task id: the other spelling of `[dataset]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TasksetSection {
    /// Name of the split that the train tasks come from.
    pub train_split: String,
    /// Name of the split that the held-out tasks come from.
    pub heldout_split: String,
    /// Ids of the train tasks. Required.
    pub train_ids: Vec<String>,
    /// Ids of the held-out tasks. Required.
    pub heldout_ids: Vec<String>,
    /// Passed to the container as it is.
    pub filters: BTreeMap<String, serde_json::Value>,
}

impl Default for TasksetSection {
    fn default() -> Self {
        Self {
            train_split: "train".into(),
            heldout_split: "test".into(),
            train_ids: Vec::new(),
            heldout_ids: Vec::new(),
            filters: BTreeMap::new(),
        }
    }
}

/// Which texts may change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CandidateSection {
    /// Mutable fields of the container's program that the search may change. Required.
    pub target_modules: Vec<String>,
    /// Prefix of candidate ids: letters, digits, `_`, `-`, at most 32.
    pub candidate_id_prefix: String,
}

impl Default for CandidateSection {
    fn default() -> Self {
        Self { target_modules: Vec::new(), candidate_id_prefix: "gepa_".into() }
    }
}

words! {
    /// Which OpenAI-shaped API is spoken.
    ApiFamily {
        /// Chat Completions.
        ChatCompletions = "chat_completions",
        /// The Responses API.
        Responses = "responses",
    }
}
words! {
    /// Whether the policy's reasoning is turned off.
    DisableReasoning { Auto = "auto", On = "on" | "true" | "1", Off = "off" | "false" | "0", }
}
words! {
    /// How the policy calls tools.
    ToolCallStyle { OpenaiChat = "openai_chat", OpenaiResponses = "openai_responses", CodexSessionNative = "codex_session_native", None = "none", }
}
words! {
    /// Whether the policy may call its model directly.
    ProxyMode { AllowDirect = "allow_direct", ProxyOnly = "proxy_only", AssertProxy = "assert_proxy", }
}
words! {
    /// Who holds the policy's credentials.
    CredentialMode {
        /// The container, in its own environment.
        Byok = "byok",
        /// The proxy at `inference_url`.
        Proxy = "proxy",
    }
}

/// The model inside the task. Sent to the container with every rollout; keys stay in the container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySection {
    /// Who serves the model.
    pub provider: String,
    /// Name of the model.
    pub model: String,
    pub api_family: ApiFamily,
    /// Base URL of the model's API, if it is not the provider's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// URL that the policy's calls go to. Required when `credential_mode = "proxy"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inference_url: Option<String>,
    /// Most tokens of one answer of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_TOKENS))]
    pub max_tokens: Option<u64>,
    pub disable_reasoning: DisableReasoning,
    pub tool_call_style: ToolCallStyle,
    pub proxy_mode: ProxyMode,
    pub credential_mode: CredentialMode,
    /// Name of the variable that holds the policy's key in the container's environment. A name, never a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Anything else the policy takes. Names that look like credentials are refused.
    pub config: BTreeMap<String, serde_json::Value>,
}

impl Default for PolicySection {
    fn default() -> Self {
        Self {
            provider: "openai".into(),
            model: "gpt-4.1-nano".into(),
            api_family: ApiFamily::ChatCompletions,
            base_url: None,
            inference_url: None,
            max_tokens: None,
            disable_reasoning: DisableReasoning::Auto,
            tool_call_style: ToolCallStyle::None,
            proxy_mode: ProxyMode::AllowDirect,
            credential_mode: CredentialMode::Byok,
            api_key_env: None,
            config: BTreeMap::new(),
        }
    }
}

words! {
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

/// The request cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheSection {
    pub mode: CacheMode,
    /// Cache file. Relative to the config file. Unset: `request_cache.sqlite` in the run directory.
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Utf8PathBuf>,
    /// Namespace within the cache file. Unset: `gepa:` and the run id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Largest size of the cache file, in megabytes.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_mb: u64,
}

impl Default for CacheSection {
    fn default() -> Self {
        Self { mode: CacheMode::Readwrite, path: None, namespace: None, max_mb: 4096 }
    }
}

/// How much disk the runs may take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DiskBudgetSection {
    /// Whether the limits are kept.
    pub enabled: bool,
    /// A new run is refused at this size.
    pub soft_limit_gb: f64,
    /// A run stops at this size.
    pub hard_limit_gb: f64,
    /// Directory that is measured. Relative to the config file. Unset: `run.output_dir`.
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Utf8PathBuf>,
}

impl Default for DiskBudgetSection {
    fn default() -> Self {
        Self { enabled: true, soft_limit_gb: 5.0, hard_limit_gb: 10.0, path: None }
    }
}

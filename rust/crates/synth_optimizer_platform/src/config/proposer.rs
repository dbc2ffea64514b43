//! `[proposer]`: who writes the proposals, and within which limits.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gepa::{MOST_SECONDS, MOST_TOKENS};
use super::sections::ApiFamily;
use super::words::words;

words! {
    /// Who writes the proposals.
    ProposerBackend {
        /// A codex app-server that the run starts, in a sandbox.
        CodexAppServer = "codex_app_server",
        /// The endpoint at `base_url`.
        OpenaiCompatible = "openai_compatible",
    }
}
words! {
    /// Where the proposer runs.
    ExecutionMode { LocalProcess = "local_process", }
}
words! {
    /// How the proposer authenticates.
    AuthMode {
        /// With a key if there is one, else as `host`.
        Auto = "auto",
        /// With the sign-in of `codex login`.
        Host = "host",
        /// With the key in `api_key_env`.
        ApiKey = "api_key",
    }
}
words! {
    /// What the proposer's sandbox may touch.
    SandboxMode {
        /// It reads its workspace. Needs `answer = "structured"`.
        ReadOnly = "read_only",
        /// It writes its workspace.
        WorkspaceWrite = "workspace_write",
        /// Refused.
        DangerFullAccess = "danger_full_access",
    }
}
words! {
    /// When the proposer asks before it acts.
    ApprovalPolicy {
        /// Never.
        Never = "never",
        /// Refused: a run has nobody to ask.
        OnRequest = "on_request",
        /// Refused.
        OnFailure = "on_failure",
        /// Refused.
        Untrusted = "untrusted",
    }
}
words! {
    /// How hard the proposer's model thinks.
    ReasoningEffort { None = "none", Minimal = "minimal", Low = "low", Medium = "medium", High = "high", Xhigh = "xhigh", }
}

words! {
    /// How codex hands over its proposals.
    AnswerMode {
        /// It writes `proposal/manifest.json` in its workspace.
        Manifest = "manifest",
        /// Its last message is the manifest, under a schema.
        Structured = "structured",
    }
}
words! {
    /// Whether an endpoint is held to the schema of a proposal.
    StructuredOutput {
        /// It is asked to; one that refuses is asked for plain text instead, and the answer is checked all the same.
        Auto = "auto",
        /// It must.
        Required = "required",
        /// It is not asked to.
        Off = "off",
    }
}

/// What a model costs, in dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelPrice {
    /// Prompt tokens. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub prompt_usd: Option<f64>,
    /// Prompt tokens that the provider had kept. Unset: as other prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub cached_prompt_usd: Option<f64>,
    /// Completion tokens, those of reasoning included. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub completion_usd: Option<f64>,
}

/// Who writes the proposals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProposerSection {
    pub backend: ProposerBackend,
    pub execution_mode: ExecutionMode,
    /// Who serves the proposer's model.
    pub provider: String,
    pub api_family: ApiFamily,
    /// Base URL of the endpoint. Required for `openai_compatible`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// Program of the app-server and its arguments. A path is relative to the config file. Empty: the one of the extra
    /// `codex`, else `codex` on the path of programs.
    pub command: Vec<String>,
    /// What the proposer's sandbox may touch. Unset: `workspace_write`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_mode: Option<SandboxMode>,
    /// When the proposer asks before it acts. Unset: `never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_policy: Option<ApprovalPolicy>,
    /// How hard the proposer's model thinks. Unset: its own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<ReasoningEffort>,
    pub auth_mode: AuthMode,
    /// Only `false` is accepted: credentials are never copied into a run.
    pub copy_host_auth: bool,
    /// Directory with the sign-in of codex, for `auth_mode = "host"`. Relative to the config file. Unset: `CODEX_HOME`, else
    /// `~/.codex`. It is used where it is.
    #[schemars(with = "Option<String>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codex_home: Option<Utf8PathBuf>,
    /// Name of the variable that holds the proposer's key. A name, never a key. Unset: `OPENAI_API_KEY`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// How long one turn may take, in seconds.
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub timeout_seconds: u64,
    /// Name of the model. Required for `openai_compatible`. Unset: `gpt-5.4-mini`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How the codex proposer hands over its proposals.
    pub answer: AnswerMode,
    /// Whether the endpoint is asked to keep to the schema of a proposal.
    pub structured_output: StructuredOutput,
    /// Most commands that the model may run in one turn.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_commands: u32,
    /// Most tokens of one turn, prompt and completion together. Codex sends the whole conversation again with every step.
    #[schemars(range(min = 1, max = MOST_TOKENS))]
    pub max_turn_tokens: u64,
    /// Most tokens of one answer of the endpoint. Unset: the endpoint's own limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_TOKENS))]
    pub max_output_tokens: Option<u64>,
    /// How much evidence one turn is shown, in kilobytes.
    #[schemars(range(min = 4, max = 4096))]
    pub max_evidence_kb: u64,
    /// How large a manifest or an answer may be, in kilobytes.
    #[schemars(range(min = 1, max = 65_536))]
    pub max_answer_kb: u64,
    /// How long the proposer may take to start and to be checked, in seconds.
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub startup_timeout_seconds: u64,
    /// How long the app-server may take to answer one message, in seconds.
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub rpc_timeout_seconds: u64,
    /// How long a turn that was told to end may take, in seconds, before its process is ended.
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub interrupt_timeout_seconds: u64,
    /// How often a request to the model is sent again when the endpoint is overloaded or broken.
    #[schemars(range(max = 20))]
    pub request_retries: u32,
    /// How long the model may be silent in the middle of an answer, in seconds.
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub idle_timeout_seconds: u64,
    /// First pause before a request is sent again, in milliseconds; it doubles every time.
    #[schemars(range(min = 1, max = 600_000))]
    pub backoff_ms: u64,
    /// Longest pause before a request is sent again, in seconds, also where the endpoint asks for a longer one.
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub backoff_max_seconds: u64,
    /// Most requests to the endpoint at once.
    #[schemars(range(min = 1, max = 1024))]
    pub max_concurrent_requests: u32,
    /// Prices of models, by name, in place of those in the table that is shipped.
    pub prices: BTreeMap<String, ModelPrice>,
    /// How often one turn is tried when the proposer fails in a way that may pass.
    #[schemars(range(min = 1))]
    pub max_attempts: u32,
    /// How often the problems of an invalid answer are sent back for repair within one turn.
    pub max_repairs: u32,
    /// How many turns in a row may end without one valid and new proposal before the run fails.
    #[schemars(range(min = 1))]
    pub max_consecutive_invalid: u32,
}

impl Default for ProposerSection {
    fn default() -> Self {
        Self {
            backend: ProposerBackend::CodexAppServer,
            execution_mode: ExecutionMode::LocalProcess,
            provider: "openai".into(),
            api_family: ApiFamily::ChatCompletions,
            base_url: None,
            command: Vec::new(),
            sandbox_mode: None,
            approval_policy: None,
            reasoning_effort: None,
            auth_mode: AuthMode::Auto,
            copy_host_auth: false,
            api_key_env: None,
            codex_home: None,
            timeout_seconds: 300,
            model: None,
            answer: AnswerMode::Manifest,
            structured_output: StructuredOutput::Auto,
            max_commands: 60,
            max_turn_tokens: 2_000_000,
            max_output_tokens: None,
            max_evidence_kb: 128,
            max_answer_kb: 1024,
            startup_timeout_seconds: 60,
            rpc_timeout_seconds: 30,
            interrupt_timeout_seconds: 5,
            request_retries: 3,
            idle_timeout_seconds: 120,
            backoff_ms: 500,
            backoff_max_seconds: 60,
            max_concurrent_requests: 4,
            prices: BTreeMap::new(),
            max_attempts: 2,
            max_repairs: 1,
            max_consecutive_invalid: 3,
        }
    }
}

//! The `[proposer]` section: the backend that writes proposals, its sandbox, credentials and limits.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;

use super::gepa::{MAX_SECONDS, MAX_TOKENS};
use super::sections::{ApiFamily, section};
use crate::string_enum;

string_enum! {
    /// The program or endpoint that writes proposals.
    ProposerBackend {
        /// A Codex app-server in a sandbox, started by the run.
        CodexAppServer = "codex_app_server",
        /// The endpoint at `base_url`.
        OpenaiCompatible = "openai_compatible",
    }
    /// Where the proposer runs.
    ExecutionMode { LocalProcess = "local_process", }
    /// How the proposer authenticates.
    AuthMode {
        /// With a key if there is one, otherwise like `host`.
        Auto = "auto",
        /// With the sign-in of `codex login`.
        Host = "host",
        /// With the key in `api_key_env`.
        ApiKey = "api_key",
    }
    /// What the proposer's sandbox allows.
    SandboxMode {
        /// The proposer can read its workspace. Requires `answer = "structured"`.
        ReadOnly = "read_only",
        /// The proposer can write its workspace.
        WorkspaceWrite = "workspace_write",
        /// Not accepted.
        DangerFullAccess = "danger_full_access",
    }
    /// When the proposer asks for approval.
    ApprovalPolicy {
        /// Never.
        Never = "never",
        /// Not accepted: a run has no user to ask.
        OnRequest = "on_request",
        /// Not accepted.
        OnFailure = "on_failure",
        /// Not accepted.
        Untrusted = "untrusted",
    }
    /// Reasoning effort of the proposer's model.
    ReasoningEffort { None = "none", Minimal = "minimal", Low = "low", Medium = "medium", High = "high", Xhigh = "xhigh", }
    /// How Codex returns its proposals.
    AnswerMode {
        /// As the file `proposal/manifest.json` in its workspace.
        Manifest = "manifest",
        /// As its last message, with a JSON schema.
        Structured = "structured",
    }
    /// Whether the proposer is asked for edits of a text, or for the whole new text. Both are accepted in every answer.
    ProposalEdits {
        /// Edits of texts with more than 5 lines.
        Auto = "auto",
        /// Edits of all texts.
        Always = "always",
        /// Whole texts.
        Never = "never",
    }
    /// Whether an endpoint must follow the JSON schema of a proposal.
    StructuredOutput {
        /// The request contains the schema. If the endpoint rejects that, the request is repeated without it. The answer is
        /// checked in both cases.
        Auto = "auto",
        /// The endpoint must accept the schema.
        Required = "required",
        /// The request contains no schema.
        Off = "off",
    }
}

/// The default of `max_concurrent_requests` before it followed from the proposer turns. Stored configurations of that time have it.
pub(super) const EARLIER_MAX_CONCURRENT_REQUESTS: u32 = 4;

section! {
    /// Prices of a model, in dollars per million tokens.
    #[derive(Copy)]
    ModelPrice {
        /// Price of prompt tokens. Required.
        prompt_usd: Option<f64> [min = 0.0, max = 1e6],
        /// Price of prompt tokens in the provider's prompt cache. Unset: the price of prompt tokens.
        cached_prompt_usd: Option<f64> [min = 0.0, max = 1e6],
        /// Price of completion tokens, including reasoning tokens. Required.
        completion_usd: Option<f64> [min = 0.0, max = 1e6],
        /// Number of prompt tokens of a request above which the `long_` prices apply to all of its tokens. Unset: there are none.
        long_prompt_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Price of prompt tokens of a long request. Unset: `prompt_usd`.
        long_prompt_usd: Option<f64> [min = 0.0, max = 1e6],
        /// Price of cached prompt tokens of a long request. Unset: `cached_prompt_usd`, or `long_prompt_usd` without it.
        long_cached_prompt_usd: Option<f64> [min = 0.0, max = 1e6],
        /// Price of completion tokens of a long request. Unset: `completion_usd`.
        long_completion_usd: Option<f64> [min = 0.0, max = 1e6],
    }
    /// The proposer, which writes proposals.
    ProposerSection {
        backend: ProposerBackend = ProposerBackend::CodexAppServer,
        execution_mode: ExecutionMode = ExecutionMode::LocalProcess,
        /// Provider of the proposer's model.
        provider: String = "openai".into(),
        api_family: ApiFamily = ApiFamily::ChatCompletions,
        /// Base URL of the endpoint. Required for `openai_compatible`.
        base_url: Option<String>,
        /// Program of the app-server and its arguments. A path is relative to the config file. Empty: the program of the Python
        /// extra `codex`, otherwise `codex` on `PATH`.
        command: Vec<String>,
        /// What the proposer's sandbox allows. Unset: `workspace_write`.
        sandbox_mode: Option<SandboxMode>,
        /// When the proposer asks for approval. Unset: `never`.
        approval_policy: Option<ApprovalPolicy>,
        /// Reasoning effort of the proposer's model. Unset: its own default.
        reasoning_effort: Option<ReasoningEffort>,
        auth_mode: AuthMode = AuthMode::Auto,
        /// Only `false` is accepted: credentials are never copied into a run.
        copy_host_auth: bool,
        /// Directory with the sign-in of Codex, for `auth_mode = "host"`. Relative to the config file. Unset: `CODEX_HOME`,
        /// otherwise `~/.codex`. The directory is used in place.
        #[schemars(with = "Option<String>")]
        codex_home: Option<Utf8PathBuf>,
        /// Name of the variable that holds the proposer's key. A name, never a key. Unset: `OPENAI_API_KEY`.
        api_key_env: Option<String>,
        /// Timeout of one proposer turn, in seconds.
        timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 300,
        /// Name of the model. Required for `openai_compatible`. Unset: the model that Codex chooses. The run records that model,
        /// and stops if a later turn uses another one.
        model: Option<String>,
        /// How Codex returns its proposals.
        answer: AnswerMode = AnswerMode::Manifest,
        /// Whether the endpoint must follow the JSON schema of a proposal.
        structured_output: StructuredOutput = StructuredOutput::Auto,
        /// Whether the proposer is asked for edits of a text, or for the whole new text. Both are accepted in every answer.
        edits: ProposalEdits = ProposalEdits::Auto,
        /// Maximum number of commands that the model may run in one turn.
        max_commands: u32 [min = 1, max = 10_000] = 60,
        /// Maximum number of prompt and completion tokens of one turn. Codex sends the whole conversation again with each step.
        max_turn_tokens: u64 [min = 1, max = MAX_TOKENS] = 2_000_000,
        /// Maximum number of tokens of one answer of the endpoint. Unset: the endpoint's own limit.
        max_output_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Maximum size of the evidence in one turn, in kilobytes.
        max_evidence_kb: u64 [min = 4, max = 4096] = 128,
        /// What you want from the proposer, in your own words. Every turn shows it. At most 32768 characters.
        instructions: Option<String>,
        /// Text file with the instructions, instead of `instructions`. Relative to the config file. It is read when the
        /// configuration is loaded: the run records its text as `instructions`, so a changed file is a changed configuration.
        #[schemars(with = "Option<String>")]
        instructions_file: Option<Utf8PathBuf>,
        /// Maximum size of a manifest or an answer, in kilobytes.
        max_answer_kb: u64 [min = 1, max = 65_536] = 1024,
        /// Timeout for starting and checking the proposer, in seconds.
        startup_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 60,
        /// Timeout of one message to the app-server, in seconds.
        rpc_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 30,
        /// How long an interrupted turn may take to end, in seconds. Then its process is killed.
        interrupt_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 5,
        /// How often a request to the model is retried if the endpoint is overloaded or fails.
        request_retries: u32 [max = 20] = 3,
        /// Timeout without output of the model during an answer, in seconds.
        idle_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 120,
        /// Pause before the first retry, in milliseconds. It doubles with each retry.
        backoff_ms: u64 [min = 1, max = 600_000] = 500,
        /// Maximum pause before a retry, in seconds. If the endpoint asks for a longer one, the run waits
        /// as in an outage.
        backoff_max_seconds: u64 [min = 1, max = MAX_SECONDS] = 60,
        /// Maximum number of concurrent requests to the endpoint. Unset: one for each proposer turn.
        max_concurrent_requests: Option<u32> [min = 1, max = 1024],
        /// JSON or TOML file with prices: a table `models` with one entry per model, as in `prices`. They replace those of the
        /// built-in table for every endpoint. Relative to the config file.
        #[schemars(with = "Option<String>")]
        price_file: Option<Utf8PathBuf>,
        /// Prices by model name. They replace those of `price_file` and of the built-in table.
        prices: BTreeMap<String, ModelPrice>,
        /// Maximum number of attempts of one turn, if the failure is retryable.
        max_attempts: u32 [min = 1] = 2,
        /// How often the proposer is asked to repair an invalid answer.
        max_repairs: u32 = 1,
        /// Number of consecutive turns without a valid and new proposal after which the search ends. The run fails if none of
        /// these turns had a valid proposal.
        max_consecutive_invalid: u32 [min = 1] = 3,
    }
}

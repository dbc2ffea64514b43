//! `[proposer]`: who writes the proposals, and within which limits.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;

use super::gepa::{MAX_SECONDS, MAX_TOKENS};
use super::sections::{ApiFamily, section};
use crate::string_enum;

string_enum! {
    /// Who writes the proposals.
    ProposerBackend {
        /// A codex app-server that the run starts, in a sandbox.
        CodexAppServer = "codex_app_server",
        /// The endpoint at `base_url`.
        OpenaiCompatible = "openai_compatible",
    }
    /// Where the proposer runs.
    ExecutionMode { LocalProcess = "local_process", }
    /// How the proposer authenticates.
    AuthMode {
        /// With a key if there is one, else as `host`.
        Auto = "auto",
        /// With the sign-in of `codex login`.
        Host = "host",
        /// With the key in `api_key_env`.
        ApiKey = "api_key",
    }
    /// What the proposer's sandbox may touch.
    SandboxMode {
        /// It reads its workspace. Needs `answer = "structured"`.
        ReadOnly = "read_only",
        /// It writes its workspace.
        WorkspaceWrite = "workspace_write",
        /// Refused.
        DangerFullAccess = "danger_full_access",
    }
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
    /// How hard the proposer's model thinks.
    ReasoningEffort { None = "none", Minimal = "minimal", Low = "low", Medium = "medium", High = "high", Xhigh = "xhigh", }
    /// How codex hands over its proposals.
    AnswerMode {
        /// It writes `proposal/manifest.json` in its workspace.
        Manifest = "manifest",
        /// Its last message is the manifest, under a schema.
        Structured = "structured",
    }
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

section! {
    /// What a model costs, in dollars per million tokens.
    #[derive(Copy)]
    ModelPrice {
        /// Prompt tokens. Required.
        prompt_usd: Option<f64> [min = 0.0, max = 1e6],
        /// Prompt tokens that the provider had kept. Unset: as other prompt tokens.
        cached_prompt_usd: Option<f64> [min = 0.0, max = 1e6],
        /// Completion tokens, those of reasoning included. Required.
        completion_usd: Option<f64> [min = 0.0, max = 1e6],
    }
    /// Who writes the proposals.
    ProposerSection {
        backend: ProposerBackend = ProposerBackend::CodexAppServer,
        execution_mode: ExecutionMode = ExecutionMode::LocalProcess,
        /// Who serves the proposer's model.
        provider: String = "openai".into(),
        api_family: ApiFamily = ApiFamily::ChatCompletions,
        /// Base URL of the endpoint. Required for `openai_compatible`.
        base_url: Option<String>,
        /// Program of the app-server and its arguments. A path is relative to the config file. Empty: the one of the extra
        /// `codex`, else `codex` on the path of programs.
        command: Vec<String>,
        /// What the proposer's sandbox may touch. Unset: `workspace_write`.
        sandbox_mode: Option<SandboxMode>,
        /// When the proposer asks before it acts. Unset: `never`.
        approval_policy: Option<ApprovalPolicy>,
        /// How hard the proposer's model thinks. Unset: its own default.
        reasoning_effort: Option<ReasoningEffort>,
        auth_mode: AuthMode = AuthMode::Auto,
        /// Only `false` is accepted: credentials are never copied into a run.
        copy_host_auth: bool,
        /// Directory with the sign-in of codex, for `auth_mode = "host"`. Relative to the config file. Unset: `CODEX_HOME`, else
        /// `~/.codex`. It is used where it is.
        #[schemars(with = "Option<String>")]
        codex_home: Option<Utf8PathBuf>,
        /// Name of the variable that holds the proposer's key. A name, never a key. Unset: `OPENAI_API_KEY`.
        api_key_env: Option<String>,
        /// How long one turn may take, in seconds.
        timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 300,
        /// Name of the model. Required for `openai_compatible`. Unset: `gpt-5.4-mini`.
        model: Option<String>,
        /// How the codex proposer hands over its proposals.
        answer: AnswerMode = AnswerMode::Manifest,
        /// Whether the endpoint is asked to keep to the schema of a proposal.
        structured_output: StructuredOutput = StructuredOutput::Auto,
        /// Most commands that the model may run in one turn.
        max_commands: u32 [min = 1, max = 10_000] = 60,
        /// Most tokens of one turn, prompt and completion together. Codex sends the whole conversation again with every step.
        max_turn_tokens: u64 [min = 1, max = MAX_TOKENS] = 2_000_000,
        /// Most tokens of one answer of the endpoint. Unset: the endpoint's own limit.
        max_output_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// How much evidence one turn is shown, in kilobytes.
        max_evidence_kb: u64 [min = 4, max = 4096] = 128,
        /// How large a manifest or an answer may be, in kilobytes.
        max_answer_kb: u64 [min = 1, max = 65_536] = 1024,
        /// How long the proposer may take to start and to be checked, in seconds.
        startup_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 60,
        /// How long the app-server may take to answer one message, in seconds.
        rpc_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 30,
        /// How long a turn that was told to end may take, in seconds, before its process is ended.
        interrupt_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 5,
        /// How often a request to the model is sent again when the endpoint is overloaded or broken.
        request_retries: u32 [max = 20] = 3,
        /// How long the model may be silent in the middle of an answer, in seconds.
        idle_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 120,
        /// First pause before a request is sent again, in milliseconds; it doubles every time.
        backoff_ms: u64 [min = 1, max = 600_000] = 500,
        /// Longest pause before a request is sent again, in seconds, also where the endpoint asks for a longer one.
        backoff_max_seconds: u64 [min = 1, max = MAX_SECONDS] = 60,
        /// Most requests to the endpoint at once.
        max_concurrent_requests: u32 [min = 1, max = 1024] = 4,
        /// Prices of models, by name, in place of those in the table that is shipped.
        prices: BTreeMap<String, ModelPrice>,
        /// How often one turn is tried when the proposer fails in a way that may pass.
        max_attempts: u32 [min = 1] = 2,
        /// How often the problems of an invalid answer are sent back for repair within one turn.
        max_repairs: u32 = 1,
        /// How many turns in a row may end without one valid and new proposal before the run fails.
        max_consecutive_invalid: u32 [min = 1] = 3,
    }
}

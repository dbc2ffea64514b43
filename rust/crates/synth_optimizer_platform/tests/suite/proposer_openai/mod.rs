//! Tests of the proposer `openai_compatible` against scripted endpoints on this machine.
mod answers;
mod asking;
mod checking;
mod failures;
mod limits;
mod secrets;

use std::sync::Arc;

use camino::Utf8PathBuf;
use serde_json::{Value, json};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::config::proposer::{ProposerBackend, ProposerSection};
use synth_optimizer_core::model::answer::{FailureClass, ProposalAnswer};
use synth_optimizer_core::model::command::{NamedPayload, ProposerQuestion};
use synth_optimizer_core::model::event_fields::Operation;
use synth_optimizer_core::model::ids::{CallId, CandidateId, Payload, RowId};
use synth_optimizer_core::model::usage::{Cost, NanoUsd, Usage};
use synth_optimizer_platform::access::EgressPolicy;
use synth_optimizer_platform::artifacts::TRANSCRIPTS;
use synth_optimizer_platform::proposer::{
    Evidence, OpenAiProposer, ProposalRequest, Proposer, SCHEMA_VERSION, TurnFailure, TurnId,
};
use tempfile::TempDir;

use crate::container::server::{ReceivedRequest, Server, ServerAction, json as reply};

pub(crate) const MODEL: &str = "gpt-4.1-mini";
pub(crate) const CHAT: &str = "POST /v1/chat/completions";
pub(crate) const KEY: &str = "canary-Key-0451-not-shaped-like-one";

/// A proposer with its run directory. Its timeouts are short, so that tests are fast.
pub(crate) struct ProposerFixture {
    pub(crate) proposer: Arc<OpenAiProposer>,
    dir: TempDir,
}

impl ProposerFixture {
    pub(crate) fn at(base_url: &str, change: impl FnOnce(&mut ProposerSection)) -> Self {
        Self::restricted(base_url, &EgressPolicy::default(), change)
    }

    pub(crate) fn restricted(
        base_url: &str,
        egress_policy: &EgressPolicy,
        change: impl FnOnce(&mut ProposerSection),
    ) -> Self {
        let mut config = Config::default();
        let section = &mut config.proposer;
        section.backend = ProposerBackend::OpenaiCompatible;
        section.base_url = Some(base_url.to_owned());
        section.model = Some(MODEL.to_owned());
        section.api_key_env = Some("TEST_KEY".to_owned());
        section.timeout_seconds = 5;
        section.request_retries = 2;
        section.backoff_ms = 1;
        section.backoff_max_seconds = 1;
        section.max_answer_kb = 8;
        change(section);
        let dir = TempDir::new().unwrap();
        let env = |name: &str| match name {
            "TEST_KEY" | "OPENAI_API_KEY" => Some(format!(" {KEY}\n")),
            "BLANK_KEY" => Some("  ".to_owned()),
            _ => None,
        };
        let path = Utf8PathBuf::try_from(dir.path().to_owned()).unwrap();
        let proposer = OpenAiProposer::with_egress_policy(&config, &path, &env, egress_policy).unwrap();
        Self { proposer: Arc::new(proposer), dir }
    }

    pub(crate) fn of(server: &Server, change: impl FnOnce(&mut ProposerSection)) -> Self {
        Self::at(&format!("{}/v1/", server.url()), change)
    }

    pub(crate) async fn propose(&self) -> Result<ProposalAnswer, TurnFailure> {
        self.turn(1).await
    }

    pub(crate) async fn turn(&self, number: u64) -> Result<ProposalAnswer, TurnFailure> {
        self.proposer.propose(TurnId { call_id: CallId(number), attempt: 1 }, request()).await
    }

    /// Returns all transcripts, decompressed.
    pub(crate) fn transcripts(&self) -> String {
        let Ok(entries) = std::fs::read_dir(self.dir.path().join(TRANSCRIPTS)) else { return String::new() };
        let unpack = |entry: std::io::Result<std::fs::DirEntry>| {
            zstd::stream::decode_all(std::fs::File::open(entry.unwrap().path()).unwrap()).unwrap()
        };
        entries.map(|entry| String::from_utf8(unpack(entry)).unwrap()).collect()
    }
}

/// Runs a turn with an endpoint that answers every request with this action.
pub(crate) async fn answered(
    act: impl Fn() -> ServerAction + Send + Sync + 'static,
) -> Result<ProposalAnswer, TurnFailure> {
    let server = Server::start(move |_| act());
    ProposerFixture::of(&server, |_| {}).propose().await
}

pub(crate) fn request() -> ProposalRequest {
    let payload = Payload::from([("rules".to_owned(), "Route {text} well.".to_owned())]);
    let question = ProposerQuestion {
        operation: Operation::Mutate,
        generation: 1,
        parents: vec![NamedPayload { candidate_id: CandidateId::new("seed"), payload: payload.clone() }],
        ancestor: None,
        base: payload,
        components: vec!["rules".to_owned()],
        edit_fields: Vec::new(),
        proposal_count: 1,
        carried_failures: Vec::new(),
        relatives: Vec::new(),
        frontier: Vec::new(),
        frontier_size: 0,
        problems: Vec::new(),
        rules: Default::default(),
    };
    ProposalRequest {
        question,
        program: json!({ "program_id": "toy" }),
        task_info: None,
        direction: Direction::Maximize,
        evidence: vec![Evidence {
            row_id: RowId::new("row-1"),
            row: json!({ "text": "a ticket" }),
            score: Some(0.0),
            reply: Some(json!({ "feedback": "should be billing" })),
        }],
        refused: Vec::new(),
    }
}

/// Returns a manifest with one proposal.
pub(crate) fn manifest() -> String {
    json!({
        "schema_version": SCHEMA_VERSION,
        "proposals": [{ "rationale": "clearer", "proposed_payload": { "rules": "Route {text} to billing." } }],
    })
    .to_string()
}

/// Returns a chat completion.
pub(crate) fn chat(model: &str, content: impl Into<Value>) -> Value {
    json!({
        "id": "c-1", "model": model,
        "choices": [{ "index": 0, "finish_reason": "stop",
                      "message": { "role": "assistant", "content": content.into() } }],
        "usage": { "prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500,
                   "prompt_tokens_details": { "cached_tokens": 400 } },
    })
}

pub(crate) fn good() -> ServerAction {
    reply(200, &chat(MODEL, manifest()))
}

pub(crate) fn rules(answer: &ProposalAnswer) -> &str {
    assert_eq!(answer.problems, [], "{answer:?}");
    &answer.proposals[0].fields["rules"]
}

/// Returns the failure class, whether the turn may succeed later, and whether the run must end.
pub(crate) fn end(outcome: &Result<ProposalAnswer, TurnFailure>) -> (FailureClass, bool, bool) {
    let TurnFailure { failure, fatal, outage } = outcome.as_ref().unwrap_err();
    assert_eq!(failure.models.as_ref().unwrap().requested, MODEL);
    (failure.class, failure.retryable || outage.is_some(), fatal.is_some())
}

pub(crate) fn message(outcome: &Result<ProposalAnswer, TurnFailure>) -> &str {
    &outcome.as_ref().unwrap_err().failure.message
}

pub(crate) fn nothing_used() -> Usage {
    Usage { prompt_tokens: Some(0), completion_tokens: Some(0), total_tokens: Some(0), cost: Cost::Known(NanoUsd(0)) }
}

pub(crate) fn is_structured(request: &ReceivedRequest) -> bool {
    request.json().get("response_format").is_some()
}

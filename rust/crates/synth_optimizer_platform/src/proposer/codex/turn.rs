//! One codex turn in its own thread: starts it, follows it until it ends or must be ended, and reads its answer.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::rpc::{Notifications, RpcError};
use super::session::{HINT, Session, Thread, ThreadError};
use super::turn_state::TurnState;
use super::workdir::{MANIFEST, Workdir};
use super::{CodexProposer, StopSignal};
use crate::proposer::brief::{Brief, question};
use crate::proposer::manifest::{self, ParsedAnswer};
use crate::proposer::transcript::Transcript;
use crate::proposer::{FailureAction, ProposalRequest, TurnAccount, TurnError, TurnId, cannot_start};
use synth_optimizer_core::config::proposer::{AnswerMode, ProposerSection};
use synth_optimizer_core::model::answer::{FailureClass, ProposalAnswer};
use synth_optimizer_core::model::event_fields::{Problem, TurnModels};
use synth_optimizer_core::model::usage::Cost;

/// How long an interrupted turn may take to report its usage.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum input of a turn that codex accepts, minus room for the question.
const MAX_INPUT_CHARS: usize = 900_000;

/// A turn in progress. Dropping it ends its thread.
struct ActiveTurn<'a> {
    proposer: &'a CodexProposer,
    session: Arc<Session>,
    thread: String,
    /// The model of the run.
    model: String,
    notifications: Notifications,
    state: TurnState,
    workdir: Workdir,
    transcript: Transcript,
}

/// Runs a turn from the question to the answer, and records models and usage in `outcome`.
pub(super) async fn run_turn(
    proposer: &CodexProposer,
    id: TurnId,
    request: &ProposalRequest,
    mut stop: StopSignal,
    outcome: &mut TurnAccount,
) -> Result<ProposalAnswer, TurnError> {
    let section = &proposer.section;
    let mut is_sent = false;
    let deadline = Instant::now() + Duration::from_secs(section.timeout_seconds);
    let opened = tokio::select! {
        biased;
        _ = stop.changed() => {
            // A question that was sent may be billed, even if no answer was received.
            let class = if is_sent { FailureClass::Abandoned } else { FailureClass::Withdrawn };
            return Err((class, "the run ends".into(), FailureAction::GiveUp));
        }
        opened = timeout_at(deadline, open(proposer, id, request, outcome, &mut is_sent)) => opened,
    };
    let mut turn = opened.unwrap_or_else(|_elapsed| {
        let message = format!("codex was not ready for the turn within {} s", section.timeout_seconds);
        Err((FailureClass::Timeout, message, FailureAction::Retry))
    })?;
    let followed = turn.follow(deadline, &mut stop).await;
    // A wrong model takes precedence over any other failure.
    let followed = turn.other_model().map_or(followed, Err);
    let ActiveTurn { session, state, model, .. } = &turn;
    let effective = state.other_model.as_ref().or(state.served_model.as_ref()).unwrap_or(model);
    outcome.models = models(outcome, model, Some(effective));
    outcome.usage = session.prices.usage(model, Some(effective), state.tokens);
    if state.ended != Some(Ok(())) {
        // The last response is billed, but its usage was not reported.
        outcome.usage.cost = Cost::Unknown;
    }
    let mut is_idle = false;
    if state.ended.is_some() {
        // End running commands, because they could change the files that are read next.
        let params = json!({ "threadId": turn.thread });
        let cleaned = session.rpc.call("thread/backgroundTerminals/clean", params, CLOSE_TIMEOUT).await;
        crate::warn_if_err!(&cleaned, "commands of a turn may still run; its files are redacted later");
        is_idle = cleaned.is_ok();
    }
    let effective = outcome.redactor.text(effective);
    let answer = followed.map(|()| turn.answer(request).into_answer(outcome.usage, model, &effective));
    let workdir = turn.workdir.clone();
    drop(turn);
    workdir.remove_sandbox_leftovers();
    if is_idle {
        proposer.redact_workdir(workdir).await;
    }
    answer
}

/// Returns the models that a failure reports. Codex names the model of a thread, or another one later in the turn. If a
/// server names another model only in the body of its responses, codex does not pass it on, so it stays unnoticed.
fn models(outcome: &TurnAccount, requested: &str, effective: Option<&String>) -> Option<TurnModels> {
    Some(TurnModels { requested: requested.to_owned(), effective: Some(outcome.redactor.text(effective?)) })
}

/// Prepares the turn and sends the question to the model.
async fn open<'a>(
    proposer: &'a CodexProposer,
    id: TurnId,
    request: &ProposalRequest,
    outcome: &mut TurnAccount,
    is_sent: &mut bool,
) -> Result<ActiveTurn<'a>, TurnError> {
    let section = &proposer.section;
    let session = proposer.session().await.map_err(cannot_start)?;
    let redactor = &session.redactor;
    outcome.redactor = redactor.clone();
    let brief = Brief::new(request, section, redactor);
    let text = question(request, section, where_to(section.answer));
    let run_dir = proposer.create_run_dir().map_err(cannot_start)?;
    let workdir = Workdir::create(&run_dir, id, &text, &brief).map_err(cannot_start)?;
    proposer.unredacted.lock().insert(workdir.clone(), redactor.clone());
    let mut transcript = Transcript::new(&run_dir, id, redactor.clone());
    let Thread { id: thread, model } = match session.thread(proposer, &workdir.path).await {
        Ok(thread) => thread,
        Err(ThreadError::Fault(fault)) => {
            if !matches!(fault, RpcError::Refused { .. }) {
                // The next turn starts a new session.
                session.end(CLOSE_TIMEOUT).await;
            }
            return Err((FailureClass::NotSent, fault.to_string(), FailureAction::Retry));
        }
        Err(ThreadError::Mismatch { message, model: other }) => {
            outcome.models = models(outcome, &session.ready.model, other.as_ref());
            return Err((FailureClass::Contract, message, FailureAction::Stop(HINT)));
        }
    };
    outcome.models = models(outcome, &model, Some(&model));
    let params = turn_params(&thread, section, text, &brief);
    transcript.add("codex", &json!({ "threadId": thread, "model": model }));
    transcript.add("optimizer", &params);
    let notifications = session.rpc.lock().listen(&thread);
    let turn = ActiveTurn {
        proposer,
        session,
        thread,
        model,
        notifications,
        state: TurnState::default(),
        workdir,
        transcript,
    };
    *is_sent = true;
    let limit = Duration::from_secs(section.rpc_timeout_seconds);
    let Err(fault) = turn.session.rpc.start_turn(&turn.thread, params, limit).await else { return Ok(turn) };
    let class = match fault {
        RpcError::MissingTurnId => FailureClass::Contract,
        RpcError::Refused { .. } => FailureClass::NotSent,
        RpcError::ProcessEnded | RpcError::TimedOut { .. } => {
            turn.session.end(CLOSE_TIMEOUT).await;
            FailureClass::UnknownOutcome
        }
    };
    Err((class, fault.to_string(), FailureAction::Retry))
}

fn turn_params(thread: &str, section: &ProposerSection, text: String, brief: &Brief) -> Value {
    let mut params = json!({ "threadId": thread });
    let mut input = text;
    if section.answer == AnswerMode::Structured {
        params["outputSchema"] = brief.schema.clone();
        // With the whole brief in the input, the model needs no commands.
        let whole = brief.to_text();
        if whole.len() <= MAX_INPUT_CHARS {
            input = format!("{input}\n\n{whole}");
        }
    }
    params["input"] = json!([{ "type": "text", "text": input, "text_elements": [] }]);
    if let Some(effort) = section.reasoning_effort {
        params["effort"] = effort.as_str().into();
    }
    params
}

fn where_to(answer: AnswerMode) -> &'static str {
    match answer {
        AnswerMode::Manifest => {
            "Work in the current directory. README.md names the files to read. Write your answer to \
             proposal/manifest.json, in the shape that proposal_schema.md shows, and nothing else."
        }
        AnswerMode::Structured => {
            "Your last message must be the JSON object that proposal_schema.md shows, and nothing else. All files are in \
             the current directory."
        }
    }
}

impl ActiveTurn<'_> {
    /// Processes notifications until the turn ends, and interrupts it at a limit. An error says why there is no answer.
    async fn follow(&mut self, deadline: Instant, stop: &mut StopSignal) -> Result<(), TurnError> {
        let section = &self.proposer.section;
        let reason = loop {
            let notification = tokio::select! {
                biased;
                _ = stop.changed() => {
                    self.interrupt(CLOSE_TIMEOUT).await;
                    return Err((FailureClass::Abandoned, "the run ends".into(), FailureAction::GiveUp));
                }
                () = sleep_until(deadline) => {
                    let message = format!("the turn did not end within {} s", section.timeout_seconds);
                    break (FailureClass::Timeout, message, FailureAction::Retry);
                }
                notification = self.notifications.recv() => notification,
            };
            let Some(notification) = notification else {
                let message = "codex exited during a turn".to_owned();
                return Err((FailureClass::UnknownOutcome, message, FailureAction::Retry));
            };
            self.handle_notification(&notification);
            if let Some(reason) = self.other_model() {
                break reason;
            }
            if let Some(ended) = &self.state.ended {
                return ended.clone();
            }
            if self.state.commands() > section.max_commands {
                let message = format!("the model ran more than {} commands in one turn", section.max_commands);
                break (FailureClass::Failed, message, FailureAction::GiveUp);
            }
            if self.state.tokens.is_some_and(|tokens| tokens.total() > section.max_turn_tokens) {
                let message = format!("the turn used more than {} tokens", section.max_turn_tokens);
                break (FailureClass::Failed, message, FailureAction::GiveUp);
            }
        };
        if !self.interrupt(Duration::from_secs(section.interrupt_timeout_seconds)).await {
            self.session.end(CLOSE_TIMEOUT).await;
        }
        Err(reason)
    }

    fn handle_notification(&mut self, notification: &Value) {
        self.transcript.add("codex", notification);
        self.state.fold(notification, &self.model);
    }

    fn other_model(&self) -> Option<TurnError> {
        let other = self.state.other_model.as_ref()?;
        let how = if self.proposer.section.model.is_some() { "was requested" } else { "is the model of the run" };
        let message = format!("the model {:?} {how}, and codex used {other:?}", self.model);
        Some((FailureClass::Contract, message, FailureAction::Stop(HINT)))
    }

    /// Interrupts the turn and processes its remaining notifications. Returns false if it does not end in time.
    async fn interrupt(&mut self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        self.session.rpc.lock().interrupt(&self.thread);
        while self.state.ended.is_none() {
            match timeout_at(until, self.notifications.recv()).await {
                Ok(Some(notification)) => self.handle_notification(&notification),
                // The process has exited, and its turns with it.
                Ok(None) => return true,
                Err(_elapsed) => return false,
            }
        }
        true
    }

    /// Reads the proposals from the expected place, else from the other one (manifest file or last message).
    fn answer(&self, request: &ProposalRequest) -> ParsedAnswer {
        let section = &self.proposer.section;
        let most = section.max_answer_kb * 1024;
        let last_message = || self.state.answer().filter(|text| !text.trim().is_empty()).map(str::to_owned);
        let found = match section.answer {
            AnswerMode::Manifest => self.workdir.manifest(most).map(|written| written.or_else(last_message)),
            AnswerMode::Structured => last_message().map_or_else(|| self.workdir.manifest(most), |text| Ok(Some(text))),
        };
        match found {
            Ok(Some(text)) if text.len() as u64 > most => ParsedAnswer::too_large(&text, most),
            // The endpoint knows its key and could repeat it in an answer, so the answer is redacted.
            Ok(Some(text)) => manifest::read(&text, request, &self.session.redactor),
            Ok(None) => {
                let message = format!("the turn ended without {MANIFEST} and without a last message");
                Problem { code: "no_proposal".into(), field: Some(MANIFEST.into()), message }.into()
            }
            Err(problem) => problem.into(),
        }
    }
}

impl Drop for ActiveTurn<'_> {
    fn drop(&mut self) {
        self.session.rpc.lock().leave(&self.thread);
    }
}

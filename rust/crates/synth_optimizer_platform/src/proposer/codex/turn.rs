//! One turn: a thread of its own, watched until it ends or has to be ended, and what came of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::session::{HINT, NoThread, Session};
use super::watch::Watch;
use super::wire::{Notes, RpcFault};
use super::workdir::{MANIFEST, Workdir};
use super::{CodexProposer, Stop};
use crate::proposer::brief::{Brief, question};
use crate::proposer::manifest::{self, Found};
use crate::proposer::transcript::Transcript;
use crate::proposer::{Outcome, ProposalRequest, Reason, TurnId, Verdict, cannot_begin};
use synth_optimizer_core::config::proposer::{AnswerMode, ProposerSection};
use synth_optimizer_core::model::answer::{FailureClass, ProposalAnswer};
use synth_optimizer_core::model::event_fields::{Problem, TurnModels};
use synth_optimizer_core::model::usage::Cost;

/// How long a turn that a run gives up may take to say what it has used.
const FAREWELL: Duration = Duration::from_secs(1);

/// Most characters that codex takes as the input of a turn, with room for the question.
const MOST_INPUT: usize = 900_000;

/// A turn under way. Dropped, its thread is told to end.
struct Turn<'a> {
    proposer: &'a CodexProposer,
    session: Arc<Session>,
    thread: String,
    notes: Notes,
    watch: Watch,
    workdir: Workdir,
    transcript: Transcript,
}

/// Takes a turn from the question to the answer, and notes in `outcome` what it has used.
pub(super) async fn take(
    proposer: &CodexProposer,
    id: TurnId,
    request: &ProposalRequest,
    mut stop: Stop,
    outcome: &mut Outcome,
) -> Result<ProposalAnswer, Reason> {
    let CodexProposer { section, model, .. } = proposer;
    let mut is_sent = false;
    let deadline = Instant::now() + Duration::from_secs(section.timeout_seconds);
    let opened = tokio::select! {
        biased;
        _ = stop.changed() => {
            // A question that was put may be paid for, whether or not anybody has heard of it.
            let class = if is_sent { FailureClass::Abandoned } else { FailureClass::Withdrawn };
            return Err((class, "the run ends".into(), Verdict::GiveUp));
        }
        opened = timeout_at(deadline, open(proposer, id, request, outcome, &mut is_sent)) => opened,
    };
    let mut turn = opened.unwrap_or_else(|_elapsed| {
        let message = format!("codex was not ready for a turn within {} s", section.timeout_seconds);
        Err((FailureClass::Timeout, message, Verdict::Retry))
    })?;
    let followed = turn.follow(deadline, &mut stop).await;
    // Another model is what counts, whatever else went wrong.
    let followed = turn.other_model().map_or(followed, Err);
    let Turn { session, watch, .. } = &turn;
    let effective = watch.other_model.as_ref().or(watch.served_model.as_ref()).unwrap_or(model);
    outcome.models = models(outcome, model, Some(effective));
    outcome.usage = session.prices.usage(model, Some(effective), watch.tokens);
    if watch.ended != Some(Ok(())) {
        // What was generated last is paid for and was not told.
        outcome.usage.cost = Cost::Unknown;
    }
    let mut is_quiet = false;
    if watch.ended.is_some() {
        // A command that still runs could change what is read now.
        let params = json!({ "threadId": turn.thread });
        is_quiet = session.wire.call("thread/backgroundTerminals/clean", params, FAREWELL).await.is_ok();
    }
    let effective = outcome.redactor.text(effective);
    let answer = followed.map(|()| turn.answer(request).into_answer(outcome.usage, model, &effective));
    let workdir = turn.workdir.clone();
    drop(turn);
    workdir.tidy();
    if is_quiet {
        proposer.sweep(workdir).await;
    }
    answer
}

/// What a failure tells of the models. Codex names the model of a thread, or another one later in the turn. A server that
/// answers with another model and says so in the body of its responses alone is not found out, because codex does not pass
/// that on.
fn models(outcome: &Outcome, requested: &str, effective: Option<&String>) -> Option<TurnModels> {
    Some(TurnModels { requested: requested.to_owned(), effective: Some(outcome.redactor.text(effective?)) })
}

/// Everything up to the moment at which the model is asked.
async fn open<'a>(
    proposer: &'a CodexProposer,
    id: TurnId,
    request: &ProposalRequest,
    outcome: &mut Outcome,
    is_sent: &mut bool,
) -> Result<Turn<'a>, Reason> {
    let CodexProposer { section, model, .. } = proposer;
    let session = proposer.session().await.map_err(cannot_begin)?;
    let redactor = &session.redactor;
    outcome.redactor = redactor.clone();
    let brief = Brief::new(request, section, redactor);
    let text = question(request, where_to(section.answer));
    let run_dir = proposer.made_run_dir().map_err(cannot_begin)?;
    let workdir = Workdir::create(&run_dir, id, &text, &brief).map_err(cannot_begin)?;
    proposer.unswept.lock().insert(workdir.clone(), redactor.clone());
    let mut transcript = Transcript::new(&run_dir, id, redactor.clone());
    let thread = match session.thread(proposer, &workdir.path).await {
        Ok(thread) => thread,
        Err(NoThread::Fault(fault)) => {
            if !matches!(fault, RpcFault::Refused { .. }) {
                // It is replaced before the next turn.
                session.end(FAREWELL).await;
            }
            return Err((FailureClass::NotSent, fault.to_string(), Verdict::Retry));
        }
        Err(NoThread::Mismatch { message, model: other }) => {
            outcome.models = models(outcome, model, other.as_ref());
            return Err((FailureClass::Contract, message, Verdict::Stop(HINT)));
        }
    };
    outcome.models = models(outcome, model, Some(model));
    let params = turn_params(&thread, section, text, &brief);
    transcript.add("optimizer", &params);
    let notes = session.wire.lock().listen(&thread);
    let turn = Turn { proposer, session, thread, notes, watch: Watch::default(), workdir, transcript };
    *is_sent = true;
    let limit = Duration::from_secs(section.rpc_timeout_seconds);
    let Err(fault) = turn.session.wire.start_turn(&turn.thread, params, limit).await else { return Ok(turn) };
    let class = match fault {
        RpcFault::Unnamed => FailureClass::Contract,
        RpcFault::Refused { .. } => FailureClass::NotSent,
        RpcFault::Gone | RpcFault::Late { .. } => {
            turn.session.end(FAREWELL).await;
            FailureClass::UnknownOutcome
        }
    };
    Err((class, fault.to_string(), Verdict::Retry))
}

fn turn_params(thread: &str, section: &ProposerSection, text: String, brief: &Brief) -> Value {
    let mut params = json!({ "threadId": thread });
    let mut input = text;
    if section.answer == AnswerMode::Structured {
        params["outputSchema"] = brief.schema.clone();
        // With everything at hand, no command is needed.
        let whole = brief.whole();
        if whole.len() <= MOST_INPUT {
            input = format!("{input}\n\n{whole}");
        }
    }
    params["input"] = json!([{ "type": "text", "text": input, "text_elements": [] }]);
    if let Some(effort) = section.reasoning_effort {
        params["effort"] = effort.word().into();
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

impl Turn<'_> {
    /// Listens until the turn has ended, or ends it when it has to; an error is why there is no answer.
    async fn follow(&mut self, deadline: Instant, stop: &mut Stop) -> Result<(), Reason> {
        let section = &self.proposer.section;
        let reason = loop {
            let note = tokio::select! {
                biased;
                _ = stop.changed() => {
                    self.break_off(FAREWELL).await;
                    return Err((FailureClass::Abandoned, "the run ends".into(), Verdict::GiveUp));
                }
                () = sleep_until(deadline) => {
                    let message = format!("the turn was not over within {} s", section.timeout_seconds);
                    break (FailureClass::Timeout, message, Verdict::Retry);
                }
                note = self.notes.recv() => note,
            };
            let Some(note) = note else {
                let message = "codex ended in the middle of a turn".to_owned();
                return Err((FailureClass::UnknownOutcome, message, Verdict::Retry));
            };
            self.hear(&note);
            if let Some(reason) = self.other_model() {
                break reason;
            }
            if let Some(ended) = &self.watch.ended {
                return ended.clone();
            }
            if self.watch.commands() > section.max_commands {
                let message = format!("the model ran more than {} commands in one turn", section.max_commands);
                break (FailureClass::Failed, message, Verdict::GiveUp);
            }
            if self.watch.tokens.is_some_and(|tokens| tokens.total() > section.max_turn_tokens) {
                let message = format!("the turn used more than {} tokens", section.max_turn_tokens);
                break (FailureClass::Failed, message, Verdict::GiveUp);
            }
        };
        if !self.break_off(Duration::from_secs(section.interrupt_timeout_seconds)).await {
            self.session.end(FAREWELL).await;
        }
        Err(reason)
    }

    fn hear(&mut self, note: &Value) {
        self.transcript.add("codex", note);
        self.watch.fold(note, &self.proposer.model);
    }

    fn other_model(&self) -> Option<Reason> {
        let other = self.watch.other_model.as_ref()?;
        let message = format!("codex was asked for the model {:?} and answers with {other:?}", self.proposer.model);
        Some((FailureClass::Contract, message, Verdict::Stop(HINT)))
    }

    /// Tells the turn to end and takes in what it still says; false if it does not end in time.
    async fn break_off(&mut self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        self.session.wire.lock().interrupt(&self.thread);
        while self.watch.ended.is_none() {
            match timeout_at(until, self.notes.recv()).await {
                Ok(Some(note)) => self.hear(&note),
                // A process that is gone has ended its turns.
                Ok(None) => return true,
                Err(_elapsed) => return false,
            }
        }
        true
    }

    /// Reads the proposals from where they were to be put, else from where they are.
    fn answer(&self, request: &ProposalRequest) -> Found {
        let section = &self.proposer.section;
        let most = section.max_answer_kb * 1024;
        let said = || self.watch.answer().filter(|text| !text.trim().is_empty()).map(str::to_owned);
        let found = match section.answer {
            AnswerMode::Manifest => self.workdir.manifest(most).map(|written| written.or_else(said)),
            AnswerMode::Structured => said().map_or_else(|| self.workdir.manifest(most), |text| Ok(Some(text))),
        };
        match found {
            Ok(Some(text)) if text.len() as u64 > most => Found::too_large(&text, most),
            // An endpoint knows its key, and could put it into an answer.
            Ok(Some(text)) => manifest::read(&text, request, &self.session.redactor),
            Ok(None) => {
                let message = format!("the turn ended without {MANIFEST} and without a last message");
                Problem { code: "no_proposal".into(), field: Some(MANIFEST.into()), message }.into()
            }
            Err(problem) => problem.into(),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.session.wire.lock().leave(&self.thread);
    }
}

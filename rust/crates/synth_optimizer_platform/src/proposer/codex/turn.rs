//! One turn: a thread of its own, watched until it ends or has to be ended, and what came of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::session::{HINT, NoThread, Session};
use super::watch::{Ended, Watch, message, verdict};
use super::wire::{Notes, RpcFault};
use super::workdir::{MANIFEST, Workdir};
use super::{CodexProposer, Plan, Stop};
use crate::proposer::brief::{Brief, question};
use crate::proposer::manifest::{self, Found};
use crate::proposer::outcome::{Outcome, Reason, Verdict};
use crate::proposer::transcript::Transcript;
use crate::proposer::{ProposalRequest, TurnFailure, TurnId};
use synth_optimizer_core::config::proposer::AnswerMode;
use synth_optimizer_core::model::answer::{FailureClass, ProposalAnswer};
use synth_optimizer_core::model::event_fields::{Problem, TurnModels};
use synth_optimizer_core::model::usage::Cost;

/// How long a turn that a run gives up may take to say what it has used.
const FAREWELL: Duration = Duration::from_secs(1);

/// Most characters that codex takes as the input of a turn, with room for the question.
const MOST_INPUT: usize = 900_000;

/// A turn under way. Dropped, its thread is told to end.
struct Turn<'a> {
    plan: &'a Plan,
    session: Arc<Session>,
    thread: String,
    notes: Notes,
    watch: Watch,
    workdir: Workdir,
    transcript: Transcript,
}

/// Takes a turn from the question to the answer.
pub(super) async fn take(
    proposer: &CodexProposer,
    id: TurnId,
    request: &ProposalRequest,
    mut stop: Stop,
) -> Result<ProposalAnswer, TurnFailure> {
    let plan = &proposer.plan;
    let (mut outcome, mut is_sent) = (Outcome::default(), false);
    let deadline = Instant::now() + Duration::from_secs(plan.section.timeout_seconds);
    let opened = tokio::select! {
        biased;
        _ = stop.changed() => {
            // A question that was put may be paid for, whether or not anybody has heard of it.
            let class = if is_sent { FailureClass::Abandoned } else { FailureClass::Withdrawn };
            return Err(outcome.failed((class, "the run ends".into(), Verdict::GiveUp)));
        }
        opened = timeout_at(deadline, open(proposer, id, request, &mut outcome, &mut is_sent)) => opened,
    };
    let mut turn = match opened {
        Ok(opened) => opened?,
        Err(_elapsed) => {
            let message = format!("codex was not ready for a turn within {} s", plan.section.timeout_seconds);
            return Err(outcome.failed((FailureClass::Timeout, message, Verdict::Retry)));
        }
    };
    let followed = turn.follow(deadline, &mut stop).await;
    // Another model is what counts, whatever else went wrong.
    let reason = turn.other_model().or(followed.err());
    let Turn { session, watch, .. } = &turn;
    let effective = watch.other_model.as_ref().or(watch.served_model.as_ref()).unwrap_or(&plan.model);
    outcome.models = models(&outcome, plan, Some(effective));
    outcome.usage = session.prices.usage(&plan.model, Some(effective), watch.tokens);
    if watch.ended != Some(Ended::Completed) {
        // What was generated last is paid for and was not told.
        outcome.usage.cost = Cost::Unknown;
    }
    let mut is_quiet = false;
    if watch.ended.is_some() {
        // A command that still runs could change what is read now.
        let params = json!({ "threadId": turn.thread });
        is_quiet = session.process.wire.call("thread/backgroundTerminals/clean", params, FAREWELL).await.is_ok();
    }
    let result = match reason {
        Some(reason) => Err(outcome.failed(reason)),
        None => {
            let effective = outcome.redactor.text(effective);
            Ok(turn.answer(request).into_answer(outcome.usage, &plan.model, &effective))
        }
    };
    let workdir = turn.workdir.clone();
    drop(turn);
    workdir.tidy();
    if is_quiet {
        proposer.sweep(workdir).await;
    }
    result
}

/// What a failure tells of the models. Codex names the model of a thread, or another one later in the turn. A server that
/// answers with another model and says so in the body of its responses alone is not found out, because codex does not pass
/// that on.
fn models(outcome: &Outcome, plan: &Plan, effective: Option<&String>) -> Option<TurnModels> {
    let effective = outcome.redactor.text(effective?);
    Some(TurnModels { requested: plan.model.clone(), effective: Some(effective) })
}

/// Everything up to the moment at which the model is asked.
async fn open<'a>(
    proposer: &'a CodexProposer,
    id: TurnId,
    request: &ProposalRequest,
    outcome: &mut Outcome,
    is_sent: &mut bool,
) -> Result<Turn<'a>, TurnFailure> {
    let plan = &proposer.plan;
    let session = proposer.session().await.map_err(|error| outcome.cannot_begin(error))?;
    outcome.redactor = session.redactor.clone();
    let brief = Brief::new(request, &plan.section, &session.redactor);
    let text = question(request, where_to(plan.section.answer));
    let run_dir = plan.made_run_dir().map_err(|error| outcome.cannot_begin(error))?;
    let workdir = Workdir::create(&run_dir, id, &text, &brief).map_err(|error| outcome.cannot_begin(error))?;
    proposer.unswept.lock().insert(workdir.clone(), session.redactor.clone());
    let mut transcript = Transcript::new(&run_dir, id, session.redactor.clone());
    let thread = match session.thread(plan, &workdir.path).await {
        Ok(thread) => thread,
        Err(NoThread::Fault(fault)) => {
            give_up_on(&session, &fault).await;
            return Err(outcome.failed((FailureClass::NotSent, fault.to_string(), Verdict::Retry)));
        }
        Err(NoThread::Mismatch { message, model }) => {
            outcome.models = models(outcome, plan, model.as_ref());
            return Err(outcome.failed((FailureClass::Contract, message, Verdict::Stop(HINT))));
        }
    };
    outcome.models = models(outcome, plan, Some(&plan.model));
    let params = turn_params(&thread, plan, text, &brief);
    transcript.add("optimizer", &params);
    let notes = session.process.wire.listen(&thread);
    let turn = Turn { plan, session, thread, notes, watch: Watch::default(), workdir, transcript };
    *is_sent = true;
    let limit = Duration::from_secs(plan.section.rpc_timeout_seconds);
    let (class, fault) = match turn.session.process.wire.start_turn(&turn.thread, params, limit).await {
        Ok(Some(_named)) => return Ok(turn),
        Ok(None) => {
            let fault = RpcFault::Refused { method: "turn/start", message: "it named no turn".into() };
            (FailureClass::Contract, fault)
        }
        Err(fault @ RpcFault::Refused { .. }) => (FailureClass::NotSent, fault),
        Err(fault @ (RpcFault::Gone | RpcFault::Late { .. })) => {
            give_up_on(&turn.session, &fault).await;
            (FailureClass::UnknownOutcome, fault)
        }
    };
    Err(outcome.failed((class, fault.to_string(), Verdict::Retry)))
}

/// A process that does not answer is replaced before the next turn.
async fn give_up_on(session: &Session, fault: &RpcFault) {
    match fault {
        RpcFault::Late { .. } => session.process.end(FAREWELL).await,
        RpcFault::Gone | RpcFault::Refused { .. } => {}
    }
}

fn turn_params(thread: &str, plan: &Plan, text: String, brief: &Brief) -> Value {
    let mut params = json!({ "threadId": thread });
    let mut input = text;
    match plan.section.answer {
        AnswerMode::Manifest => {}
        AnswerMode::Structured => {
            params["outputSchema"] = brief.schema.clone();
            // With everything at hand, no command is needed.
            let whole = brief.whole();
            if whole.len() <= MOST_INPUT {
                input = format!("{input}\n\n{whole}");
            }
        }
    }
    params["input"] = json!([{ "type": "text", "text": input, "text_elements": [] }]);
    if let Some(effort) = plan.section.reasoning_effort {
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
        let section = &self.plan.section;
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
            match &self.watch.ended {
                None => {}
                Some(Ended::Completed) => return Ok(()),
                Some(Ended::Interrupted) => {
                    let message = "codex broke the turn off by itself".to_owned();
                    return Err((FailureClass::Failed, message, Verdict::Retry));
                }
                Some(Ended::Failed(error)) => {
                    let message = format!("the turn failed: {}", message(error));
                    return Err((FailureClass::Failed, message, verdict(error)));
                }
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
            self.session.process.end(FAREWELL).await;
        }
        Err(reason)
    }

    fn hear(&mut self, note: &Value) {
        self.transcript.add("codex", note);
        self.watch.fold(note, &self.plan.model);
    }

    fn other_model(&self) -> Option<Reason> {
        let other = self.watch.other_model.as_ref()?;
        let message = format!("codex was asked for the model {:?} and answers with {other:?}", self.plan.model);
        Some((FailureClass::Contract, message, Verdict::Stop(HINT)))
    }

    /// Tells the turn to end and takes in what it still says; false if it does not end in time.
    async fn break_off(&mut self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        self.session.process.wire.interrupt(&self.thread);
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
        let section = &self.plan.section;
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
        self.session.process.wire.leave(&self.thread);
    }
}

//! One turn: a thread of its own, watched until it ends or has to be ended, and what came of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::outcome::{Cause, Outcome, Verdict, fatal, message, verdict};
use super::session::{NoThread, Session, Thread};
use super::sweep::Unswept;
use super::watch::{Ended, Watch};
use super::wire::{Left, Notes, RpcFault};
use super::{CodexProposer, Plan, Stop};
use crate::proposer::brief::{Brief, question};
use crate::proposer::manifest;
use crate::proposer::transcript::{Redactor, Transcript};
use crate::proposer::workdir::Workdir;
use crate::proposer::{MANIFEST, ProposalRequest, TurnFailure, TurnId};
use synth_optimizer_core::config::proposer::AnswerMode;
use synth_optimizer_core::model::answer::{FailureClass, ProposalAnswer};
use synth_optimizer_core::model::event_fields::Problem;
use synth_optimizer_core::model::usage::Cost;

/// How long a turn that a run gives up may take to say what it has used.
const FAREWELL: Duration = Duration::from_secs(1);

/// Most characters that codex takes as the input of a turn, with room for the question.
const MOST_INPUT: usize = 900_000;

/// A turn under way. Left alone, its thread is told to end.
struct Seat {
    session: Arc<Session>,
    thread: Thread,
    /// Unset until codex has named the turn.
    turn: Option<String>,
    is_over: bool,
    notes: Notes,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let left = match &self.turn {
            _ if self.is_over => Left::Idle,
            None => Left::Starting,
            Some(turn) => Left::Running { turn },
        };
        self.session.wire.leave(&self.thread.id, left);
    }
}

/// Takes a turn from the question to the answer.
pub(super) async fn take(
    proposer: &CodexProposer,
    id: TurnId,
    request: &ProposalRequest,
    mut stop: Stop,
) -> Result<ProposalAnswer, TurnFailure> {
    let plan = &*proposer.plan;
    let mut outcome = Outcome::new(plan);
    let deadline = Instant::now() + Duration::from_secs(plan.section.timeout_seconds);
    let opened = tokio::select! {
        biased;
        _ = stop.changed() => {
            // A question that was put may be paid for, whether or not anybody has heard of it.
            let class = if outcome.is_sent { FailureClass::Abandoned } else { FailureClass::Withdrawn };
            return Err(outcome.failure(class, "the run ends".into(), Verdict::GiveUp));
        }
        opened = timeout_at(deadline, open(proposer, id, request, &mut outcome)) => opened,
    };
    let Opened { mut seat, workdir, unswept, mut transcript } = match opened {
        Ok(opened) => opened?,
        Err(_elapsed) => {
            let message = format!("codex was not ready for a turn within {} s", plan.section.timeout_seconds);
            return Err(outcome.failure(FailureClass::Timeout, message, Verdict::Retry));
        }
    };
    let mut watch = Watch::default();
    let cause = follow(&mut seat, &mut watch, &mut transcript, plan, deadline, &mut stop).await;
    match cause {
        Cause::Ended | Cause::Gone => {}
        Cause::Stopped => {
            break_off(&mut seat, &mut watch, &mut transcript, plan, FAREWELL).await;
        }
        Cause::Deadline | Cause::OtherModel | Cause::Commands | Cause::Tokens => {
            let patience = Duration::from_secs(plan.section.interrupt_timeout_seconds);
            if !break_off(&mut seat, &mut watch, &mut transcript, plan, patience).await {
                seat.session.end(FAREWELL).await;
            }
        }
    }
    if let Some(model) = watch.other_model().or(watch.served_model()) {
        outcome.effective = Some(model.to_owned());
    }
    let usage_of = |model: &str| seat.session.prices.usage(model, watch.tokens());
    outcome.usage = usage_of(outcome.effective.as_deref().unwrap_or(&plan.model));
    if outcome.usage.cost == Cost::Unknown && watch.other_model().is_none() {
        // Prices are known by the name that was asked for, where it is the same model.
        outcome.usage = usage_of(&plan.model);
    }
    if watch.ended() != Some(&Ended::Completed) {
        // What was generated last is paid for and was not told.
        outcome.usage.cost = Cost::Unknown;
    }
    let mut is_quiet = false;
    if watch.ended().is_some() {
        // A command that still runs could change what is read now.
        let params = json!({ "threadId": seat.thread.id });
        is_quiet = seat.session.wire.call("thread/backgroundTerminals/clean", params, FAREWELL).await.is_ok();
    }
    let result = conclude(&outcome, cause, &watch, &workdir, request, plan, &seat);
    drop(seat);
    workdir.tidy();
    if is_quiet {
        unswept.sweep().await;
    }
    result.map_err(|failure| *failure)
}

/// A turn that has begun.
struct Opened<'a> {
    seat: Seat,
    workdir: Workdir,
    unswept: Unswept<'a>,
    transcript: Transcript,
}

/// Everything up to the moment at which the model is asked.
async fn open<'a>(
    proposer: &'a CodexProposer,
    id: TurnId,
    request: &ProposalRequest,
    outcome: &mut Outcome,
) -> Result<Opened<'a>, TurnFailure> {
    let plan = &*proposer.plan;
    let session = proposer.session().await.map_err(|error| outcome.stop(FailureClass::NotSent, error))?;
    outcome.redactor = session.redactor.clone();
    let brief = Brief::new(request, &plan.section, &session.redactor);
    let text = question(request, where_to(plan.section.answer));
    let run_dir = plan.made_run_dir().map_err(|error| outcome.stop(FailureClass::NotSent, error))?;
    let workdir = Workdir::create(&run_dir, id, &text, &brief);
    let workdir = workdir.map_err(|error| outcome.stop(FailureClass::NotSent, error))?;
    let unswept = Unswept::new(proposer, workdir.path(), &session.redactor);
    let mut transcript = Transcript::new(&run_dir, id, session.redactor.clone());
    let thread = match session.thread(plan, workdir.path()).await {
        Ok(thread) => thread,
        Err(NoThread::Fault(fault)) => {
            give_up_on(&session, &fault).await;
            return Err(outcome.unsent(&fault));
        }
        Err(NoThread::Mismatch { message, model }) => {
            outcome.effective = model;
            return Err(outcome.stop(FailureClass::Contract, fatal(message)));
        }
    };
    outcome.effective = Some(thread.model.clone());
    let notes = session.wire.listen(&thread.id);
    let mut seat = Seat { session, thread, turn: None, is_over: false, notes };
    let params = turn_params(&seat.thread.id, plan, text, &brief);
    transcript.add("optimizer", &params);
    let limit = Duration::from_secs(plan.section.rpc_timeout_seconds);
    outcome.is_sent = true;
    let started = seat.session.wire.call("turn/start", params, limit).await;
    let turn = started.map(|started| started.pointer("/turn/id").and_then(Value::as_str).map(str::to_owned));
    match turn {
        Ok(Some(turn)) => seat.turn = Some(turn),
        Ok(None) => {
            let fault = RpcFault::Refused { method: "turn/start", message: "it named no turn".into() };
            return Err(outcome.failure(FailureClass::Contract, fault.to_string(), Verdict::Retry));
        }
        Err(fault @ RpcFault::Refused { .. }) => {
            seat.is_over = true;
            return Err(outcome.unsent(&fault));
        }
        Err(fault @ (RpcFault::Gone | RpcFault::Late { .. })) => {
            give_up_on(&seat.session, &fault).await;
            return Err(outcome.failure(FailureClass::UnknownOutcome, fault.to_string(), Verdict::Retry));
        }
    }
    Ok(Opened { seat, workdir, unswept, transcript })
}

/// A process that does not answer is replaced before the next turn.
async fn give_up_on(session: &Session, fault: &RpcFault) {
    match fault {
        RpcFault::Late { .. } => session.end(FAREWELL).await,
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

/// Listens until the turn has ended, or has to.
async fn follow(
    seat: &mut Seat,
    watch: &mut Watch,
    transcript: &mut Transcript,
    plan: &Plan,
    deadline: Instant,
    stop: &mut Stop,
) -> Cause {
    loop {
        let note = tokio::select! {
            biased;
            _ = stop.changed() => return Cause::Stopped,
            () = sleep_until(deadline) => return Cause::Deadline,
            note = seat.notes.recv() => note,
        };
        let Some(note) = note else { return Cause::Gone };
        transcript.add("codex", &note);
        watch.fold(&note, &plan.model);
        if watch.other_model().is_some() {
            return Cause::OtherModel;
        }
        if watch.ended().is_some() {
            seat.is_over = true;
            return Cause::Ended;
        }
        if watch.commands() > plan.section.max_commands {
            return Cause::Commands;
        }
        if watch.tokens().is_some_and(|tokens| tokens.total() > plan.section.max_turn_tokens) {
            return Cause::Tokens;
        }
    }
}

/// Tells the turn to end and takes in what it still says; false if it does not end in time.
async fn break_off(
    seat: &mut Seat,
    watch: &mut Watch,
    transcript: &mut Transcript,
    plan: &Plan,
    patience: Duration,
) -> bool {
    let until = Instant::now() + patience;
    if watch.ended().is_none() {
        seat.session.wire.tell("turn/interrupt", json!({ "threadId": seat.thread.id, "turnId": seat.turn }));
    }
    while watch.ended().is_none() {
        match timeout_at(until, seat.notes.recv()).await {
            Ok(Some(note)) => {
                transcript.add("codex", &note);
                watch.fold(&note, &plan.model);
            }
            // A process that is gone has ended its turns.
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
    seat.is_over = true;
    true
}

/// What came of the turn.
fn conclude(
    outcome: &Outcome,
    cause: Cause,
    watch: &Watch,
    workdir: &Workdir,
    request: &ProposalRequest,
    plan: &Plan,
    seat: &Seat,
) -> Result<ProposalAnswer, Box<TurnFailure>> {
    let section = &plan.section;
    if let Some(other) = watch.other_model() {
        let message = format!("codex was asked for the model {:?} and answers with {other:?}", plan.model);
        return Err(Box::new(outcome.stop(FailureClass::Contract, fatal(message))));
    }
    let failed = |class, message, verdict| Err(Box::new(outcome.failure(class, message, verdict)));
    match cause {
        Cause::Stopped => failed(FailureClass::Abandoned, "the run ends".into(), Verdict::GiveUp),
        Cause::Gone => {
            failed(FailureClass::UnknownOutcome, "codex ended in the middle of a turn".into(), Verdict::Retry)
        }
        Cause::Deadline => {
            let message = format!("the turn was not over within {} s", section.timeout_seconds);
            failed(FailureClass::Timeout, message, Verdict::Retry)
        }
        Cause::Commands => {
            let message = format!("the model ran more than {} commands in one turn", section.max_commands);
            failed(FailureClass::Failed, message, Verdict::GiveUp)
        }
        Cause::Tokens => {
            let message = format!("the turn used more than {} tokens", section.max_turn_tokens);
            failed(FailureClass::Failed, message, Verdict::GiveUp)
        }
        // Handled above: another model is known by its name.
        Cause::OtherModel => failed(FailureClass::Contract, "codex answers with another model".into(), Verdict::Stop),
        Cause::Ended => match watch.ended() {
            Some(Ended::Completed) => Ok(answer(outcome, watch, workdir, request, plan, &seat.session.redactor)),
            Some(Ended::Interrupted) | None => {
                failed(FailureClass::Failed, "codex broke the turn off by itself".into(), Verdict::Retry)
            }
            Some(Ended::Failed(error)) => {
                failed(FailureClass::Failed, format!("the turn failed: {}", message(error)), verdict(error))
            }
        },
    }
}

/// Reads the proposals from where they were to be put, else from where they are.
fn answer(
    outcome: &Outcome,
    watch: &Watch,
    workdir: &Workdir,
    request: &ProposalRequest,
    plan: &Plan,
    redactor: &Redactor,
) -> ProposalAnswer {
    let most = plan.section.max_answer_kb * 1024;
    let said = || watch.answer().filter(|text| !text.trim().is_empty()).map(str::to_owned);
    let found = match plan.section.answer {
        AnswerMode::Manifest => workdir.manifest(most).map(|written| written.or_else(said)),
        AnswerMode::Structured => said().map_or_else(|| workdir.manifest(most), |text| Ok(Some(text))),
    };
    let found = match found {
        Ok(Some(text)) if text.len() as u64 > most => {
            let message = format!("the answer has {} bytes; at most {most} are allowed", text.len());
            Err(Problem { code: "answer_too_large".into(), field: None, message })
        }
        // An endpoint knows its key, and could put it into an answer.
        Ok(Some(text)) => Ok(manifest::read(&text, request, redactor)),
        Ok(None) => {
            let message = format!("the turn ended without {MANIFEST} and without a last message");
            Err(Problem { code: "no_proposal".into(), field: Some(MANIFEST.into()), message })
        }
        Err(problem) => Err(problem),
    };
    let found = found.unwrap_or_else(|problem| manifest::Found { proposals: Vec::new(), problems: vec![problem] });
    ProposalAnswer {
        proposals: found.proposals,
        problems: found.problems,
        usage: outcome.usage,
        cached: false,
        requested_model: plan.model.clone(),
        effective_model: redactor.text(outcome.effective.as_deref().unwrap_or(&plan.model)),
    }
}

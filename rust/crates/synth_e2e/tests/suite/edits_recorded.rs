//! Recorded answers of a language model to questions about texts of this repository: which of them apply, and the tokens that they
//! save. A file of `bench/edits/recorded` has a text, the evidence, each answer as the model wrote it, and what became of it.
//!
//! Question and answer take the way of a run: the engine asks, the proposer `openai_compatible` renders the question and reads the
//! answer, the engine checks the proposal and asks for a repair. To record an answer, run the test with `SYNTH_EDITS_QUESTIONS`: it
//! writes each question without an answer into that directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use serde_json::{Value, json};
use synth_e2e::ModelServer;
use synth_e2e::model_server::chat;
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::gepa::{Direction, SearchMode};
use synth_optimizer_core::config::proposer::ProposerBackend;
use synth_optimizer_core::config::{Config, search_digest};
use synth_optimizer_core::engine::{Engine, Session};
use synth_optimizer_core::model::answer::{Answer, Observation, Proposal, RolloutAnswer};
use synth_optimizer_core::model::command::{Command, EvidenceRow, ProposeCommand};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{CandidateRegistered, RunStarted};
use synth_optimizer_core::model::ids::{HeldoutRow, Payload, RowId, TrainRow};
use synth_optimizer_core::model::program::{Inputs, Module, Program, Row};
use synth_optimizer_core::model::usage::Usage;
use synth_optimizer_platform::proposer::{Evidence, OpenAiProposer, ProposalRequest, Proposer, TurnId};

use crate::edits::{tokens, write_figures};
use crate::harness::TestDir;

/// Writes questions without an answer into this directory.
const QUESTIONS: &str = "SYNTH_EDITS_QUESTIONS";

/// One text with the answers about it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recording {
    /// Where the text is from.
    source: String,
    /// What the container says about the task.
    task: String,
    field: String,
    #[serde(default)]
    variables: Vec<String>,
    text: String,
    rows: Vec<RecordedRow>,
    #[serde(default)]
    turns: Vec<RecordedTurn>,
    /// The candidate of the last answer. Its id covers every character of the new text.
    #[serde(default)]
    candidate_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedRow {
    question: String,
    output: String,
    score: f64,
    feedback: String,
}

/// An answer, and the problems for which it is refused. Without problems it applies.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedTurn {
    answer: String,
    problems: Vec<String>,
}

impl Recording {
    fn row_id(index: usize) -> RowId {
        RowId::new(&format!("train:{index}"))
    }

    fn inputs(&self) -> Inputs {
        let row = |(index, row): (usize, &RecordedRow)| Row {
            id: Self::row_id(index),
            stratum: None,
            texts: vec![row.question.clone()],
        };
        let heldout = Row { id: RowId::new("heldout:0"), stratum: None, texts: Vec::new() };
        let pool: Vec<TrainRow> = (0..).map(TrainRow).take(self.rows.len()).collect();
        Inputs {
            program: Program {
                program_id: "recorded".into(),
                modules: vec![Module { field: self.field.clone(), template_variables: self.variables.clone() }],
                targets: vec![self.field.clone()],
                seed: Payload::from([(self.field.clone(), self.text.clone())]),
            },
            train: self.rows.iter().enumerate().map(row).collect(),
            heldout: vec![heldout],
            pareto_pool: pool.clone(),
            minibatch_pool: pool.clone(),
            reflection_pool: pool,
            heldout_pool: vec![HeldoutRow(0)],
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.gepa.search = SearchMode::Reference;
        config.gepa.proposals_per_generation = 1;
        config.gepa.minibatch_size = Some(self.rows.len() as u32);
        config.gepa.max_generations = Some(1);
        config.policy.get_or_insert_default().model = Some("toy".into());
        config.candidate.target_modules = vec![self.field.clone()];
        config
    }

    fn request(&self, command: ProposeCommand, refused: Vec<Proposal>) -> ProposalRequest {
        let evidence = |shown: EvidenceRow| {
            let index = (0..self.rows.len()).find(|index| Self::row_id(*index) == shown.row_id).unwrap();
            let row = &self.rows[index];
            let reply = json!({ "output": row.output, "reward": row.score, "feedback": row.feedback });
            let input = json!({ "question": row.question });
            Evidence { row_id: shown.row_id, row: input, score: shown.score, reply: Some(reply) }
        };
        ProposalRequest {
            evidence: command.evidence.into_iter().map(evidence).collect(),
            program: json!({ "program_id": "recorded", "mutable_fields": [self.field] }),
            task_info: Some(json!({ "description": self.task })),
            direction: Direction::Maximize,
            refused,
            question: command.question,
        }
    }
}

/// An endpoint that gives the recorded answers.
struct Endpoint {
    proposer: OpenAiProposer,
    answer: Arc<Mutex<String>>,
    question: Arc<Mutex<String>>,
    runtime: tokio::runtime::Runtime,
    _server: ModelServer,
    _place: TestDir,
}

impl Endpoint {
    fn start() -> Self {
        let (answer, question) = (Arc::<Mutex<String>>::default(), Arc::<Mutex<String>>::default());
        let (said, asked) = (Arc::clone(&answer), Arc::clone(&question));
        let server = ModelServer::start(move |request| {
            *asked.lock().unwrap() = request.text();
            chat("toy", said.lock().unwrap().clone())
        })
        .unwrap();
        let place = TestDir::new();
        let mut config = Config::default();
        config.proposer.backend = ProposerBackend::OpenaiCompatible;
        config.proposer.base_url = Some(server.base_url());
        config.proposer.model = Some("toy".into());
        let proposer = OpenAiProposer::new(&config, place.path(), &|_| None).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { proposer, answer, question, runtime, _server: server, _place: place }
    }
}

/// What became of the answers about one text.
#[derive(Debug, Default)]
struct Outcome {
    /// Problems of each answer.
    problems: Vec<Vec<String>>,
    /// The new text, and the id of its candidate.
    text: Option<String>,
    candidate_id: Option<String>,
    /// Share of the parent's lines that the new text keeps.
    kept_share: Option<f64>,
    /// A question that has no recorded answer.
    unanswered: Option<String>,
}

/// Runs a search up to its first valid proposal or its last recorded answer.
fn play(recording: &Recording, endpoint: &Endpoint) -> Outcome {
    let config = recording.config();
    let engine = GepaEngine::new(&config, recording.inputs()).unwrap();
    let mut session = Session::new(&engine);
    session.start(RunStarted {
        algorithm: "gepa".into(),
        config_digest: search_digest(&config),
        seed: 0,
        container_url: "http://127.0.0.1:1".into(),
    });
    session.observe(&Observation::Begin).unwrap();
    let (mut outcome, mut refused) = (Outcome::default(), Vec::new());
    while let Some(command) = session.outstanding().into_iter().next() {
        match command {
            Command::Rollout(rollout) => {
                let score = (0..recording.rows.len()).find(|index| Recording::row_id(*index) == rollout.row_id);
                let answer = RolloutAnswer {
                    reward: score.map_or(0.0, |index| recording.rows[index].score),
                    objectives: BTreeMap::new(),
                    usage: Usage::default(),
                    cached: false,
                    trace_digest: None,
                };
                session.accept_answer(rollout.call_id, Answer::Rollout(answer)).unwrap();
            }
            Command::Propose(propose) => {
                assert_eq!(propose.question.edit_fields, [recording.field.as_str()], "{}", recording.source);
                let id = TurnId { call_id: propose.call_id, attempt: propose.attempt };
                let recorded = recording.turns.get(outcome.problems.len()).map(|turn| turn.answer.clone());
                let is_recorded = recorded.is_some();
                *endpoint.answer.lock().unwrap() = recorded.unwrap_or_default();
                let turn = endpoint.proposer.propose(id, recording.request(propose, refused));
                let answer = endpoint.runtime.block_on(turn).unwrap();
                if !is_recorded {
                    outcome.unanswered = Some(endpoint.question.lock().unwrap().clone());
                    break;
                }
                refused = answer.proposals.clone();
                let events = session.accept_answer(id.call_id, Answer::Proposal(answer)).unwrap();
                outcome.problems.push(events.iter().flat_map(problems).collect());
                if let Some(candidate) = events.iter().find_map(registered) {
                    outcome.text = candidate.payload.get(&recording.field).cloned();
                    outcome.candidate_id = Some(candidate.candidate_id.to_string());
                    outcome.kept_share = candidate.kept_share;
                    break;
                }
            }
        }
    }
    outcome
}

fn problems(event: &Event) -> Vec<String> {
    match event {
        Event::ProposalRejected(rejected) => {
            rejected.problems.iter().map(|problem| format!("{}: {}", problem.code, problem.message)).collect()
        }
        _ => Vec::new(),
    }
}

fn registered(event: &Event) -> Option<&CandidateRegistered> {
    match event {
        Event::CandidateRegistered(candidate) => Some(candidate),
        _ => None,
    }
}

fn recordings() -> Vec<(String, Recording)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bench/edits/recorded");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let recording = serde_json::from_str(&fs::read_to_string(&path).unwrap());
        (name, recording.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    };
    files.into_iter().map(read).collect()
}

/// Returns an answer that gives the whole text instead of its edits.
fn with_whole_text(answer: &str, field: &str, text: &str) -> String {
    let mut document: Value = serde_json::from_str(answer).unwrap();
    document["proposals"][0]["proposed_payload"][field] = text.into();
    document["proposals"][0]["edits"][field] = json!([]);
    document.to_string()
}

/// Returns the figures of one text.
fn figures(name: &str, recording: &Recording, outcome: &Outcome) -> Value {
    let answers = recording.turns.iter().map(|turn| tokens(&turn.answer)).sum::<usize>();
    // An answer that never applied is compared with the text of the parent.
    let text = outcome.text.as_deref().unwrap_or(&recording.text);
    let last = &recording.turns[recording.turns.len() - 1].answer;
    json!({
        "name": name,
        "source": recording.source,
        "lines": recording.text.lines().count(),
        "applies_at_once": outcome.text.is_some() && outcome.problems.len() == 1,
        "applies": outcome.text.is_some(),
        "problems": outcome.problems.concat(),
        "kept_share": outcome.kept_share,
        "answer_tokens": answers,
        "whole_answer_tokens": tokens(&with_whole_text(last, &recording.field, text)),
        "text_tokens": tokens(text),
    })
}

#[test]
fn recorded_answers_apply_as_recorded() {
    let (endpoint, mut measured, mut changed) = (Endpoint::start(), Vec::new(), Vec::new());
    let recordings = recordings();
    assert!(recordings.len() >= 32, "{} recordings", recordings.len());
    for (name, recording) in &recordings {
        let outcome = play(recording, &endpoint);
        if let Some(question) = &outcome.unanswered {
            if let Ok(folder) = std::env::var(QUESTIONS) {
                let path = Path::new(&folder).join(format!("{name}.{}.md", outcome.problems.len() + 1));
                fs::write(path, question).unwrap();
            }
            changed.push(format!("{name}: answer {} is not recorded", outcome.problems.len() + 1));
        }
        let recorded = recording.turns.iter().map(|turn| &turn.problems);
        if !recorded.eq(&outcome.problems) || recording.candidate_id != outcome.candidate_id {
            changed.push(format!("{name}: {:#?} {:?}", outcome.problems, outcome.candidate_id));
        }
        if !recording.turns.is_empty() {
            measured.push(figures(name, recording, &outcome));
        }
    }
    write_figures("recorded", &json!(measured));
    assert!(changed.is_empty(), "these answers have another outcome than the recorded one:\n{}", changed.join("\n"));
}

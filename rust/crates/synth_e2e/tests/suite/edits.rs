//! Edits of the texts of this repository, from prompts of a few lines to pages of several hundred: how many apply, and the tokens
//! that they save. Every answer goes through the proposer `openai_compatible`. `--nocapture` shows the table.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use synth_e2e::ModelServer;
use synth_e2e::model_server::chat;
use synth_gepa::{RandomStream, random_stream};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::config::proposer::ProposerBackend;
use synth_optimizer_core::model::answer::ProposalAnswer;
use synth_optimizer_core::model::command::{NamedPayload, ProposerQuestion};
use synth_optimizer_core::model::edit::{Edit, EditCause, EditFault, EditOperation, lay_over};
use synth_optimizer_core::model::event_fields::Operation;
use synth_optimizer_core::model::ids::{CallId, CandidateId, Payload};
use synth_optimizer_platform::proposer::{OpenAiProposer, ProposalRequest, Proposer, TurnId};

use crate::harness::TestDir;

/// Writes the figures of both tests of edits into this directory.
const FIGURES: &str = "SYNTH_EDITS_FIGURES";

/// Writes figures as `NAME.json`, if the environment names a directory for them.
pub(crate) fn write_figures(name: &str, figures: &Value) {
    if let Ok(folder) = std::env::var(FIGURES) {
        fs::create_dir_all(&folder).unwrap();
        fs::write(Path::new(&folder).join(format!("{name}.json")), figures.to_string()).unwrap();
    }
}

const FIELD: &str = "prompt";
const RULE: &str = "- If two answers are equally good, give the shorter one.";
/// Texts with more lines are asked for by edits.
const MAX_REWRITTEN_LINES: usize = 5;

/// Returns prompts, guides and pages of the repository, and the sections of some of them, which are shorter.
fn texts() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut files = vec![root.join("README.md"), root.join("ARCHITECTURE.md"), root.join("CONTRIBUTING.md")];
    files.push(root.join("rust/crates/synth_optimizer_platform/src/proposer/guidance.md"));
    for folder in ["docs", "cookbooks", "examples"] {
        list(&root.join(folder), &mut files);
    }
    let mut found = BTreeSet::new();
    for file in files {
        // The figures of this page would change with themselves.
        if file.ends_with("docs/benchmarks.md") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        if file == root.join("README.md") || file.parent() == Some(&root.join("docs/guides")) {
            found.extend(text.split("\n## ").skip(1).map(|section| format!("## {section}")));
        }
        found.insert(text);
    }
    found.into_iter().filter(|text| (3..1000).contains(&text.lines().count())).collect()
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, files);
        } else if path.extension().is_some_and(|end| end == "md") || path.ends_with("prompt.txt") {
            files.push(path);
        }
    }
}

/// What an answer changes: the edits as a model writes them, and the text that they should make.
struct Change {
    edits: Vec<Edit>,
    expected: String,
}

/// Writes the edits of one answer. A model does not count occurrences: it quotes any line, mostly as a whole, sometimes without its
/// indentation or only its beginning, and sometimes wrongly.
fn change(text: &str, kind: usize, random: &mut RandomStream) -> Change {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let wordy: Vec<usize> = (1..lines.len()).filter(|index| lines[*index].split_whitespace().count() > 1).collect();
    let chosen = if wordy.is_empty() { 0 } else { wordy[random.index(wordy.len())] };
    let line = lines[chosen].clone();
    let mut edits = Vec::new();
    match kind {
        0 => {}
        1 | 2 => {
            let quote = match random.index(10) {
                0..=5 => line.clone(),
                6 | 7 => line.trim().to_owned(),
                8 => line.split_inclusive(' ').take(6).collect::<String>().trim_end().to_owned(),
                _ => misquoted(&line),
            };
            let is_wrong = !line.contains(&quote);
            let kept = if is_wrong { line.as_str() } else { quote.as_str() };
            let new = format!("{kept} (always)");
            lines[chosen] = line.replacen(kept, &new, 1);
            edits.push(edit(EditOperation::Replace, &quote, &new));
        }
        _ => {
            lines.remove(chosen);
            edits.push(edit(EditOperation::Delete, &line, ""));
        }
    }
    if kind == 2 {
        let is_heading = |line: &String| line.starts_with('#');
        let place = lines.iter().position(is_heading).unwrap_or(0);
        edits.push(edit(EditOperation::InsertAfter, &lines[place], RULE));
        lines.insert(place + 1, RULE.to_owned());
    } else {
        edits.push(edit(EditOperation::Append, "", RULE));
        lines.push(RULE.to_owned());
    }
    let end = if text.ends_with('\n') { "\n" } else { "" };
    Change { edits, expected: lines.join("\n") + end }
}

/// Returns a line as a model may misremember it: with another word at the end.
fn misquoted(line: &str) -> String {
    let start = line.rsplit_once(' ').map_or(line, |(start, _)| start);
    format!("{start} anyway.")
}

fn edit(operation: EditOperation, find: &str, text: &str) -> Edit {
    Edit { operation, find: find.into(), text: text.into() }
}

/// Repairs edits as the problems ask: quotes the line before as well, or the nearest line.
fn repaired(text: &str, edits: &[Edit], faults: &[EditFault]) -> Vec<Edit> {
    let mut edits = edits.to_vec();
    for fault in faults {
        let edit = &mut edits[fault.number - 1];
        match &fault.cause {
            EditCause::NotFound { nearest: Some(nearest) } => {
                let new = edit.text.strip_suffix(" (always)").map(|_| format!("{nearest} (always)"));
                (edit.find, edit.text) = (nearest.clone(), new.unwrap_or_else(|| edit.text.clone()));
            }
            EditCause::Ambiguous { .. } => {
                // The first occurrence, with up to two lines before it.
                let lines: Vec<&str> = text.lines().collect();
                let Some(place) = lines.iter().position(|line| line.contains(&edit.find)) else { continue };
                let around = lines[place.saturating_sub(2)..=place].join("\n");
                let before = around.strip_suffix(lines[place]).unwrap_or_default();
                let rest = lines[place].split_once(&edit.find).map_or("", |(start, _)| start);
                (edit.find, edit.text) = match edit.operation {
                    EditOperation::Replace => {
                        (format!("{before}{rest}{}", edit.find), format!("{before}{rest}{}", edit.text))
                    }
                    EditOperation::Delete => {
                        edit.operation = EditOperation::Replace;
                        (around.clone(), before.trim_end_matches('\n').to_owned())
                    }
                    EditOperation::InsertAfter | EditOperation::Append => (around.clone(), edit.text.clone()),
                };
            }
            _ => {}
        }
    }
    edits
}

fn request(text: &str) -> ProposalRequest {
    let base = Payload::from([(FIELD.to_owned(), text.to_owned())]);
    let question = ProposerQuestion {
        operation: Operation::Mutate,
        generation: 1,
        parents: vec![NamedPayload { candidate_id: CandidateId::of("c", &base), payload: base.clone() }],
        ancestor: None,
        base,
        components: vec![FIELD.to_owned()],
        edit_fields: vec![FIELD.to_owned()],
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
        program: json!({}),
        task_info: None,
        direction: Direction::Maximize,
        evidence: Vec::new(),
        refused: Vec::new(),
    }
}

/// Returns a manifest of the shape that a strict schema demands.
fn manifest(text: Option<&str>, edits: &[Edit]) -> Value {
    let edits: Vec<Value> =
        edits.iter().map(|edit| json!({ "operation": edit.operation, "find": edit.find, "text": edit.text })).collect();
    let mut manifest = synth_e2e::model_server::manifest(json!({ FIELD: text }));
    manifest["proposals"][0]["edits"] = json!({ FIELD: edits });
    manifest
}

/// Tokens of a text, estimated as for candidates.
pub(crate) fn tokens(text: &str) -> usize {
    text.chars().count().div_ceil(4)
}

struct Endpoint {
    proposer: OpenAiProposer,
    reply: Arc<Mutex<String>>,
    runtime: tokio::runtime::Runtime,
    turns: u64,
    _server: ModelServer,
    _place: TestDir,
}

impl Endpoint {
    fn start() -> Self {
        let reply = Arc::new(Mutex::new(String::new()));
        let said = Arc::clone(&reply);
        let server = ModelServer::start(move |_| chat("toy", said.lock().unwrap().clone())).unwrap();
        let place = TestDir::new();
        let mut config = Config::default();
        config.proposer.backend = ProposerBackend::OpenaiCompatible;
        config.proposer.base_url = Some(server.base_url());
        config.proposer.model = Some("toy".into());
        let proposer = OpenAiProposer::new(&config, place.path(), &|_| None).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { proposer, reply, runtime, turns: 0, _server: server, _place: place }
    }

    /// Returns the edits that the proposer reads from an answer.
    fn turn(&mut self, text: &str, answer: &Value) -> Vec<Edit> {
        *self.reply.lock().unwrap() = answer.to_string();
        self.turns += 1;
        let id = TurnId { call_id: CallId(self.turns), attempt: 1 };
        let read: ProposalAnswer = self.runtime.block_on(self.proposer.propose(id, request(text))).unwrap();
        assert_eq!(read.problems, [], "{answer}");
        assert!(read.proposals[0].fields.is_empty());
        read.proposals[0].edits[FIELD].clone()
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    texts: usize,
    answers: usize,
    at_once: usize,
    repaired: usize,
    tokens_of_edits: usize,
    tokens_of_texts: usize,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.texts += other.texts;
        self.answers += other.answers;
        self.at_once += other.at_once;
        self.repaired += other.repaired;
        self.tokens_of_edits += other.tokens_of_edits;
        self.tokens_of_texts += other.tokens_of_texts;
    }

    fn applied_at_once(&self) -> f64 {
        self.at_once as f64 / self.answers as f64
    }

    fn applied(&self) -> f64 {
        (self.at_once + self.repaired) as f64 / self.answers as f64
    }

    fn saved(&self) -> f64 {
        1.0 - self.tokens_of_edits as f64 / self.tokens_of_texts as f64
    }

    fn figures(&self, name: &str) -> Value {
        json!({
            "name": name,
            "texts": self.texts,
            "answers": self.answers,
            "at_once": self.at_once,
            "repaired": self.repaired,
            "answer_tokens": self.tokens_of_edits,
            "whole_answer_tokens": self.tokens_of_texts,
        })
    }

    fn print(&self, name: &str) {
        println!(
            "{name:>19} {:5} texts {:4} answers: {:5.1} % apply at once, {:5.1} % after one repair; tokens {:7} of {:7}, {:5.1} % saved",
            self.texts,
            self.answers,
            100.0 * self.applied_at_once(),
            100.0 * self.applied(),
            self.tokens_of_edits,
            self.tokens_of_texts,
            100.0 * self.saved()
        );
    }
}

/// Asks for four answers about a text: a new rule; a reworded line; a reworded line and a rule below a heading; a deleted line.
fn measure(endpoint: &mut Endpoint, text: &str, number: u64) -> Tally {
    let mut tally = Tally { texts: 1, ..Tally::default() };
    for kind in 0..4 {
        let mut random = random_stream(17, "edits", number * 4 + kind as u64);
        let Change { edits, expected } = change(text, kind, &mut random);
        let answer = manifest(None, &edits);
        tally.answers += 1;
        tally.tokens_of_edits += tokens(&answer.to_string());
        tally.tokens_of_texts += tokens(&manifest(Some(&expected), &[]).to_string());
        let faults = match lay_over(text, &endpoint.turn(text, &answer)) {
            Ok(made) => {
                assert_eq!(made, expected, "the edits changed another place: {edits:?}");
                tally.at_once += 1;
                continue;
            }
            Err(faults) => faults,
        };
        let answer = manifest(None, &repaired(text, &edits, &faults));
        tally.tokens_of_edits += tokens(&answer.to_string());
        tally.repaired += usize::from(lay_over(text, &endpoint.turn(text, &answer)).is_ok());
    }
    tally
}

#[test]
fn edits_apply_to_real_texts_and_save_tokens() {
    let classes = [("3-5 lines", 5), ("6-20 lines", 20), ("21-100 lines", 100), ("more than 100 lines", usize::MAX)];
    let mut tallies = [Tally::default(); 4];
    let mut endpoint = Endpoint::start();
    let texts = texts();
    for (number, text) in texts.iter().enumerate() {
        let lines = text.lines().count();
        let class = classes.iter().position(|(_, most)| lines <= *most).unwrap();
        tallies[class].add(&measure(&mut endpoint, text, number as u64));
    }
    let mut long = Tally::default();
    for ((name, most), tally) in classes.iter().zip(&tallies) {
        assert!(tally.texts >= 3, "{name}: {} texts", tally.texts);
        tally.print(name);
        if *most > MAX_REWRITTEN_LINES {
            long.add(tally);
        }
    }
    long.print("more than 5");
    let figures = classes.iter().zip(&tallies).map(|((name, _), tally)| tally.figures(name));
    write_figures("scripted", &figures.collect());
    assert!(long.texts >= 30 && texts.iter().any(|text| text.lines().count() > 300), "{long:?}");
    assert!(long.applied_at_once() > 0.85 && long.applied() > 0.95, "{long:?}");
    assert!(long.saved() > 0.75 && tallies[1].saved() > 0.0, "{tallies:?}");
}

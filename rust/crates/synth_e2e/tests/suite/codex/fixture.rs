//! A codex proposer with a scripted model server and a temporary run directory, and the checks after a turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use synth_e2e::ModelServer;
use synth_e2e::logs::{capture_records, captured_records};
use synth_e2e::model_server::{ModelReply, ModelRequest};
use synth_e2e::wait::{WAIT_TIMEOUT, wait_until};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::model::answer::ProposalAnswer;
use synth_optimizer_core::model::command::{NamedPayload, ProposerQuestion};
use synth_optimizer_core::model::event_fields::Operation;
use synth_optimizer_core::model::ids::{CallId, CandidateId, RowId};
use synth_optimizer_platform::proposer::{CodexProposer, Evidence, ProposalRequest, Proposer, TurnFailure, TurnId};
use tempfile::TempDir;

/// Key of the endpoint, and the variable that holds it.
pub(crate) const KEY: &str = "canary-of-the-key-5b1d7e";
pub(crate) const KEY_VARIABLE: &str = "TEST_PROPOSER_KEY";
/// Content of a host file that codex must not read.
pub(crate) const HOST_CANARY: &str = "canary-of-the-host-93c2f0";

/// Returns the path of the real binary. Panics without it, because these tests would prove nothing.
pub(crate) fn codex() -> String {
    std::env::var("SYNTH_E2E_CODEX")
        .expect("SYNTH_E2E_CODEX must name the codex binary of the PyPI package openai-codex-cli-bin (its bin/codex)")
}

/// A codex proposer with its own directory.
pub(crate) struct CodexFixture {
    directory: TempDir,
    pub(crate) server: ModelServer,
    pub(crate) config: Config,
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) codex_runtime: Option<Utf8PathBuf>,
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl CodexFixture {
    pub(crate) fn new(model: impl Fn(&ModelRequest) -> ModelReply + Send + Sync + 'static) -> Self {
        capture_records();
        let directory = tempfile::tempdir().unwrap();
        let server = ModelServer::start(model).unwrap();
        let mut config = Config::default();
        let proposer = &mut config.proposer;
        proposer.command = vec![codex()];
        proposer.base_url = Some(server.base_url());
        proposer.provider = "loopback".into();
        proposer.model = Some("stub-model".into());
        proposer.api_key_env = Some(KEY_VARIABLE.into());
        proposer.timeout_seconds = 30;
        proposer.idle_timeout_seconds = 20;
        proposer.request_retries = 1;
        proposer.interrupt_timeout_seconds = 3;
        let path = std::env::var("PATH").unwrap_or_default();
        let pairs = [("PATH", path.as_str()), (KEY_VARIABLE, KEY), ("HOST_SECRET", HOST_CANARY)];
        let variables = pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let fixture = Self { directory, server, config, variables, codex_runtime: None, runtime };
        std::fs::create_dir(fixture.run_dir()).unwrap();
        std::fs::write(fixture.host_file(), HOST_CANARY).unwrap();
        fixture
    }

    pub(crate) fn temp_dir(&self) -> Utf8PathBuf {
        Utf8Path::from_path(self.directory.path()).unwrap().canonicalize_utf8().unwrap()
    }

    pub(crate) fn run_dir(&self) -> Utf8PathBuf {
        self.temp_dir().join("run")
    }

    /// Returns the path of a file next to the run directory.
    pub(crate) fn host_file(&self) -> Utf8PathBuf {
        self.temp_dir().join("host.txt")
    }

    pub(crate) fn proposer(&self) -> CodexProposer {
        self.proposer_in(&self.run_dir())
    }

    pub(crate) fn proposer_in(&self, run_dir: &Utf8Path) -> CodexProposer {
        let variables = self.variables.clone();
        let lookup = Arc::new(move |name: &str| variables.get(name).cloned());
        CodexProposer::new(&self.config, run_dir, lookup, self.codex_runtime.clone()).unwrap()
    }

    /// Runs one turn with a new proposer and closes it.
    pub(crate) fn turn(&self) -> Result<ProposalAnswer, Box<TurnFailure>> {
        let proposer = self.proposer();
        let result = self.runtime.block_on(async {
            let turn = async {
                proposer.prepare().await.unwrap();
                let result = proposer.propose(turn_id(1), request()).await;
                proposer.close().await;
                result
            };
            tokio::time::timeout(WAIT_TIMEOUT, turn).await.expect("the turn does not end")
        });
        self.assert_clean();
        result.map_err(Box::new)
    }

    /// Asserts that no process runs, home and lease are removed, and no file of the run contains a canary.
    pub(crate) fn assert_clean(&self) {
        self.assert_gone();
        let run_dir = self.run_dir();
        assert!(!run_dir.join(".codex_home").exists(), "the home is still there");
        assert!(!run_dir.join("proposer.lease.json").exists(), "the lease is still there");
        self.assert_no_canary();
    }

    /// Waits until all processes of this fixture have exited.
    pub(crate) fn assert_gone(&self) {
        wait_until("the end of all processes", || self.processes().is_empty());
    }

    pub(crate) fn assert_no_canary(&self) {
        let mut files = Vec::new();
        list(&self.run_dir(), &mut files);
        for path in files {
            let mut bytes = std::fs::read(&path).unwrap_or_default();
            if path.as_str().ends_with(".zst") {
                bytes = zstd::stream::decode_all(&bytes[..]).unwrap();
            }
            let text = String::from_utf8_lossy(&bytes);
            for canary in [KEY, HOST_CANARY] {
                assert!(!text.contains(canary), "{path} holds {canary}");
            }
        }
        for record in captured_records().iter().map(|record| format!("{record:?}")) {
            assert!(!record.contains(KEY) && !record.contains(HOST_CANARY), "{record}");
        }
    }

    /// Returns pid and command line of all processes of this fixture.
    pub(crate) fn processes(&self) -> Vec<(String, String)> {
        let temp_dir = self.temp_dir();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry.file_name().to_string_lossy().into_owned();
            if !pid.bytes().all(|byte| byte.is_ascii_digit()) || pid == std::process::id().to_string() {
                continue;
            }
            let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
            let (environ, line) = (read("environ"), read("cmdline"));
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\0', " ");
            if text(&environ).contains(temp_dir.as_str()) || text(&line).contains(temp_dir.as_str()) {
                found.push((pid, text(&line)));
            }
        }
        found
    }

    /// Returns the transcript of the first turn.
    pub(crate) fn transcript(&self) -> String {
        let path = self.run_dir().join("proposer_transcripts/turn_000001_1.jsonl.zst");
        String::from_utf8(zstd::stream::decode_all(&std::fs::read(path).unwrap()[..]).unwrap()).unwrap()
    }

    pub(crate) fn workspace(&self) -> Utf8PathBuf {
        self.run_dir().join("proposer_workspaces/turn_000001_1")
    }
}

fn list(dir: &Utf8Path, files: &mut Vec<Utf8PathBuf>) {
    for entry in dir.read_dir_utf8().into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => list(entry.path(), files),
            _ => files.push(entry.path().to_owned()),
        }
    }
}

pub(crate) fn turn_id(request: u64) -> TurnId {
    TurnId { call_id: CallId(request), attempt: 1 }
}

/// Returns a request whose answer is `Rules: r0 r3`.
pub(crate) fn request() -> ProposalRequest {
    let payload = BTreeMap::from([("notes".to_owned(), "Rules: r0".to_owned())]);
    let question = ProposerQuestion {
        operation: Operation::Mutate,
        generation: 1,
        parents: vec![NamedPayload { candidate_id: CandidateId::new("c0"), payload: payload.clone() }],
        ancestor: None,
        base: payload,
        components: vec!["notes".to_owned()],
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
        program: json!({ "mutable_fields": ["notes"] }),
        task_info: None,
        direction: Direction::Maximize,
        evidence: vec![Evidence {
            row_id: RowId::new("train:0"),
            row: json!({ "input": "x" }),
            score: Some(0.0),
            reply: Some(json!({ "reward_info": { "details": { "feedback": "missing rule: r3 in notes" } } })),
        }],
        refused: Vec::new(),
    }
}

/// Returns the proposed texts of an answer.
pub(crate) fn texts(answer: &ProposalAnswer) -> Vec<&str> {
    answer.proposals.iter().flat_map(|proposal| proposal.fields.values().map(String::as_str)).collect()
}

/// Returns a reply with these items.
pub(crate) fn items(items: Vec<Value>) -> ModelReply {
    ModelReply::Items(items)
}

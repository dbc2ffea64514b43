//! The flags of the stub container.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::latency::Latency;

/// Text of `--help`.
pub const USAGE: &str = "\
stub_container: a task container on 127.0.0.1 for tests; prints its port as one line
  --port N              0 (default) takes a free port
  --dialect WORD        taskset (default), dataset, or both (rows are then read from dataset_row only)
  --modes WORD          both (default), blocking (async is 422), async (sync is 422), at-once (async is answered at once)
  --refuse-async        advertises async all the same and answers it with 422
  --bill FILE           appends one line per execution before it begins: rollout_id, row, candidate id, tab-separated
  --memory WORD         remember (default): a known rollout_id is answered from memory, running and done ones can be
                        read by id, and an id with another row or candidate is 409; strict: so is an id with any other
                        body; ended: only done rollouts are known; forget: it runs again, and sync rollouts cannot be
                        read by id. The first two are advertised as remembers_rollouts
  --latency-ms N        time of one rollout
  --slow-every N        one of N rollouts takes longer (0: none)
  --slow-factor N       by this factor (20)
  --spread N            standard deviation of the logarithm of the time, in percent; the mean stays
  --reply-bytes N       size of the trace in a reply (600)
  --train N --heldout N number of rows (6 and 3)
  --rules N             number of hidden rules; row i needs rule i modulo N (as many as train rows, times --needs)
  --needs N             number of rules that a row needs (1): rule i, and more at a distance of the train rows; the
                        reward is the share of them that the text has
  --modules N           1 (default) or 2 mutable fields; rule i counts only in field i modulo N
  --fail-every N        every Nth execution ends with 500
  --overload-every N    every Nth rollout request is refused with 429 and Retry-After: 0
  --reset-every N       every Nth execution runs, and the connection is closed instead of answered
  --wrong-row           runs the first train row, whichever is asked for
  --nan                 the reward is null, which is what NaN becomes in JSON
  --reward TEXT         the reward is this text, whatever the rollout gave
  --bad-model NAME      rollouts of this policy model solve no row
  --policy-echo NAME    replies say that this model ran, whatever the policy asks for
  --extra FILE          replies have the bytes of this file as the value of one more field
  --usage TEXT          the usage is this text
  --endless             the reply to a rollout never ends
  --hang                rollouts never end
  --gate FILE           rollouts wait until this file is there
  --free N              --endless and --gate spare the first N rollouts (0)
  --watch-stdin         ends when standard input is closed
";

/// How rows are identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Taskset,
    Dataset,
    Both,
}

/// The supported submission modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modes {
    Blocking,
    Async,
    Both,
    /// Advertises only blocking; answers async requests at once with the complete record.
    AtOnce,
}

/// How a repeated rollout id is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Remember,
    Strict,
    /// Only rollouts that have ended are known.
    Ended,
    Forget,
}

/// Deliberate faults. A count of 0 disables a fault.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Faults {
    pub fail_every: u64,
    pub overload_every: u64,
    pub reset_every: u64,
    pub wrong_row: bool,
    pub reward: Option<String>,
    pub bad_model: Option<String>,
    pub policy_echo: Option<String>,
    pub extra: Option<PathBuf>,
    pub usage: Option<String>,
    pub endless: bool,
    pub hang: bool,
    pub gate: Option<PathBuf>,
    pub free: u64,
    pub refuse_async: bool,
}

/// All flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    pub port: u16,
    pub dialect: Dialect,
    pub modes: Modes,
    pub memory: Memory,
    pub bill: Option<PathBuf>,
    pub latency: Latency,
    pub reply_bytes: usize,
    pub train: u32,
    pub heldout: u32,
    pub rules: Option<u32>,
    pub needs: u32,
    pub modules: usize,
    pub faults: Faults,
    pub watch_stdin: bool,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            port: 0,
            dialect: Dialect::Taskset,
            modes: Modes::Both,
            memory: Memory::Remember,
            bill: None,
            latency: Latency { slow_factor: 20, ..Latency::default() },
            reply_bytes: 600,
            train: 6,
            heldout: 3,
            rules: None,
            needs: 1,
            modules: 1,
            faults: Faults::default(),
            watch_stdin: false,
        }
    }
}

impl Flags {
    /// Parses the command line without the program's name.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut flags = Self::default();
        let mut rest = arguments.into_iter();
        while let Some(name) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{name} needs a value"));
            match name.as_str() {
                "--port" => flags.port = number(&name, &value()?)?,
                "--dialect" => {
                    let words = [("taskset", Dialect::Taskset), ("dataset", Dialect::Dataset), ("both", Dialect::Both)];
                    flags.dialect = word(&name, &value()?, &words)?;
                }
                "--modes" => {
                    let words = [
                        ("blocking", Modes::Blocking),
                        ("async", Modes::Async),
                        ("both", Modes::Both),
                        ("at-once", Modes::AtOnce),
                    ];
                    flags.modes = word(&name, &value()?, &words)?;
                }
                "--memory" => {
                    let words = [
                        ("remember", Memory::Remember),
                        ("strict", Memory::Strict),
                        ("ended", Memory::Ended),
                        ("forget", Memory::Forget),
                    ];
                    flags.memory = word(&name, &value()?, &words)?;
                }
                "--bill" => flags.bill = Some(value()?.into()),
                "--latency-ms" => flags.latency.usual = Duration::from_millis(number(&name, &value()?)?),
                "--slow-every" => flags.latency.slow_every = number(&name, &value()?)?,
                "--slow-factor" => flags.latency.slow_factor = number(&name, &value()?)?,
                "--spread" => flags.latency.spread_percent = number(&name, &value()?)?,
                "--reply-bytes" => flags.reply_bytes = number(&name, &value()?)?,
                "--train" => flags.train = number(&name, &value()?)?,
                "--heldout" => flags.heldout = number(&name, &value()?)?,
                "--rules" => flags.rules = Some(number(&name, &value()?)?),
                "--needs" => flags.needs = number(&name, &value()?)?,
                "--modules" => flags.modules = word(&name, &value()?, &[("1", 1), ("2", 2)])?,
                "--fail-every" => flags.faults.fail_every = number(&name, &value()?)?,
                "--overload-every" => flags.faults.overload_every = number(&name, &value()?)?,
                "--reset-every" => flags.faults.reset_every = number(&name, &value()?)?,
                "--reward" => flags.faults.reward = Some(value()?),
                "--nan" => flags.faults.reward = Some("null".into()),
                "--bad-model" => flags.faults.bad_model = Some(value()?),
                "--policy-echo" => flags.faults.policy_echo = Some(value()?),
                "--extra" => flags.faults.extra = Some(value()?.into()),
                "--usage" => flags.faults.usage = Some(value()?),
                "--endless" => flags.faults.endless = true,
                "--wrong-row" => flags.faults.wrong_row = true,
                "--hang" => flags.faults.hang = true,
                "--gate" => flags.faults.gate = Some(value()?.into()),
                "--free" => flags.faults.free = number(&name, &value()?)?,
                "--refuse-async" => flags.faults.refuse_async = true,
                "--watch-stdin" => flags.watch_stdin = true,
                other => return Err(format!("unknown flag {other}\n{USAGE}")),
            }
        }
        Ok(flags)
    }
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} needs a number, not {value:?}"))
}

fn word<T: Copy>(name: &str, value: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == value);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("{name} is one of {}, not {value:?}", known.join(", "))
    })
}

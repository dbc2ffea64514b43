//! A simulated world: a task with hidden rules, a proposer that learns them, latencies, failures and a clock.
//!
//! Answers are pure functions of the commands. Only the order of their arrival depends on the arrival seed.

#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use synth_gepa::{GepaEngine, State, random_stream};
use synth_optimizer_core::config::gepa::SearchMode;
use synth_optimizer_core::config::{Config, search_digest};
use synth_optimizer_core::engine::{Engine, Session};
use synth_optimizer_core::model::answer::{
    Answer, CallFailure, FailureClass, Observation, Proposal, ProposalAnswer, RolloutAnswer,
};
use synth_optimizer_core::model::budget::Dimension;
use synth_optimizer_core::model::canonical::canonical_digest;
use synth_optimizer_core::model::command::{Command, NamedPayload, ProposeCommand, RolloutCommand};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::RunStarted;
use synth_optimizer_core::model::ids::{CallId, HeldoutRow, Payload, RowId, TrainRow};
use synth_optimizer_core::model::program::{Inputs, Module, Program, Row};
use synth_optimizer_core::model::usage::{Cost, NanoUsd, Usage};

/// What a proposer turn costs.
pub(crate) const TURN_NANO_USD: u64 = 30_000_000;

/// How the task scores a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scoring {
    /// 1 if the row's rule is known, else 0.
    Binary,
    /// The known share of the three rules that the row needs.
    Graded,
    /// Two objectives: the binary one, and the number of rules, which should be small.
    TwoObjectives,
    /// Nothing can be improved.
    Saturated,
}

/// The simulated task and proposer, with their failure rates.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub config: Config,
    pub rules: u32,
    pub train: u32,
    pub heldout: u32,
    pub modules: Vec<&'static str>,
    /// The initial text of every module.
    pub initial: &'static str,
    pub scoring: Scoring,
    /// Probability that a score is flipped.
    pub noise: f64,
    /// Probability that the first attempt of a rollout fails.
    pub failure: f64,
    /// Every rollout from this call number on fails.
    pub breaks_at: Option<u64>,
    /// Probabilities that the proposer learns a rule from the evidence, and that it forgets a known rule.
    pub learns: f64,
    pub forgets: f64,
    /// Probabilities that a proposal is invalid, and that a proposer turn fails.
    pub invalid: f64,
    pub proposer_failure: f64,
    pub rollout_cost: Option<u64>,
    /// Probability that the outcome of a call is unknown after a crash, because the container forgot it.
    pub forgotten: f64,
    /// The proposer never writes the same text twice.
    pub inventive: bool,
    /// The proposer writes each rule on a line of its own, so that changes can be joined.
    pub in_lines: bool,
    /// Replace the scoring and the proposer above.
    pub score: Option<Scorer>,
    pub write: Option<fn(&ProposeCommand) -> Vec<Payload>>,
    /// Writes proposals with edits, instead of whole texts.
    pub edit: Option<fn(&ProposeCommand) -> Vec<Proposal>>,
}

impl Default for World {
    fn default() -> Self {
        let mut config = Config::default();
        config.gepa.search = SearchMode::Reference;
        config.gepa.proposals_per_generation = 2;
        config.gepa.max_generations = Some(2);
        config.gepa.minibatch_size = Some(8);
        config.policy.get_or_insert_default().model = Some("gpt-4.1-nano".to_owned());
        config.candidate.target_modules = vec!["prompt".into()];
        Self {
            config,
            rules: 12,
            train: 24,
            heldout: 10,
            modules: vec!["prompt"],
            initial: "Rules: {rows}",
            scoring: Scoring::Binary,
            noise: 0.0,
            failure: 0.0,
            breaks_at: None,
            learns: 0.7,
            forgets: 0.15,
            invalid: 0.0,
            proposer_failure: 0.0,
            rollout_cost: Some(2_000_000),
            forgotten: 0.0,
            inventive: false,
            in_lines: false,
            score: None,
            write: None,
            edit: None,
        }
    }
}

/// A function that returns a score, or a failure with its retryability.
pub(crate) type Scorer = fn(&RolloutCommand) -> Result<f64, bool>;

/// The timing of a run and its control requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub arrival_seed: u64,
    pub rollout_workers: usize,
    pub propose_workers: usize,
    /// Stop or cancel after this many answers; 0 is before the first.
    pub stop_after: Option<usize>,
    pub cancel_after: Option<usize>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { arrival_seed: 0, rollout_workers: 8, propose_workers: 2, stop_after: None, cancel_after: None }
    }
}

/// The result of a simulated run.
#[derive(Debug)]
pub(crate) struct Run {
    pub engine: GepaEngine,
    pub events: Vec<Event>,
    pub state: State,
    /// Number of rollouts that the simulated task ran.
    pub billed_rollouts: u64,
    pub simulated_millis: u64,
    /// Every executed command.
    pub commands: Vec<Command>,
    /// Number of events after each call of a session method.
    pub boundaries: Vec<usize>,
}

impl World {
    pub(crate) fn inputs(&self) -> Inputs {
        let row = |split: &str, index: u32| Row {
            id: RowId::new(&format!("{split}:{index}")),
            stratum: Some(format!("rule-{}", index % 3)),
            texts: vec![secret(split, index)],
        };
        let seed: Payload = self.modules.iter().map(|field| ((*field).to_owned(), self.initial.to_owned())).collect();
        let program = Program {
            program_id: "rule-world".into(),
            modules: self
                .modules
                .iter()
                .map(|field| Module { field: (*field).to_owned(), template_variables: vec!["{rows}".into()] })
                .collect(),
            targets: self.modules.iter().map(|field| (*field).to_owned()).collect(),
            seed,
        };
        let rows = |split: &str, count: u32| (0..count).map(|index| row(split, index)).collect();
        let pool: Vec<TrainRow> = (0..self.train).map(TrainRow).collect();
        Inputs {
            program,
            train: rows("train", self.train),
            heldout: rows("heldout", self.heldout),
            pareto_pool: pool.clone(),
            minibatch_pool: pool.clone(),
            reflection_pool: pool,
            heldout_pool: (0..self.heldout).map(HeldoutRow).collect(),
        }
    }

    pub(crate) fn run_started(&self) -> RunStarted {
        RunStarted {
            algorithm: "gepa".into(),
            config_digest: search_digest(&self.config),
            seed: self.config.run.seed,
            container_url: "http://127.0.0.1:1".into(),
        }
    }

    pub(crate) fn engine(&self) -> GepaEngine {
        self.engine_with(self.inputs())
    }

    fn engine_with(&self, inputs: Inputs) -> GepaEngine {
        let mut config = self.config.clone();
        config.candidate.target_modules = inputs.program.targets.clone();
        GepaEngine::new(&config, inputs).unwrap()
    }

    /// Runs to the end. Panics if the run is stuck: no call is outstanding and the run has not ended.
    pub(crate) fn run(&self, pace: Pace) -> Run {
        self.run_with(self.inputs(), pace)
    }

    /// Resumes from a stored log, as after a crash. Calls whose answers had not retired are sent again.
    pub(crate) fn resume(&self, stored: &[Event], pace: Pace) -> Vec<Event> {
        let engine = self.engine();
        let mut state = engine.initial_state();
        for event in stored {
            engine.evolve(&mut state, event);
        }
        let (mut session, events) = Session::resume(&engine, state).unwrap();
        let mut log = Log::default();
        log.extend(events);
        log.extend(session.observe(&Observation::Begin).unwrap());
        for command in engine.outstanding(session.state()) {
            if hashed(&format!("forgotten {:?}", command.call_id())).unit() < self.forgotten {
                let charged = session.charge_unknown_outcome(command.call_id(), "the process stopped").unwrap();
                if charged.is_empty() {
                    let failure = CallFailure::new(FailureClass::UnknownOutcome, "its outcome is unknown");
                    log.extend(session.accept_answer(command.call_id(), Answer::Failed(failure)).unwrap());
                }
                log.extend(charged);
            }
        }
        log.fresh = engine.outstanding(session.state()).iter().map(Command::call_id).collect();
        self.drive(&engine, &mut session, &mut log, &mut Lanes { pace, ..Lanes::default() });
        log.events
    }

    pub(crate) fn run_with(&self, inputs: Inputs, pace: Pace) -> Run {
        let engine = self.engine_with(inputs);
        let mut session = Session::new(&engine);
        let mut log = Log::default();
        log.extend(session.start(self.run_started()));
        if pace.stop_after == Some(0) {
            log.extend(session.observe(&Observation::StopRequested { reason: "enough".into() }).unwrap());
        }
        if pace.cancel_after == Some(0) {
            log.extend(session.cancel("enough", |_| false).unwrap());
        }
        log.extend(session.observe(&Observation::Begin).unwrap());
        let mut lanes = Lanes { pace, ..Lanes::default() };
        self.drive(&engine, &mut session, &mut log, &mut lanes);
        Run {
            state: session.state().clone(),
            events: log.events,
            boundaries: log.boundaries,
            billed_rollouts: lanes.billed,
            simulated_millis: lanes.now,
            commands: lanes.done,
            engine,
        }
    }

    fn drive(&self, engine: &GepaEngine, session: &mut Session<'_, GepaEngine>, log: &mut Log, lanes: &mut Lanes) {
        let pace = lanes.pace;
        let mut answers = 0;
        while !engine.is_terminal(session.state()) {
            if session.state().stop.is_some() || !lanes.probe_succeeded {
                drop_settled(session, log, lanes);
            }
            lanes.dispatch(log, |id| self.latency(engine, session.state(), id, pace));
            let Some((at, call_id)) = lanes.next() else { panic!("wedged after {:?}", log.events.last()) };
            let wakeup = engine.next_wakeup(session.state()).unwrap_or(u64::MAX).min(at);
            log.extend(session.observe(&Observation::Clock { elapsed_millis: wakeup }).unwrap());
            log.extend(session.observe(&Observation::Clock { elapsed_millis: at }).unwrap());
            let command = lanes.commands.remove(&call_id).unwrap();
            let answer = self.answer(&command);
            let rollout = matches!(command, Command::Rollout(_));
            let failed = |class| matches!(&answer, Answer::Failed(failure) if failure.class == class);
            lanes.billed +=
                u64::from(rollout && (matches!(answer, Answer::Rollout(_)) || failed(FailureClass::Failed)));
            lanes.done.push(command);
            lanes.probe_succeeded |= matches!(answer, Answer::Rollout(_));
            log.extend(session.accept_answer(call_id, answer).unwrap());
            answers += 1;
            if pace.stop_after == Some(answers) {
                log.extend(session.observe(&Observation::StopRequested { reason: "enough".into() }).unwrap());
                self.withdraw(session, log, lanes);
            }
            if self.config.gepa.max_time_seconds.is_some_and(|limit| at >= limit * 1000) {
                self.withdraw(session, log, lanes);
            }
            if pace.cancel_after == Some(answers) {
                log.extend(session.cancel("enough", |id| lanes.sent.contains(&id)).unwrap());
            }
        }
    }

    /// Withdraws the calls that wait for a worker.
    fn withdraw(&self, session: &mut Session<'_, GepaEngine>, log: &mut Log, lanes: &mut Lanes) {
        log.extend(session.withdraw_unsent(|id| lanes.sent.contains(&id)).unwrap());
        drop_settled(session, log, lanes);
    }

    fn latency(&self, engine: &GepaEngine, state: &State, id: CallId, pace: Pace) -> (Command, u64) {
        let command = engine.command(state, id).unwrap();
        let mut random = random_stream(pace.arrival_seed, "latency", id.0);
        let tail = 1.0 / (1.0 - 0.97 * random.unit());
        let millis = match command {
            Command::Rollout(_) => 100.0 * tail,
            Command::Propose(_) => 1500.0 * tail.min(5.0),
        };
        (command, millis as u64 + 1)
    }

    pub(crate) fn answer(&self, command: &Command) -> Answer {
        match command {
            Command::Rollout(rollout) => self.roll(rollout),
            Command::Propose(propose) => self.propose(propose),
        }
    }

    fn roll(&self, command: &RolloutCommand) -> Answer {
        let mut random = hashed(&format!("{:?}|{}|{}", command.payload, command.row_id, command.replicate));
        let failing = hashed(&format!("{:?}|{}|{}", command.payload, command.row_id, command.attempt)).unit();
        let usage = Usage {
            prompt_tokens: Some(90),
            completion_tokens: Some(10),
            total_tokens: None,
            cost: self.rollout_cost.map_or(Cost::Unknown, |nano| Cost::Known(NanoUsd(nano))),
        };
        if let Some(Ok(reward)) = self.score.map(|score| score(command)) {
            let objectives = BTreeMap::new();
            return Answer::Rollout(RolloutAnswer { reward, objectives, usage, cached: false, trace_digest: None });
        }
        if let Some(Err(retryable)) = self.score.map(|score| score(command)) {
            let (class, message) = (FailureClass::Failed, "no".to_owned());
            return Answer::Failed(CallFailure { class, message, retryable, usage, cached: false, models: None });
        }
        let broken = self.breaks_at.is_some_and(|at| command.call_id.0 >= at);
        if broken || failing < self.failure {
            // A random failure has a random class and is retryable. A broken task fails permanently.
            let kinds = [FailureClass::Failed, FailureClass::NotSent, FailureClass::UnknownOutcome];
            let class = if broken { FailureClass::Failed } else { kinds[random.index(3)] };
            return Answer::Failed(CallFailure {
                class,
                message: "the task broke".into(),
                retryable: !broken,
                usage,
                cached: false,
                models: None,
            });
        }
        let known = known_rules(&command.payload);
        let number: u32 = command.row_id.as_str().split(':').next_back().unwrap().parse().unwrap();
        let needs = |offset: u32| known.contains(&((number + offset * 5) % self.rules));
        let flip = |value: f64, random: &mut synth_gepa::RandomStream| {
            if random.unit() < self.noise { 1.0 - value } else { value }
        };
        let binary = flip(f64::from(u8::from(needs(0))), &mut random);
        let (reward, objectives) = match self.scoring {
            Scoring::Binary => (binary, BTreeMap::new()),
            Scoring::Graded => ((0..3).filter(|offset| needs(*offset)).count() as f64 / 3.0, BTreeMap::new()),
            Scoring::Saturated => (1.0, BTreeMap::new()),
            Scoring::TwoObjectives => {
                let length = known.len() as f64 / f64::from(self.rules);
                (binary, BTreeMap::from([("quality".into(), binary), ("length".into(), length)]))
            }
        };
        Answer::Rollout(RolloutAnswer { reward, objectives, usage, cached: false, trace_digest: None })
    }

    /// Learns rules of rows with a low score, and sometimes forgets one.
    fn propose(&self, command: &ProposeCommand) -> Answer {
        let usage = Usage { cost: Cost::Known(NanoUsd(TURN_NANO_USD)), ..Usage::default() };
        let base = format!(
            "{:?}|{}|{}|{:?}",
            command.question.base,
            command.question.generation,
            command.attempt,
            command.question.problems.len()
        );
        let mut random = hashed(&base);
        if random.unit() < self.proposer_failure {
            let message = "the proposer broke".to_owned();
            return Answer::Failed(CallFailure {
                class: FailureClass::Failed,
                message,
                retryable: true,
                usage,
                cached: false,
                models: None,
            });
        }
        let whole = |fields| Proposal { fields, ..Proposal::default() };
        let written = self.write.map(|write| write(command).into_iter().map(whole).collect());
        if let Some(proposals) = written.or_else(|| self.edit.map(|edit| edit(command))) {
            return Answer::Proposal(ProposalAnswer {
                proposals,
                problems: Vec::new(),
                usage,
                cached: false,
                requested_model: "toy".into(),
                effective_model: "toy".into(),
            });
        }
        let proposals = (0..command.question.proposal_count)
            .map(|index| {
                let nonce =
                    if self.inventive { format!(" #{}-{index}", command.question.generation) } else { String::new() };
                let mut fields = Payload::new();
                for field in &command.question.components {
                    let place = self.modules.iter().position(|module| module == field).unwrap() as u32;
                    let share = self.modules.len() as u32;
                    let mut rules: BTreeSet<u32> = rules_in(&command.question.base[field]).collect();
                    for NamedPayload { payload, .. } in &command.question.parents {
                        rules.extend(rules_in(&payload[field]));
                    }
                    for row in command.evidence.iter().filter(|row| row.score.is_some_and(|score| score < 1.0)) {
                        let number: u32 = row.row_id.as_str().split(':').next_back().unwrap().parse().unwrap();
                        // A module can only learn its own rules.
                        if number % self.rules % share == place && random.unit() < self.learns {
                            rules.insert(number % self.rules);
                        }
                    }
                    if random.unit() < self.forgets {
                        let victim = rules.iter().nth(random.index(rules.len())).copied();
                        victim.map(|rule| rules.remove(&rule));
                    }
                    let between = if self.in_lines { "\n" } else { " " };
                    let words: Vec<String> = rules.iter().map(|rule| format!("r{rule}")).collect();
                    fields.insert(field.clone(), format!("Rules: {{rows}}{between}{}{nonce}", words.join(between)));
                }
                if random.unit() < self.invalid {
                    fields = Payload::from([("unheard_of".into(), "x".into())]);
                }
                Proposal { fields, rationale: "learned from the evidence".into(), ..Proposal::default() }
            })
            .collect();
        Answer::Proposal(ProposalAnswer {
            proposals,
            problems: Vec::new(),
            usage,
            cached: false,
            requested_model: "toy".into(),
            effective_model: "toy".into(),
        })
    }
}

impl Run {
    pub(crate) fn lines(&self) -> String {
        use synth_optimizer_core::model::event::message;
        self.events.iter().fold(String::new(), |mut out, event| {
            out.push_str(&format!("{:<36} {}\n", event.type_name(), message(event)));
            out
        })
    }

    pub(crate) fn count(&self, wire: &str) -> usize {
        self.events.iter().filter(|event| event.type_name() == wire).count()
    }

    pub(crate) fn last(&self) -> &Event {
        self.events.last().unwrap()
    }

    pub(crate) fn spent(&self, dimension: Dimension) -> u64 {
        self.state.budget.spent(dimension)
    }
}

/// The log of a run, with the calls that are not dispatched yet.
#[derive(Default)]
struct Log {
    events: Vec<Event>,
    fresh: Vec<CallId>,
    boundaries: Vec<usize>,
}

impl Log {
    fn extend(&mut self, events: Vec<Event>) {
        for event in &events {
            match event {
                Event::RolloutsRequested(batch) => {
                    let first = batch.first_call_id.0;
                    self.fresh.extend((first..first + batch.row_ids.len() as u64).map(CallId));
                }
                Event::ProposerStarted(turn) => self.fresh.push(turn.call_id),
                _ => {}
            }
        }
        self.events.extend(events);
        self.boundaries.push(self.events.len());
    }
}

/// Removes the calls that were withdrawn before a worker took them.
fn drop_settled(session: &Session<'_, GepaEngine>, log: &mut Log, lanes: &mut Lanes) {
    let open: BTreeSet<CallId> = session.outstanding().iter().map(Command::call_id).collect();
    log.fresh.retain(|id| open.contains(id));
    for waiting in &mut lanes.waiting {
        waiting.retain(|(id, _)| open.contains(id));
    }
}

/// Busy and idle workers.
#[derive(Default)]
struct Lanes {
    pace: Pace,
    /// Whether a rollout has succeeded. Until then, one rollout runs at a time, as in a real run.
    probe_succeeded: bool,
    now: u64,
    billed: u64,
    waiting: [std::collections::VecDeque<(CallId, u64)>; 2],
    running: [usize; 2],
    done_at: BTreeSet<(u64, CallId)>,
    commands: BTreeMap<CallId, Command>,
    sent: BTreeSet<CallId>,
    done: Vec<Command>,
}

impl Lanes {
    fn dispatch(&mut self, log: &mut Log, mut latency: impl FnMut(CallId) -> (Command, u64)) {
        for id in log.fresh.drain(..) {
            let (command, millis) = latency(id);
            self.waiting[lane(&command)].push_back((id, millis));
            self.commands.insert(id, command);
        }
        let rollouts = if self.probe_succeeded { self.pace.rollout_workers } else { 1 };
        let most = [rollouts, self.pace.propose_workers];
        for (lane, most) in most.into_iter().enumerate() {
            while self.running[lane] < most {
                let Some((id, millis)) = self.waiting[lane].pop_front() else { break };
                self.done_at.insert((self.now + millis, id));
                self.running[lane] += 1;
                self.sent.insert(id);
            }
        }
    }

    fn next(&mut self) -> Option<(u64, CallId)> {
        let (at, id) = self.done_at.pop_first()?;
        self.now = at;
        self.running[lane(&self.commands[&id])] -= 1;
        Some((at, id))
    }
}

/// Returns a text that occurs in only one row.
fn secret(split: &str, index: u32) -> String {
    format!("{split}-{index}-").repeat(6)
}

fn lane(command: &Command) -> usize {
    match command {
        Command::Rollout(_) => 0,
        Command::Propose(_) => 1,
    }
}

fn hashed(text: &str) -> synth_gepa::RandomStream {
    random_stream(7, &canonical_digest(text), 0)
}

fn known_rules(payload: &Payload) -> BTreeSet<u32> {
    payload.values().flat_map(|text| rules_in(text)).collect()
}

fn rules_in(text: &str) -> impl Iterator<Item = u32> + '_ {
    text.split_whitespace().filter_map(|word| word.strip_prefix('r')?.parse().ok())
}

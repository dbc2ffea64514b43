//! The rules that can end a run: each with its limit, the value so far, and whether it ended the search.

use std::collections::HashSet;

use rusqlite::Connection;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::projector::{read_candidate, totals};
use super::super::query::{MILESTONES, first, list};
use super::super::reader::{Reader, run_row};
use super::read_error::ReadError;
use super::scores::objectives;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::OUTCOME_REWARD;
use synth_optimizer_core::model::budget::Dimension;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::{Direction, StopKind, StoppedBy};
use synth_optimizer_core::model::run_totals::{RunCounts, RunTotals};

/// A rule that can end a run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct StopRule {
    /// The setting of its limit, such as `gepa.max_cost_usd`. A rule without a setting has the name of its kind.
    pub name: String,
    /// The kind of rule, as `stopped_by` names it.
    pub kind: StopKind,
    /// The limit, in the unit of the setting. Null if the rule has none.
    pub limit: Option<f64>,
    /// The value so far. Null if it is unknown.
    pub value: Option<f64>,
    /// How much of the limit is used, from 0 to 1. Null for scores, and if the value is unknown.
    pub share: Option<f64>,
    /// Whether this rule ended the search.
    pub has_stopped: bool,
}

impl Reader {
    /// Returns every rule that can end the run: the limits of its config, then the rules about scores and failures. A limit that
    /// is not set has no rule. The rule that ended the search is always there.
    pub fn stop_rules(&self) -> Result<Vec<StopRule>, ReadError> {
        self.in_snapshot(|db| {
            let (settings, totals) = (Settings::of(run_row(db)?.config), totals(db)?);
            let streaks = Streaks::read(db)?;
            let mut rules = rollout_rules(&settings, &totals.counts);
            rules.extend(usage_rules(&settings, &totals));
            rules.extend(search_rules(db, &settings, &totals, &streaks)?);
            rules.extend(failure_rules(db, &settings, &streaks)?);
            let stopped = match &totals.stopped_by {
                Some(stopped_by) => Some(stopped_rule(db, &mut rules, stopped_by)?),
                None => None,
            };
            let rule = |(place, rule): (usize, Rule)| rule.shown(stopped == Some(place));
            Ok(rules.into_iter().enumerate().map(rule).collect())
        })
    }
}

impl Reader {
    /// Returns the limits of rollouts, cost, tokens, time and generations that are set. Reads no events.
    pub fn limits(&self) -> Result<Vec<StopRule>, ReadError> {
        self.in_snapshot(|db| {
            let (settings, totals) = (Settings::of(run_row(db)?.config), totals(db)?);
            let mut rules = rollout_rules(&settings, &totals.counts);
            rules.extend(usage_rules(&settings, &totals));
            rules.extend(generation_rule(&settings, totals.counts.generations as f64));
            Ok(rules.into_iter().map(|rule| rule.shown(false)).collect())
        })
    }
}

/// The settings of a run. A setting that its config does not name has its default.
struct Settings {
    config: Value,
    defaults: Value,
}

impl Settings {
    fn of(config: Value) -> Self {
        Self { config, defaults: json!(Config::default()) }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        let path = format!("/{}", name.replace('.', "/"));
        let is_set = |value: &&Value| !value.is_null();
        self.config.pointer(&path).filter(is_set).or_else(|| self.defaults.pointer(&path).filter(is_set))
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    fn is_on(&self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or(false)
    }
}

/// A rule before it is known which one ended the search.
struct Rule {
    name: &'static str,
    kind: StopKind,
    /// The resource that it limits.
    dimension: Option<Dimension>,
    limit: Option<f64>,
    value: Option<f64>,
    share: Option<f64>,
}

impl Rule {
    /// Returns the rule of a limit.
    fn limit(name: &'static str, kind: StopKind, limit: f64, value: Option<f64>) -> Self {
        let share = value.filter(|_| limit > 0.0).map(|value| (value / limit).clamp(0.0, 1.0));
        Self { name, kind, dimension: None, limit: Some(limit), value, share }
    }

    /// Returns the rule of a score, of which no share is used.
    fn score(name: &'static str, kind: StopKind, limit: f64, value: Option<f64>) -> Self {
        Self { share: None, ..Self::limit(name, kind, limit, value) }
    }

    fn of(self, dimension: Dimension) -> Self {
        Self { dimension: Some(dimension), ..self }
    }

    fn shown(self, has_stopped: bool) -> StopRule {
        let Self { name, kind, limit, value, share, .. } = self;
        StopRule { name: name.to_owned(), kind, limit, value, share, has_stopped }
    }
}

/// Returns the limits of rollouts. Limits of train and held-out rollouts replace the total, which replaces the one that is unset.
fn rollout_rules(settings: &Settings, counts: &RunCounts) -> Vec<Rule> {
    let rule = |name, limit: Option<f64>, value: u64, dimension| {
        limit.map(|limit| Rule::limit(name, StopKind::MaxRollouts, limit, Some(value as f64)).of(dimension))
    };
    let total = settings.number("gepa.max_total_rollouts");
    let (train, heldout) = (settings.number("gepa.max_train_rollouts"), settings.number("gepa.max_heldout_rollouts"));
    let rules = if train.is_none() && heldout.is_none() {
        let used = counts.train_rollouts + counts.heldout_rollouts;
        [rule("gepa.max_total_rollouts", total, used, Dimension::TotalRollouts), None]
    } else {
        [
            rule("gepa.max_train_rollouts", train.or(total), counts.train_rollouts, Dimension::TrainRollouts),
            rule("gepa.max_heldout_rollouts", heldout.or(total), counts.heldout_rollouts, Dimension::HeldoutRollouts),
        ]
    };
    rules.into_iter().flatten().collect()
}

/// Returns the limits of cost, tokens and time.
fn usage_rules(settings: &Settings, totals: &RunTotals) -> Vec<Rule> {
    let spent = &totals.counts.limited;
    let tokens = |tokens: u64| Some(tokens as f64);
    let elapsed = totals.clock.map(|(elapsed, _)| elapsed as f64 / 1e3);
    let cost = spent.cost().known().map(|cost| cost.usd());
    let limits = [
        ("gepa.max_cost_usd", StopKind::MaxCost, Dimension::Cost, cost),
        ("gepa.max_prompt_tokens", StopKind::MaxTokens, Dimension::PromptTokens, tokens(spent.prompt_tokens)),
        (
            "gepa.max_completion_tokens",
            StopKind::MaxTokens,
            Dimension::CompletionTokens,
            tokens(spent.completion_tokens),
        ),
        ("gepa.max_total_tokens", StopKind::MaxTokens, Dimension::TotalTokens, tokens(spent.total_tokens)),
        ("gepa.max_time_seconds", StopKind::MaxTime, Dimension::WallMillis, elapsed),
    ];
    let rule = |(name, kind, dimension, value)| {
        // A cost limit of 0 is no limit.
        let limit = settings.number(name).filter(|limit| *limit > 0.0)?;
        Some(Rule::limit(name, kind, limit, value).of(dimension))
    };
    limits.into_iter().filter_map(rule).collect()
}

/// Returns the rules about generations and scores.
fn search_rules(
    db: &Connection,
    settings: &Settings,
    totals: &RunTotals,
    streaks: &Streaks,
) -> Result<Vec<Rule>, OptimizerError> {
    let best = match totals.best_candidate_id() {
        Some(best) => read_candidate(db, best.as_str())?.and_then(|best| best.train_score),
        None => None,
    };
    let best = best.map(|score| score.mean);
    let idle = "gepa.no_improvement_generations";
    let rules = [
        generation_rule(settings, streaks.generations.into()),
        settings
            .number(idle)
            .map(|limit| Rule::limit(idle, StopKind::NoImprovement, limit, Some(streaks.without_improvement.into()))),
        settings
            .number("gepa.score_threshold_value")
            .map(|limit| Rule::score("gepa.score_threshold_value", StopKind::ScoreThreshold, limit, best)),
        perfect_score(db, settings)?
            .map(|limit| Rule::score("gepa.perfect_score", StopKind::PerfectScore, limit, best)),
    ];
    Ok(rules.into_iter().flatten().collect())
}

fn generation_rule(settings: &Settings, generations: f64) -> Option<Rule> {
    let name = "gepa.max_generations";
    settings.number(name).map(|limit| Rule::limit(name, StopKind::MaxGenerations, limit, Some(generations)))
}

/// Returns the score that cannot be improved, if it is known. Unless it is set, it is 1 if the reward is the only objective and
/// none exceeded 1.
fn perfect_score(db: &Connection, settings: &Settings) -> Result<Option<f64>, OptimizerError> {
    if !settings.is_on("gepa.skip_perfect_score") {
        return Ok(None);
    }
    if let Some(score) = settings.number("gepa.perfect_score") {
        return Ok(Some(score));
    }
    let declared = objectives(db)?.map(|set| set.objectives).unwrap_or_default();
    let [only] = declared.as_slice() else { return Ok(None) };
    if only.name != OUTCOME_REWARD || only.direction != Direction::Maximize {
        return Ok(None);
    }
    let sql = "SELECT 1 FROM rollouts NOT INDEXED WHERE reward > 1.0 LIMIT 1";
    Ok(first(db, "read the rewards", sql, [], |_| Ok(()))?.is_none().then_some(1.0))
}

/// Returns the rules about failures.
fn failure_rules(db: &Connection, settings: &Settings, streaks: &Streaks) -> Result<Vec<Rule>, OptimizerError> {
    let (tolerated, turns) = ("gepa.rollout_failure_rate_tolerance", "proposer.max_consecutive_invalid");
    let tolerance = settings.number(tolerated);
    let mut rules = Vec::new();
    if let Some(limit) = settings.number(turns) {
        let value = Some(streaks.without_candidate.into());
        rules.push(Rule::limit(turns, StopKind::ProposerExhausted, limit, value));
    }
    if let (Some(tolerance), true) = (tolerance, settings.is_on("gepa.circuit_breaker.enabled")) {
        rules.extend(circuit_breaker(db, settings, tolerance)?);
    }
    rules.extend(
        tolerance.map(|limit| Rule::limit(tolerated, StopKind::SeedFailed, limit, streaks.failed_initial_share)),
    );
    Ok(rules)
}

/// Returns the rule about the last rows with an outcome. It needs a number of failures, and a share of failures above the tolerance.
fn circuit_breaker(db: &Connection, settings: &Settings, tolerance: f64) -> Result<Option<Rule>, OptimizerError> {
    let name = "gepa.circuit_breaker.min_failures";
    let Some((limit, window)) = settings.number(name).zip(settings.number("gepa.circuit_breaker.window")) else {
        return Ok(None);
    };
    let sql = "SELECT count(*), coalesce(sum(type = 'rollout.failed'), 0) FROM (
                 SELECT type FROM events NOT INDEXED WHERE type = 'rollout.finished' OR (type = 'rollout.failed'
                   AND NOT coalesce(fields ->> 'retried', 0) AND fields ->> 'class' NOT IN ('abandoned', 'withdrawn'))
                 ORDER BY sequence DESC LIMIT ?1)";
    let found = first(db, "read the last rollouts", sql, [window as u64], |row| row.try_into())?;
    let (rows, failures): (u32, u32) = found.unwrap_or_default();
    let (rows, failures) = (f64::from(rows), f64::from(failures));
    let rule = Rule::limit(name, StopKind::CircuitBreaker, limit, Some(failures));
    let of_tolerance = if tolerance > 0.0 && rows > 0.0 { failures / rows / tolerance } else { 1.0 };
    Ok(Some(Rule { share: rule.share.map(|share| share.min(of_tolerance)), ..rule }))
}

/// Returns the place of the rule that ended the search. Adds it if it is none of the rules with a setting.
fn stopped_rule(db: &Connection, rules: &mut Vec<Rule>, stopped_by: &StoppedBy) -> Result<usize, OptimizerError> {
    let of_kind = |rules: &[Rule], limit: Option<f64>, refused: Option<Dimension>| {
        rules.iter().position(|rule| {
            rule.kind == stopped_by.kind
                && (limit.is_none() || rule.limit == limit)
                && (refused.is_none() || rule.dimension == refused)
        })
    };
    // Several limits can have the same kind. The refused resource tells which one it was, then the limit.
    let found = of_kind(rules, stopped_by.limit, refused_dimension(db)?)
        .or_else(|| of_kind(rules, stopped_by.limit, None))
        .or_else(|| of_kind(rules, None, None));
    Ok(found.unwrap_or_else(|| {
        let StoppedBy { kind, limit, value, .. } = *stopped_by;
        rules.push(Rule { name: kind.as_str(), kind, dimension: None, limit, value, share: None });
        rules.len() - 1
    }))
}

/// Returns the resource that the last refusal of the search named.
fn refused_dimension(db: &Connection) -> Result<Option<Dimension>, OptimizerError> {
    let sql = format!(
        "SELECT fields ->> 'dimension' FROM {MILESTONES} AND type = 'budget.refused'
           AND sequence < (SELECT max(sequence) FROM {MILESTONES} AND type = 'gepa.stop') ORDER BY sequence DESC LIMIT 1"
    );
    let found: Option<String> = first(db, "read the refusals", &sql, [], |row| row.get(0))?;
    Ok(found.and_then(|word| Dimension::parse(&word)))
}

/// What the stop rules count, as the search counts it.
#[derive(Debug, Default)]
struct Streaks {
    /// Generations with proposals.
    generations: u32,
    /// Completed generations since the best score improved.
    without_improvement: u32,
    /// Proposer turns in a row without a valid and new proposal. Of the turns that were open together, one counts.
    without_candidate: u32,
    /// Share of the rows of the initial candidate that failed.
    failed_initial_share: Option<f64>,
    has_improved: bool,
    /// Open generations of which a turn failed or a proposal was refused.
    fruitless: HashSet<u32>,
    next_generation: u32,
    turns_counted_from: u32,
}

/// An event with its generation, and a number that the stop rules use.
type CountedEvent = (String, Option<u32>, Option<f64>);

impl Streaks {
    fn read(db: &Connection) -> Result<Self, OptimizerError> {
        let sql = format!(
            "SELECT type, fields ->> 'generation', CASE type
               WHEN 'candidate.accepted' THEN fields ->> '$.comparison.primary_delta'
               WHEN 'generation.started' THEN fields ->> 'operation' = 'mutate'
               WHEN 'generation.completed' THEN fields ->> 'registered'
               WHEN 'candidate.evaluated' THEN CAST(fields ->> 'failed' AS REAL) / nullif(fields ->> 'rows', 0) END
             FROM {MILESTONES} AND type IN ('candidate.accepted', 'generation.started', 'generation.completed',
               'candidate.evaluated', 'proposal.rejected', 'proposer.failed', 'candidate.duplicate_skipped')
             ORDER BY sequence"
        );
        let found: Vec<CountedEvent> = list(db, "read the log", &sql, [], |row| row.try_into())?;
        let mut streaks = Self::default();
        found.into_iter().for_each(|event| streaks.apply(event));
        Ok(streaks)
    }

    fn apply(&mut self, (wire, generation, number): CountedEvent) {
        let generation = generation.unwrap_or_default();
        match wire.as_str() {
            "candidate.evaluated" => self.failed_initial_share = number,
            "candidate.accepted" => self.has_improved |= number.is_some_and(|delta| delta > 0.0),
            "generation.started" => {
                self.generations += u32::from(number == Some(1.0));
                self.next_generation = generation + 1;
            }
            "generation.completed" => self.complete(generation, number.is_some_and(|registered| registered > 0.0)),
            _ => _ = self.fruitless.insert(generation),
        }
    }

    fn complete(&mut self, generation: u32, has_candidate: bool) {
        let was_fruitless = self.fruitless.remove(&generation);
        if has_candidate {
            self.without_candidate = 0;
        } else if was_fruitless && generation >= self.turns_counted_from {
            self.turns_counted_from = self.next_generation;
            self.without_candidate += 1;
        }
        self.without_improvement = if self.has_improved { 0 } else { self.without_improvement + 1 };
        self.has_improved = false;
    }
}

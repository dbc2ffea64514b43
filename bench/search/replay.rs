//! Replays the choice among finished prompts on scores that language models had with them.
//!
//! The scores are numbers of right answers in blocks of rows; all prompts of a run met the same rows. A draw takes some prompts of
//! a run. A policy sees half of the blocks and chooses one prompt; the other half says how good the choice is.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use synth_gepa::{Differences, PooledVariance, Prior, probability_of_gain, random_stream};
use synth_optimizer_core::config::gepa::Sprint;

use crate::Failure;
use crate::race::standing;

/// Rows of a block, and blocks of a prompt.
const BLOCK_ROWS: usize = 30;
const BLOCKS: usize = 10;
/// Blocks that a policy sees.
const SEEN: usize = 5;
/// Prompts of a draw, and draws of a run.
const PROMPTS: usize = 12;
const DRAWS: u64 = 20;
/// The probabilities below which a race drops a candidate.
const DROPS: [f64; 4] = [0.05, 0.1, 0.2, 0.3];
/// Two finished prompts are at least one change each away from what they have in common.
const RACE_STEPS: u32 = 2;

/// What counts as a pair when two prompts are compared. The table does not say which rows of a block were right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pairs {
    /// The right answers are dealt out to the rows of a block at random for each prompt, as if the answers of two prompts to a
    /// row had nothing in common.
    Rows,
    /// The share of right answers in a block.
    Blocks,
}

impl Pairs {
    /// Returns the variance of a pair that is assumed at first.
    fn variance(self) -> PooledVariance {
        match self {
            Self::Rows => PooledVariance::default(),
            Self::Blocks => PooledVariance::of_means(BLOCK_ROWS as u32),
        }
    }
}

/// Numbers of right answers of one prompt, by block.
type Counts = [u32; BLOCKS];

/// Replays every run of a table and returns one line for each: the mean gain and the mean rollouts of every policy.
pub(crate) fn replay(table: &str) -> Result<Vec<Value>, Failure> {
    let runs = read(table)?;
    let large = runs.iter().filter(|(_, prompts)| prompts.len() >= PROMPTS);
    let line = |(name, prompts): (&String, &Vec<Counts>)| {
        let (dealt, paired) = variances(prompts);
        json!({"run": name, "policies": replay_run(name, prompts), "dealt": dealt, "paired": paired})
    };
    Ok(large.map(line).collect())
}

/// Reads the prompts of every run that were measured on all blocks.
fn read(table: &str) -> Result<BTreeMap<String, Vec<Counts>>, Failure> {
    let mut lines = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().ok_or("the table is empty")?;
    let column = |name: &str| header.iter().position(|known| *known == name).ok_or(format!("no column {name}"));
    let run = column("run")?;
    let blocks = (0..BLOCKS).map(|block| column(&format!("block{block}"))).collect::<Result<Vec<usize>, String>>()?;
    let mut runs = BTreeMap::<String, Vec<Counts>>::new();
    for line in lines {
        let count = |place: &usize| line.get(*place)?.parse::<u32>().ok().filter(|count| *count <= BLOCK_ROWS as u32);
        let counts: Option<Vec<u32>> = blocks.iter().map(count).collect();
        if let (Some(name), Some(Ok(counts))) = (line.get(run), counts.map(Counts::try_from)) {
            runs.entry((*name).to_owned()).or_default().push(counts);
        }
    }
    Ok(runs)
}

/// Returns the mean variance of the difference of two prompts on a row: if right answers are dealt out to rows, and as the
/// differences vary from block to block.
fn variances(prompts: &[Counts]) -> (f64, f64) {
    let share = |count: u32| f64::from(count) / BLOCK_ROWS as f64;
    let mean = |counts: &Counts| counts.iter().map(|count| share(*count)).sum::<f64>() / BLOCKS as f64;
    let (mut dealt, mut paired, mut pairs) = (0.0, 0.0, 0.0);
    for (place, one) in prompts.iter().enumerate() {
        for other in &prompts[place + 1..] {
            let differences: Vec<f64> = one.iter().zip(other).map(|(own, other)| share(*own) - share(*other)).collect();
            let variance = Differences::of(&differences).and_then(|found| found.variance()).unwrap_or_default();
            dealt += [one, other].map(|counts| mean(counts) * (1.0 - mean(counts))).iter().sum::<f64>();
            paired += variance * BLOCK_ROWS as f64;
            pairs += 1.0;
        }
    }
    (dealt / pairs, paired / pairs)
}

fn replay_run(name: &str, prompts: &[Counts]) -> Value {
    let mut sums = BTreeMap::<String, [f64; 3]>::new();
    for draw in 0..DRAWS {
        let drawn = Draw::new(name, prompts, draw);
        for (policy, chosen) in drawn.policies() {
            let (gain, bias) = drawn.gain(chosen.prompt, chosen.blocks);
            let sum = sums.entry(policy).or_default();
            for (sum, value) in sum.iter_mut().zip([gain, chosen.rollouts as f64, bias]) {
                *sum += value / DRAWS as f64;
            }
        }
    }
    sums.into_iter()
        .map(|(policy, [gain, rollouts, bias])| (policy, json!({"gain": gain, "rollouts": rollouts, "bias": bias})))
        .collect()
}

/// Some prompts of a run. `scores` has the rows of the blocks that a policy sees.
struct Draw {
    scores: Vec<Vec<f64>>,
    truth: Vec<f64>,
}

/// What a policy chose, the number of blocks of its choice that it saw, and what it paid.
struct Chosen {
    prompt: usize,
    blocks: usize,
    rollouts: usize,
}

impl Draw {
    /// Draws prompts and blocks, and deals the right answers of a block out to its rows.
    fn new(run: &str, prompts: &[Counts], draw: u64) -> Self {
        let mut random = random_stream(0, &format!("replay {run}"), draw);
        let drawn = random.sample(prompts, PROMPTS);
        let mut blocks: Vec<usize> = (0..BLOCKS).collect();
        random.shuffle(&mut blocks);
        let (seen, unseen) = blocks.split_at(SEEN);
        let mut deal = |count: u32| {
            let mut rows: Vec<f64> = (0..BLOCK_ROWS).map(|row| f64::from(u8::from(row < count as usize))).collect();
            random.shuffle(&mut rows);
            rows
        };
        let scores = drawn.iter().map(|counts| seen.iter().flat_map(|block| deal(counts[*block])).collect()).collect();
        let rows = (unseen.len() * BLOCK_ROWS) as f64;
        let right = |counts: &Counts| unseen.iter().map(|block| f64::from(counts[*block])).sum::<f64>();
        Self { scores, truth: drawn.iter().map(|counts| right(counts) / rows).collect() }
    }

    /// Returns by how much a prompt is better than the average one, and by how much its seen score is above its true one.
    fn gain(&self, prompt: usize, blocks: usize) -> (f64, f64) {
        let average = self.truth.iter().sum::<f64>() / self.truth.len() as f64;
        (self.truth[prompt] - average, self.mean(prompt, blocks) - self.truth[prompt])
    }

    fn mean(&self, prompt: usize, blocks: usize) -> f64 {
        let rows = blocks * BLOCK_ROWS;
        self.scores[prompt][..rows].iter().sum::<f64>() / rows as f64
    }

    fn policies(&self) -> Vec<(String, Chosen)> {
        let mut chosen = vec![
            ("one block".to_owned(), self.evaluate_all(1)),
            ("full evaluation".to_owned(), self.evaluate_all(SEEN)),
        ];
        for (name, pairs) in [("rows", Pairs::Rows), ("blocks", Pairs::Blocks)] {
            chosen.push((format!("{name}: chain of checks"), self.check_all(pairs)));
            chosen.extend(DROPS.map(|drop| (format!("{name}: race {drop}"), self.race(drop, pairs))));
        }
        chosen
    }

    /// Returns the scores of a prompt on its first blocks, one for each pair.
    fn seen(&self, prompt: usize, blocks: usize, pairs: Pairs) -> Vec<f64> {
        let rows = &self.scores[prompt][..blocks * BLOCK_ROWS];
        match pairs {
            Pairs::Rows => rows.to_vec(),
            Pairs::Blocks => {
                rows.chunks(BLOCK_ROWS).map(|block| block.iter().sum::<f64>() / BLOCK_ROWS as f64).collect()
            }
        }
    }

    /// Evaluates every prompt on the first blocks and takes the best.
    fn evaluate_all(&self, blocks: usize) -> Chosen {
        let all = (0..self.scores.len()).rev();
        let best = all.max_by(|one, other| self.mean(*one, blocks).total_cmp(&self.mean(*other, blocks)));
        Chosen { prompt: best.unwrap_or(0), blocks, rollouts: self.scores.len() * blocks * BLOCK_ROWS }
    }

    /// Races all prompts block by block and takes the leader after the last block.
    fn race(&self, drop: f64, pairs: Pairs) -> Chosen {
        let mut running: Vec<usize> = (0..self.scores.len()).collect();
        let mut chosen = Chosen { prompt: 0, blocks: 0, rollouts: 0 };
        for blocks in 1..=SEEN {
            chosen.rollouts += running.len() * BLOCK_ROWS;
            let seen = |prompt: &usize| self.seen(*prompt, blocks, pairs).into_iter().map(Some).collect();
            let scores: Vec<Vec<Option<f64>>> = running.iter().map(seen).collect();
            let Some(found) = standing(&scores, &prior(pairs.variance(), RACE_STEPS)) else { break };
            (chosen.prompt, chosen.blocks) = (running[found.leader], blocks);
            running = found.remaining(drop).into_iter().map(|place| running[place]).collect();
            if running.len() == 1 {
                break;
            }
        }
        chosen
    }

    /// Checks every prompt against the last one that a check has adopted, by the rule of a search in sprints.
    fn check_all(&self, pairs: Pairs) -> Chosen {
        let rules = Sprint::default();
        let (mut anchor, mut pooled) = (0, pairs.variance());
        let mut measured = BTreeSet::new();
        for head in 1..self.scores.len() {
            for blocks in 1..=SEEN {
                measured.extend([(anchor, blocks), (head, blocks)]);
                let [own, other] = [head, anchor].map(|prompt| self.seen(prompt, blocks, pairs));
                let differences: Vec<f64> = own.iter().zip(&other).map(|(own, other)| own - other).collect();
                let Some(found) = Differences::of(&differences) else { break };
                let probability = probability_of_gain(&found, &prior(pooled, 1));
                let is_decided = probability >= rules.adopt || probability <= rules.drop;
                if is_decided || blocks == SEEN {
                    pooled.add(found.variance().unwrap_or_default(), found.n);
                    anchor = if probability >= rules.adopt { head } else { anchor };
                    break;
                }
            }
        }
        let blocks = measured.iter().filter(|(prompt, _)| *prompt == anchor).count();
        Chosen { prompt: anchor, blocks, rollouts: measured.len() * BLOCK_ROWS }
    }
}

/// Returns what is known before a comparison of two prompts with so many changes between them.
fn prior(pooled: PooledVariance, steps: u32) -> Prior {
    Prior { pooled, steps, step_scale: Sprint::default().step_scale, all_rows: None }
}

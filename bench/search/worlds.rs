//! Scripted tasks with a scripted proposer: what a text scores on a row, what the proposer makes of it, and how good it
//! truly is.
//!
//! A text is a list of lines. Everything is a function of the text, the row and a number, so that every optimizer meets the
//! same task.

use std::collections::BTreeSet;

use synth_gepa::{RandomStream, random_stream};

/// The kind of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Forty hidden rules, one for each row: a row is solved if the text has its rule.
    Rule,
    /// Each row needs three of thirty skills; its score is the share that the text has.
    Graded,
    /// Each row needs three of thirty skills, and two others harm it.
    Conflict,
    /// Abilities of eight clusters with side effects. The proposer often memorizes rows instead, which helps nowhere else.
    Irt,
    /// As `Rule`, but a fifth of the proposals solves the rows that it saw and loses most of the others.
    Brittle,
    /// Nothing can be gained, and half of the proposals harm.
    Null,
    /// Nothing can be gained or lost.
    Same,
    /// Every proposal harms.
    Harm,
}

pub(crate) const KINDS: &[(&str, Kind)] = &[
    ("rule", Kind::Rule),
    ("graded", Kind::Graded),
    ("conflict", Kind::Conflict),
    ("irt", Kind::Irt),
    ("brittle", Kind::Brittle),
    ("null", Kind::Null),
    ("same", Kind::Same),
    ("harm", Kind::Harm),
];

const RULES: u64 = 40;
const SKILLS: u64 = 30;
const CLUSTERS: u64 = 8;
const LEVELS: u64 = 6;
/// Probability that a proposal also breaks something.
const BREAKS: f64 = 0.3;
/// Share of brittle proposals, and the share of rules that they keep.
const BRITTLE: f64 = 0.2;
const KEPT: f64 = 0.3;
/// Quality of the initial text where nothing can be gained, and what one harm costs.
const NULL_QUALITY: f64 = 0.8;
const NULL_HARM: f64 = 0.1;

/// The initial text of every task.
pub(crate) const INITIAL: &str = "Answer the question.";

/// One task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    pub(crate) kind: Kind,
    /// Number of train rows. Held-out rows have the numbers from here on.
    pub(crate) rows: u32,
    pub(crate) noise: f64,
    /// Probability that the proposer learns what a failed row teaches.
    pub(crate) learns: f64,
    pub(crate) seed: u64,
    /// Mean score of a text that no single skill improves, if skills conflict.
    pub(crate) best_mean: f64,
}

impl World {
    /// Completes a task.
    pub(crate) fn prepared(mut self) -> Self {
        if self.kind == Kind::Conflict {
            self.best_mean = self.best_conflict_mean();
        }
        self
    }

    fn mean(&self, text: &str) -> f64 {
        (0..self.rows).map(|row| self.true_score(text, row)).sum::<f64>() / f64::from(self.rows)
    }

    /// Returns the score of a text on a row. `repeat` tells rollouts of the same text on the same row apart.
    pub(crate) fn score(&self, text: &str, row: u32, repeat: &str) -> f64 {
        let score = self.true_score(text, row);
        let mut random = self.stream(&format!("noise {text} {repeat}"), row.into());
        if random.unit() >= self.noise {
            return score;
        }
        match self.kind {
            Kind::Graded | Kind::Conflict => random.below(4) as f64 / 3.0,
            _ => 1.0 - score,
        }
    }

    /// Returns the share of what the rows can teach that a text has, over the whole population.
    pub(crate) fn quality(&self, text: &str) -> f64 {
        let lines: BTreeSet<&str> = text.lines().collect();
        let all = 0..self.rows;
        match self.kind {
            Kind::Rule | Kind::Brittle => {
                let taught: BTreeSet<u64> = all.map(|row| self.rule(row)).collect();
                let known = taught.iter().filter(|rule| lines.contains(line("rule", **rule).as_str())).count();
                known as f64 / taught.len() as f64
            }
            Kind::Graded => {
                let taught: BTreeSet<u64> = all.flat_map(|row| self.needs(row)).collect();
                let known = taught.iter().filter(|skill| lines.contains(line("skill", **skill).as_str())).count();
                known as f64 / taught.len() as f64
            }
            Kind::Conflict => self.mean(text) / self.best_mean.max(1e-9),
            Kind::Irt => {
                let solved = |cluster: u64| self.ability(text, cluster).min(LEVELS) as f64 / LEVELS as f64;
                (0..CLUSTERS).map(solved).sum::<f64>() / CLUSTERS as f64
            }
            Kind::Null | Kind::Same | Kind::Harm => (NULL_QUALITY - NULL_HARM * harms(text) as f64).max(0.0),
        }
    }

    /// Returns the mean score of a text on new rows, with noise, where it is known.
    pub(crate) fn expected(&self, text: &str) -> Option<f64> {
        let share = |kind: &str, all: u64| {
            let has = |number: &u64| text.lines().any(|known| known == line(kind, *number));
            (0..all).filter(has).count() as f64 / all as f64
        };
        let mean = match self.kind {
            Kind::Rule | Kind::Brittle => share("rule", RULES),
            Kind::Graded => share("skill", SKILLS),
            Kind::Irt | Kind::Null | Kind::Same | Kind::Harm => self.quality(text),
            Kind::Conflict => return None,
        };
        let noise_mean = if self.kind == Kind::Graded { 0.5 } else { 1.0 - mean };
        Some(mean + self.noise * (noise_mean - mean))
    }

    fn true_score(&self, text: &str, row: u32) -> f64 {
        let has = |kind: &str, number: u64| text.lines().any(|known| known == line(kind, number));
        let share = |skills: &[u64]| skills.iter().filter(|skill| has("skill", **skill)).count() as f64;
        match self.kind {
            Kind::Rule | Kind::Brittle => f64::from(u8::from(has("rule", self.rule(row)))),
            Kind::Graded => share(&self.needs(row)) / 3.0,
            Kind::Conflict => conflict_score(share(&self.needs(row)), share(&self.harmed_by(row))),
            Kind::Irt => {
                let mut random = self.stream("irt", row.into());
                let (cluster, level) = (random.below(CLUSTERS), random.below(LEVELS));
                let solved = has("row", row.into()) || self.ability(text, cluster) > level;
                f64::from(u8::from(solved))
            }
            Kind::Null | Kind::Same | Kind::Harm => {
                let luck = self.stream("null", row.into()).unit();
                f64::from(u8::from(luck < self.quality(text)))
            }
        }
    }

    /// Returns a proposal for a text, given the rows that the proposer sees with their scores. `turn` tells proposals apart.
    pub(crate) fn propose(&self, text: &str, evidence: &[(u32, f64)], turn: u64) -> String {
        let mut random = self.stream(&format!("propose {text}"), turn);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let failed: Vec<u32> = evidence.iter().filter(|(_, score)| *score < 1.0).map(|(row, _)| *row).collect();
        let learn = |lines: &mut Vec<String>, line: String| {
            if !lines.contains(&line) {
                lines.push(line);
            }
        };
        match self.kind {
            Kind::Brittle if random.unit() < BRITTLE => {
                lines.retain(|line| line == INITIAL || random.unit() < KEPT);
                for (row, _) in evidence {
                    learn(&mut lines, line("rule", self.rule(*row)));
                }
                return lines.join("\n");
            }
            Kind::Rule | Kind::Brittle => {
                for row in &failed {
                    if random.unit() < self.learns {
                        learn(&mut lines, line("rule", self.rule(*row)));
                    }
                }
            }
            Kind::Graded | Kind::Conflict => {
                let missing = |row: &u32| {
                    self.needs(*row)
                        .into_iter()
                        .filter(|skill| !text.lines().any(|known| known == line("skill", *skill)))
                        .collect::<Vec<u64>>()
                };
                for row in &failed {
                    let missing = missing(row);
                    if !missing.is_empty() && random.unit() < self.learns {
                        learn(&mut lines, line("skill", missing[random.index(missing.len())]));
                    }
                }
            }
            Kind::Irt => {
                let Some(row) = failed.get(random.index(failed.len())) else { return text.to_owned() };
                if random.unit() < self.learns {
                    let mut of_row = self.stream("irt", u64::from(*row));
                    let cluster = of_row.below(CLUSTERS);
                    learn(&mut lines, line(&format!("ability {cluster} level"), self.ability(text, cluster) + 1));
                } else {
                    failed.iter().for_each(|row| learn(&mut lines, line("row", u64::from(*row))));
                }
            }
            Kind::Null | Kind::Harm => {
                let harm = self.kind == Kind::Harm || random.unit() < 0.5;
                lines.push(line(if harm { "harm" } else { "note" }, turn));
            }
            Kind::Same => lines.push(line("note", turn)),
        }
        let breakable: Vec<usize> = (1..lines.len())
            .filter(|place| !matches!(self.kind, Kind::Null | Kind::Same | Kind::Harm) && *place < text.lines().count())
            .collect();
        if !breakable.is_empty() && random.unit() < BREAKS {
            lines.remove(breakable[random.index(breakable.len())]);
        }
        lines.join("\n")
    }

    fn rule(&self, row: u32) -> u64 {
        self.stream("rule", row.into()).below(RULES)
    }

    /// Returns the three skills that a row needs.
    fn needs(&self, row: u32) -> Vec<u64> {
        let all: Vec<u64> = (0..SKILLS).collect();
        self.stream("needs", row.into()).sample(&all, 3)
    }

    /// Returns the two skills that harm a row.
    fn harmed_by(&self, row: u32) -> Vec<u64> {
        let needed = self.needs(row);
        let others: Vec<u64> = (0..SKILLS).filter(|skill| !needed.contains(skill)).collect();
        self.stream("harmed", row.into()).sample(&others, 2)
    }

    /// Returns the level of a cluster: the number of consecutive levels that the text has.
    fn ability(&self, text: &str, cluster: u64) -> u64 {
        let has = |level: u64| text.lines().any(|known| known == line(&format!("ability {cluster} level"), level));
        (1..=LEVELS).take_while(|level| has(*level)).count() as u64
    }

    /// Returns the mean score of a text that no single skill improves, for comparison.
    fn best_conflict_mean(&self) -> f64 {
        let rows: Vec<_> = (0..self.rows).map(|row| (self.needs(row), self.harmed_by(row))).collect();
        let mean = |known: &BTreeSet<u64>| {
            let share = |skills: &[u64]| skills.iter().filter(|skill| known.contains(skill)).count() as f64;
            rows.iter().map(|(needs, harmed_by)| conflict_score(share(needs), share(harmed_by))).sum::<f64>()
                / f64::from(self.rows)
        };
        let mut known = BTreeSet::new();
        let mut best = mean(&known);
        loop {
            let options = (0..SKILLS).map(|skill| {
                let option: BTreeSet<u64> = known.symmetric_difference(&[skill].into()).copied().collect();
                (mean(&option), option)
            });
            match options.max_by(|one, other| one.0.total_cmp(&other.0)) {
                Some(next) if next.0 > best => (best, known) = next,
                _ => return best,
            }
        }
    }

    fn stream(&self, label: &str, index: u64) -> RandomStream {
        random_stream(self.seed, label, index)
    }
}

fn line(kind: &str, number: u64) -> String {
    format!("{kind} {number}")
}

/// Returns the score of a row for which a text has so many of the needed and of the harmful skills.
fn conflict_score(needed: f64, harmful: f64) -> f64 {
    (needed / 3.0 - harmful / 3.0).clamp(0.0, 1.0)
}

fn harms(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("harm ")).count()
}

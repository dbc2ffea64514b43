//! What tokens cost: a dated table that is shipped, the prices that a config puts in its place, and which names are of one
//! model.

use std::collections::BTreeMap;

use serde::Deserialize;

use synth_optimizer_core::config::proposer::{ModelPrice, ProposerSection};
use synth_optimizer_core::model::usage::{Cost, Usage};

/// List prices at the date that stands in the file.
const TABLE: &str = include_str!("prices.json");

/// Tokens of one turn, as the endpoint counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tokens {
    /// All prompt tokens, those that were cached included.
    pub(super) prompt: u64,
    pub(super) cached_prompt: u64,
    /// All completion tokens, those of reasoning included.
    pub(super) completion: u64,
}

impl Tokens {
    pub(super) fn total(self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }
}

/// Prices by model.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Prices {
    models: BTreeMap<String, ModelPrice>,
}

impl Prices {
    /// `is_list_priced` tells whether the provider sells at list prices; a server of one's own does not.
    pub(super) fn new(section: &ProposerSection, is_list_priced: bool) -> Self {
        // A test reads the table, so that it is never without a reader.
        let shipped = is_list_priced.then(|| serde_json::from_str(TABLE).ok()).flatten();
        let mut prices: Self = shipped.unwrap_or_default();
        prices.models.extend(section.prices.clone());
        prices
    }

    /// The usage of a turn. Prices are known by the name of the model that answered, or by the name that was asked for where
    /// it is the same model; else the cost is unknown.
    pub(super) fn usage(&self, requested: &str, effective: Option<&str>, tokens: Option<Tokens>) -> Usage {
        let Some(tokens) = tokens else { return Usage::default() };
        let effective = effective.unwrap_or(requested);
        let asked_for = Some(requested).filter(|requested| is_same(requested, effective));
        let cost = [Some(effective), asked_for].into_iter().flatten().find_map(|model| self.cost(model, tokens));
        Usage {
            prompt_tokens: Some(tokens.prompt),
            completion_tokens: Some(tokens.completion),
            total_tokens: Some(tokens.total()),
            cost: Cost::from_usd(cost),
        }
    }

    /// In dollars.
    fn cost(&self, model: &str, tokens: Tokens) -> Option<f64> {
        let price = self.models.get(model)?;
        let (prompt, completion) = (price.prompt_usd?, price.completion_usd?);
        let cached = tokens.cached_prompt.min(tokens.prompt);
        let dollars = prompt * (tokens.prompt - cached) as f64
            + price.cached_prompt_usd.unwrap_or(prompt) * cached as f64
            + completion * tokens.completion as f64;
        Some(dollars / 1e6)
    }
}

/// Tags that choose how a model is served, not which one.
const SERVING: [&str; 6] = [":latest", ":free", ":nitro", ":floor", ":online", ":extended"];

/// Fewest digits of a suffix that is a date or a build: `-0613`, `-001`, `-2025-04-14`. `-32k` and `-5` are other models.
const FEWEST_DIGITS: usize = 3;

/// Whether both names are of one model. Servers answer with the dated name of an alias, leave out the name of the
/// provider before it, or add a tag.
pub(super) fn is_same(requested: &str, effective: &str) -> bool {
    let (requested, effective) = (bare(requested), bare(effective));
    let alias = requested.strip_suffix("-latest").unwrap_or(&requested);
    ends_alike(&requested, &effective) || undated(&effective).any(|undated| ends_alike(alias, undated))
}

fn bare(name: &str) -> String {
    let name = name.trim().to_lowercase();
    let name = SERVING.iter().find_map(|tag| name.strip_suffix(tag)).unwrap_or(&name);
    name.strip_suffix(".gguf").unwrap_or(name).to_owned()
}

/// Equal, or one is the other behind the name of a provider or a directory.
fn ends_alike(one: &str, other: &str) -> bool {
    let is_behind = |long: &str, short: &str| long.strip_suffix(short).is_some_and(|before| before.ends_with('/'));
    !one.is_empty() && !other.is_empty() && (one == other || is_behind(one, other) || is_behind(other, one))
}

/// What the name may be without the date or build at its end. `gpt-4-0613` ends in a digit without it as well, so there
/// may be more than one reading.
fn undated(name: &str) -> impl Iterator<Item = &str> {
    let is_date = |suffix: &str| {
        suffix.chars().all(|c| c.is_ascii_digit() || c == '-')
            && suffix.chars().filter(char::is_ascii_digit).count() >= FEWEST_DIGITS
    };
    name.match_indices('-').filter(move |(at, _)| is_date(&name[*at..])).map(|(at, _)| &name[..at])
}

#[cfg(test)]
#[path = "prices_tests.rs"]
mod tests;

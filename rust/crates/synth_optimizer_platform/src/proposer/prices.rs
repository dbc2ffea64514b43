//! Token prices: a dated table that is part of the package, and overrides from the config. Also decides whether two
//! names denote the same model.

use std::collections::BTreeMap;

use serde::Deserialize;

use synth_optimizer_core::config::proposer::{ModelPrice, ProposerSection};
use synth_optimizer_core::model::usage::{Cost, Usage};

/// List prices; the file contains their date.
const TABLE: &str = include_str!("prices.json");

/// Tokens of one turn, as the endpoint counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tokens {
    /// All prompt tokens, including cached ones.
    pub(super) prompt: u64,
    pub(super) cached_prompt: u64,
    /// All completion tokens, including reasoning tokens.
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
    /// Loads the prices of the config, and the list prices if the provider charges them (`is_list_priced`).
    pub(super) fn new(section: &ProposerSection, is_list_priced: bool) -> Self {
        // A test checks that the table can be parsed.
        let shipped = is_list_priced.then(|| serde_json::from_str(TABLE).ok()).flatten();
        let mut prices: Self = shipped.unwrap_or_default();
        prices.models.extend(section.prices.clone());
        prices
    }

    /// Returns the usage of a turn. Looks up the price of the effective model, then of the requested one if both names
    /// denote the same model. Otherwise the cost is unknown.
    pub(super) fn usage(&self, requested: &str, effective: Option<&str>, tokens: Option<Tokens>) -> Usage {
        let Some(tokens) = tokens else { return Usage::default() };
        let effective = effective.unwrap_or(requested);
        let asked_for = Some(requested).filter(|requested| is_same_model(requested, effective));
        let cost = [Some(effective), asked_for].into_iter().flatten().find_map(|model| self.cost(model, tokens));
        Usage {
            prompt_tokens: Some(tokens.prompt),
            completion_tokens: Some(tokens.completion),
            total_tokens: Some(tokens.total()),
            cost: Cost::from_usd(cost),
        }
    }

    /// Returns the cost in US dollars.
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

/// Tags that select how a model is served, not which model.
const SERVING_TAGS: [&str; 6] = [":latest", ":free", ":nitro", ":floor", ":online", ":extended"];

/// Minimum number of digits in a suffix that is a date or a build: `-0613`, `-001`, `-2025-04-14`. `-32k` and `-5`
/// denote other models.
const MIN_DATE_DIGITS: usize = 3;

/// Returns whether both names denote the same model. Servers answer with the dated name of an alias, omit the provider
/// prefix, or add a tag.
pub(crate) fn is_same_model(requested: &str, effective: &str) -> bool {
    let (requested, effective) = (base_name(requested), base_name(effective));
    let alias = requested.strip_suffix("-latest").unwrap_or(&requested);
    ends_alike(&requested, &effective) || without_date(&effective).any(|without_date| ends_alike(alias, without_date))
}

fn base_name(name: &str) -> String {
    let name = name.trim().to_lowercase();
    let name = SERVING_TAGS.iter().find_map(|tag| name.strip_suffix(tag)).unwrap_or(&name);
    name.strip_suffix(".gguf").unwrap_or(name).to_owned()
}

/// Returns whether both names are equal, except for a prefix with a provider or directory.
fn ends_alike(one: &str, other: &str) -> bool {
    let is_behind = |long: &str, short: &str| long.strip_suffix(short).is_some_and(|before| before.ends_with('/'));
    !one.is_empty() && !other.is_empty() && (one == other || is_behind(one, other) || is_behind(other, one))
}

/// Returns the possible names without a trailing date or build. There may be several: without its date, `gpt-4-0613`
/// still ends in a digit.
fn without_date(name: &str) -> impl Iterator<Item = &str> {
    let is_date = |suffix: &str| {
        suffix.chars().all(|c| c.is_ascii_digit() || c == '-')
            && suffix.chars().filter(char::is_ascii_digit).count() >= MIN_DATE_DIGITS
    };
    name.match_indices('-').filter(move |(at, _)| is_date(&name[*at..])).map(|(at, _)| &name[..at])
}

#[cfg(test)]
#[path = "prices_tests.rs"]
mod tests;

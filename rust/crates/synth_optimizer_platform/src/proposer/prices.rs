//! Token prices: a dated table that is part of the package, and overrides from the config.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::model_name::is_same_model;
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

#[cfg(test)]
#[path = "prices_tests.rs"]
mod tests;

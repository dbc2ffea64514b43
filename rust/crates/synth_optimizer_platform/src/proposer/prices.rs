//! What tokens cost: a dated table that is shipped, and the prices that a config puts in its place.

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

#[derive(Debug, Deserialize)]
struct Table {
    models: BTreeMap<String, ModelPrice>,
}

/// Prices by model.
#[derive(Debug, Clone)]
pub(super) struct Prices {
    models: BTreeMap<String, ModelPrice>,
}

impl Prices {
    /// `is_list_priced` tells whether the provider sells at list prices; a server of one's own does not.
    pub(super) fn new(section: &ProposerSection, is_list_priced: bool) -> Self {
        // A test reads the table, so that it is never without a reader.
        let shipped = if is_list_priced { serde_json::from_str::<Table>(TABLE).ok() } else { None };
        let mut models = shipped.map(|table| table.models).unwrap_or_default();
        models.extend(section.prices.clone());
        Self { models }
    }

    /// The usage of a turn; the cost of a model without a price is unknown.
    pub(super) fn usage(&self, model: &str, tokens: Option<Tokens>) -> Usage {
        let Some(tokens) = tokens else { return Usage::default() };
        let cost = self.models.get(model).and_then(|price| {
            let (prompt, completion) = (price.prompt_usd?, price.completion_usd?);
            let cached = tokens.cached_prompt.min(tokens.prompt);
            let dollars = prompt * (tokens.prompt - cached) as f64
                + price.cached_prompt_usd.unwrap_or(prompt) * cached as f64
                + completion * tokens.completion as f64;
            Some(dollars / 1e6)
        });
        Usage {
            prompt_tokens: Some(tokens.prompt),
            completion_tokens: Some(tokens.completion),
            total_tokens: Some(tokens.total()),
            cost: Cost::from_usd(cost),
        }
    }
}

#[cfg(test)]
#[path = "prices_tests.rs"]
mod tests;

//! Token prices: a dated table that is part of the package, and overrides from the config.

use std::collections::BTreeMap;

use camino::Utf8Path;
use serde::Deserialize;

use crate::model_name::is_same_model;
use synth_optimizer_core::config::proposer::{ModelPrice, ProposerSection};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
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
    /// Loads the prices of the config, those of its price file, and the list prices if the provider charges them
    /// (`is_list_priced`). Fails if the price file cannot be used.
    pub(super) fn new(section: &ProposerSection, is_list_priced: bool) -> Result<Self, OptimizerError> {
        // A test checks that the table can be parsed.
        let shipped = is_list_priced.then(|| serde_json::from_str(TABLE).ok()).flatten();
        let mut prices: Self = shipped.unwrap_or_default();
        if let Some(path) = &section.price_file {
            prices.models.extend(read_price_file(path)?.models);
        }
        prices.models.extend(section.prices.clone());
        Ok(prices)
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
        let is_long = price.long_prompt_tokens.is_some_and(|limit| tokens.prompt > limit);
        let long = |price: Option<f64>| price.filter(|_| is_long);
        let cached_prompt = long(price.long_cached_prompt_usd).or(price.cached_prompt_usd);
        let prompt = long(price.long_prompt_usd).unwrap_or(prompt);
        let completion = long(price.long_completion_usd).unwrap_or(completion);
        let cached = tokens.cached_prompt.min(tokens.prompt);
        let dollars = prompt * (tokens.prompt - cached) as f64
            + cached_prompt.unwrap_or(prompt) * cached as f64
            + completion * tokens.completion as f64;
        Some(dollars / 1e6)
    }
}

/// Reads a price file in the format of the built-in table, as JSON or TOML.
fn read_price_file(path: &Utf8Path) -> Result<Prices, OptimizerError> {
    const HINT: &str = "Write it like: {\"models\": {\"MODEL\": {\"prompt_usd\": 1.0, \"completion_usd\": 2.0}}}, in dollars per million tokens.";
    let error = |what: String| {
        OptimizerError::new(ErrorCode::Config, format!("`proposer.price_file` {path} {what}")).with_hint(HINT)
    };
    let text = std::fs::read_to_string(path).map_err(|cause| error(format!("cannot be read: {cause}")))?;
    let prices: Prices = match path.extension() {
        Some("toml") => toml::from_str(&text).map_err(|cause| error(format!("is not valid: {}", cause.message())))?,
        _ => serde_json::from_str(&text).map_err(|cause| error(format!("is not valid: {cause}")))?,
    };
    for (model, price) in &prices.models {
        let all = [
            price.prompt_usd,
            price.cached_prompt_usd,
            price.completion_usd,
            price.long_prompt_usd,
            price.long_cached_prompt_usd,
            price.long_completion_usd,
        ];
        if price.prompt_usd.is_none() || price.completion_usd.is_none() {
            return Err(error(format!("has no prompt_usd or no completion_usd for {model:?}")));
        }
        if all.into_iter().flatten().any(|price| !price.is_finite() || price < 0.0) {
            return Err(error(format!("has a price of {model:?} that is negative or not a number")));
        }
    }
    Ok(prices)
}

#[cfg(test)]
#[path = "prices_tests.rs"]
mod tests;

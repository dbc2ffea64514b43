//! Costs of turns, and names that denote the same model.

use std::collections::BTreeMap;

use super::{Prices, TABLE, Tokens};
use crate::model_name::is_same_model;
use synth_optimizer_core::config::proposer::{ModelPrice, ProposerSection};
use synth_optimizer_core::model::usage::{Cost, NanoUsd, Usage};

const TOKENS: Tokens = Tokens { prompt: 1_000_000, cached_prompt: 400_000, completion: 100_000 };

fn section(prices: &[(&str, ModelPrice)]) -> ProposerSection {
    let prices: BTreeMap<_, _> = prices.iter().map(|(name, price)| ((*name).to_owned(), *price)).collect();
    ProposerSection { prices, ..ProposerSection::default() }
}

fn cost(prices: &Prices, model: &str, tokens: Tokens) -> Cost {
    prices.usage(model, None, Some(tokens)).cost
}

fn dollars(amount: f64) -> Cost {
    Cost::from_usd(Some(amount))
}

#[test]
fn the_price_table_is_dated_and_its_prices_are_plausible() {
    let document: serde_json::Value = serde_json::from_str(TABLE).unwrap();
    assert_eq!(document["as_of"].as_str().unwrap().len(), "2025-08-31".len());
    let table: Prices = serde_json::from_str(TABLE).unwrap();
    assert!(!table.models.is_empty());
    for (model, price) in table.models {
        let (prompt, completion) = (price.prompt_usd.unwrap(), price.completion_usd.unwrap());
        let cached = price.cached_prompt_usd.unwrap_or(prompt);
        assert!(0.0 < cached && cached <= prompt && prompt < completion, "{model}");
    }
}

#[test]
fn a_listed_model_costs_its_list_price_and_cached_tokens_cost_less() {
    let prices = Prices::new(&section(&[]), true).unwrap();
    assert_eq!(cost(&prices, "gpt-4.1-mini", TOKENS), dollars(0.24 + 0.04 + 0.16));
    assert_eq!(cost(&prices, "gpt-4.1-mini", Tokens::default()), Cost::Known(NanoUsd(0)));
    // More cached tokens than tokens is a mistake of the endpoint.
    let odd = Tokens { prompt: 1_000_000, cached_prompt: u64::MAX, completion: 0 };
    assert_eq!(cost(&prices, "gpt-4.1-mini", odd), dollars(0.1));
}

#[test]
fn a_model_without_a_price_has_an_unknown_cost_and_known_tokens() {
    let prices = Prices::new(&section(&[]), true).unwrap();
    let usage = prices.usage("my-model", None, Some(TOKENS));
    assert_eq!((usage.cost, usage.total_tokens), (Cost::Unknown, Some(1_100_000)));
    assert_eq!(prices.usage("gpt-4.1-mini", None, None), Usage::default());
    // Another host may sell the same name at another price.
    assert_eq!(cost(&Prices::new(&section(&[]), false).unwrap(), "gpt-4.1-mini", TOKENS), Cost::Unknown);
}

#[test]
fn configured_prices_override_the_table_for_every_host() {
    let price = ModelPrice {
        prompt_usd: Some(1.0),
        cached_prompt_usd: None,
        completion_usd: Some(10.0),
        ..ModelPrice::default()
    };
    let own = section(&[("gpt-4.1-mini", price), ("local", price)]);
    for is_list_priced in [true, false] {
        let prices = Prices::new(&own, is_list_priced).unwrap();
        assert_eq!(cost(&prices, "gpt-4.1-mini", TOKENS), dollars(2.0));
        assert_eq!(cost(&prices, "local", TOKENS), dollars(2.0));
    }
    let free = ModelPrice {
        prompt_usd: Some(0.0),
        cached_prompt_usd: None,
        completion_usd: Some(0.0),
        ..ModelPrice::default()
    };
    let prices = Prices::new(&section(&[("local", free)]), false).unwrap();
    assert_eq!(cost(&prices, "local", TOKENS), Cost::Known(NanoUsd(0)));
}

#[test]
fn an_incomplete_price_gives_an_unknown_cost() {
    let half =
        ModelPrice { prompt_usd: Some(1.0), cached_prompt_usd: None, completion_usd: None, ..ModelPrice::default() };
    assert_eq!(cost(&Prices::new(&section(&[("local", half)]), false).unwrap(), "local", TOKENS), Cost::Unknown);
}

#[test]
fn huge_token_counts_do_not_overflow() {
    let most = Tokens { prompt: u64::MAX, cached_prompt: 0, completion: u64::MAX };
    assert_eq!(most.total(), u64::MAX);
    assert_eq!(cost(&Prices::new(&section(&[]), true).unwrap(), "gpt-4.1-mini", most), Cost::Unknown);
}

#[test]
fn a_turn_is_priced_by_the_effective_or_the_requested_model_name() {
    let price = |usd| ModelPrice {
        prompt_usd: Some(usd),
        cached_prompt_usd: None,
        completion_usd: Some(usd),
        ..ModelPrice::default()
    };
    let prices = Prices::new(&section(&[("m", price(1.0)), ("m-2025-01-01", price(2.0))]), false).unwrap();
    let cost = |effective| prices.usage("m", Some(effective), Some(TOKENS)).cost;
    assert_eq!(cost("m-2025-01-01"), dollars(2.2));
    assert_eq!(cost("m-2025-02-02"), dollars(1.1));
    assert_eq!(cost("another"), Cost::Unknown);
}

#[test]
fn a_dated_prefixed_or_tagged_name_is_the_same_model() {
    for (requested, effective) in [
        ("gpt-4.1-mini", "gpt-4.1-mini"),
        ("gpt-4.1-mini", "gpt-4.1-mini-2025-04-14"),
        ("gpt-4", "gpt-4-0613"),
        ("GPT-4o", "gpt-4o-2024-08-06"),
        ("gemini-2.0-flash", "gemini-2.0-flash-001"),
        ("openai/gpt-4.1-mini", "gpt-4.1-mini-2025-04-14"),
        ("gpt-4.1-mini", "openai/gpt-4.1-mini"),
        ("openai/gpt-4.1-mini", "openai/gpt-4.1-mini-2025-04-14"),
        ("llama3.1", "llama3.1:latest"),
        ("llama3.1:latest", "llama3.1"),
        ("meta-llama/llama-3.3-70b-instruct:free", "meta-llama/llama-3.3-70b-instruct"),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022"),
        ("qwen2.5-7b", "/models/qwen2.5-7b.gguf"),
    ] {
        assert!(is_same_model(requested, effective), "{requested} {effective}");
    }
}

#[test]
fn names_of_different_models_do_not_match() {
    for (requested, effective) in [
        ("gpt-4.1-mini", "gpt-4.1"),
        ("gpt-4.1", "gpt-4.1-mini"),
        ("gpt-4.1", "gpt-4.1-mini-2025-04-14"),
        ("gpt-4", "gpt-4-32k"),
        ("gpt-4", "gpt-4-5"),
        ("claude-3", "claude-3-5"),
        ("gpt-4", "gpt-4o"),
        ("openai/gpt-4", "azure/gpt-4"),
        ("llama3:8b", "llama3:70b"),
        ("llama3:70b", "llama3"),
        ("gpt-4-0613", "gpt-4-0314"),
        ("gpt-4-0613", "gpt-4"),
        ("mini", "gpt-4.1-mini"),
        ("gpt-4", ""),
        ("gpt-4", "/"),
    ] {
        assert!(!is_same_model(requested, effective), "{requested} {effective}");
    }
}

#[test]
fn a_long_request_has_its_own_prices() {
    let price = ModelPrice {
        prompt_usd: Some(1.0),
        cached_prompt_usd: Some(0.1),
        completion_usd: Some(10.0),
        long_prompt_tokens: Some(200_000),
        long_prompt_usd: Some(2.0),
        long_completion_usd: Some(15.0),
        ..ModelPrice::default()
    };
    let prices = Prices::new(&section(&[("m", price)]), false).unwrap();
    let short = Tokens { prompt: 200_000, cached_prompt: 100_000, completion: 100_000 };
    assert_eq!(cost(&prices, "m", short), dollars(0.1 + 0.01 + 1.0));
    let long = Tokens { prompt: 300_000, cached_prompt: 100_000, completion: 100_000 };
    assert_eq!(cost(&prices, "m", long), dollars(0.4 + 0.01 + 1.5));
}

#[test]
fn a_price_file_replaces_the_table_and_the_configuration_replaces_both() {
    let dir = tempfile::tempdir().unwrap();
    let path = camino::Utf8PathBuf::try_from(dir.path().join("prices.toml")).unwrap();
    let load = |text: &str, prices: &[(&str, ModelPrice)]| {
        std::fs::write(&path, text).unwrap();
        Prices::new(&ProposerSection { price_file: Some(path.clone()), ..section(prices) }, true)
    };
    let file = "as_of = \"2026-01-01\"\n[models.\"gpt-4.1-mini\"]\nprompt_usd = 2.0\ncompletion_usd = 4.0\n";
    assert_eq!(cost(&load(file, &[]).unwrap(), "gpt-4.1-mini", TOKENS), dollars(2.0 + 0.4));
    let own = ModelPrice { prompt_usd: Some(0.0), completion_usd: Some(0.0), ..ModelPrice::default() };
    assert_eq!(cost(&load(file, &[("gpt-4.1-mini", own)]).unwrap(), "gpt-4.1-mini", TOKENS), dollars(0.0));
    for (text, problem) in [
        ("models = 5", "is not valid"),
        ("[models.m]\nprompt_usd = 1.0\n", "has no prompt_usd or no completion_usd for \"m\""),
        ("[models.m]\nprompt_usd = -1.0\ncompletion_usd = 1.0\n", "negative"),
        ("[models.m]\nprompt = 1.0\n", "is not valid"),
    ] {
        let error = load(text, &[]).unwrap_err();
        assert!(error.message.contains(problem) && error.message.contains("prices.toml"), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    let missing = ProposerSection { price_file: Some(path.clone()), ..ProposerSection::default() };
    assert!(Prices::new(&missing, true).unwrap_err().message.contains("cannot be read"));
}

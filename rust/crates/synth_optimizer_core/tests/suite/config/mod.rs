//! Tests of the configuration layer, through its public functions only.
mod bad_inputs;
mod canary;
mod examples;
mod layers;
mod properties;
mod schema;
mod steering;

use std::collections::BTreeMap;

use camino::Utf8Path;
use synth_optimizer_core::config::{ConfigContent, ConfigSource, ResolvedConfig, load};
use synth_optimizer_core::model::error::OptimizerError;

/// The smallest file that loads.
pub(crate) const SMALLEST: &str = include_str!("fixtures/smallest.toml");

pub(crate) fn read(text: &str) -> Result<ResolvedConfig, OptimizerError> {
    read_with(text, &[], &[])
}

pub(crate) fn read_with(
    text: &str,
    environment: &[(&str, &str)],
    sets: &[&str],
) -> Result<ResolvedConfig, OptimizerError> {
    let environment: BTreeMap<_, _> =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    let source = ConfigSource {
        name: "gepa.toml",
        content: ConfigContent::Toml(text),
        base_dir: Utf8Path::new("/base/configs"),
    };
    load(source, &environment, &sets)
}

pub(crate) fn read_value(value: serde_json::Value) -> Result<ResolvedConfig, OptimizerError> {
    let base_dir = Utf8Path::new("/base/configs");
    load(ConfigSource { name: "config", content: ConfigContent::Mapping(value), base_dir }, &BTreeMap::new(), &[])
}

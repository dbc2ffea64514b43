//! Limits that are too small for a run that makes sense, found before it begins.

use synth_optimizer_core::config::{Config, Diagnostic, Severity};
use synth_optimizer_core::model::budget::{Amount, Budget, Dimension};

use crate::decide_stop::in_units;
use crate::plan::Sizes;
use crate::settings::Settings;

/// Every limit that does not reach. An error means that the seed candidate cannot be measured on the train rows and once
/// on the held-out rows; a warning, that the run would do less than it is asked for.
pub fn shortfalls(config: &Config) -> Vec<Diagnostic> {
    let sizes = Sizes::new(config);
    let settings = Settings::new(config, sizes.pools.heldout.len());
    let rules = Rules { caps: Budget::new(settings.caps), settings: &settings, config };
    let seed = settings.train_rollout.times(sizes.pareto.0);
    let measured = |times: u64| settings.heldout_rollout.times(sizes.heldout.0.saturating_mul(times));
    let mut found = rules.too_small(
        &seed.plus(&measured(1)),
        (Severity::Error, "budget_too_small"),
        "measuring the seed candidate on the train rows and once on the held-out rows",
    );
    if found.is_empty() {
        let screened =
            |rows: u64| settings.train_rollout.times(sizes.pareto.0.saturating_add(rows)).plus(&settings.proposal);
        found.extend(rules.too_small(
            &screened((sizes.gate + sizes.reference).0),
            (Severity::Warning, "no_proposal"),
            "measuring the seed candidate and screening one proposal",
        ));
        found.extend(rules.too_small(
            &screened(settings.gepa.minibatch_size.into()).plus(&measured(2)),
            (Severity::Warning, "heldout_partial"),
            "screening one proposal and measuring both the seed and the best candidate on the held-out rows",
        ));
    }
    found.extend(rules.too_slow(&sizes));
    found
}

struct Rules<'c> {
    caps: Budget,
    settings: &'c Settings,
    config: &'c Config,
}

impl Rules<'_> {
    fn too_small(&self, wanted: &Amount, (severity, code): (Severity, &'static str), what: &str) -> Vec<Diagnostic> {
        let short = |dimension: Dimension| {
            let (wanted, cap) = (wanted.get(dimension), self.caps.available(dimension)?);
            let is_told = match dimension {
                // Under one limit for both kinds, their sum says it all.
                Dimension::TrainRollouts | Dimension::HeldoutRollouts => {
                    self.settings.caps.get(Dimension::TotalRollouts).is_none()
                }
                // Time does not add up; what it is enough for is looked at apart.
                Dimension::WallMillis => false,
                _ => true,
            };
            if !is_told || wanted <= cap {
                return None;
            }
            let field = self.field(dimension);
            let (wanted, cap) = (in_units(dimension, wanted), in_units(dimension, cap));
            let message = format!("`{field}` is {cap}, but {what} takes up to {wanted}");
            Some(finding(severity, code, field, message, format!("Give at least {wanted}, or name fewer rows.")))
        };
        Dimension::ALL.into_iter().filter_map(short).collect()
    }

    /// Whether the seed is measured before the search has to end, if every rollout takes as long as it may.
    fn too_slow(&self, sizes: &Sizes) -> Option<Diagnostic> {
        let deadline = self.settings.search_deadline_millis?;
        let workers = u64::from(self.config.gepa.pipeline.workers.rollout.max(1));
        let each = self.settings.train_rollout.get(Dimension::WallMillis);
        let needed = sizes.pareto.0.div_ceil(workers).saturating_mul(each);
        (needed > deadline).then(|| {
            let (needed, deadline) = (needed as f64 / 1e3, deadline as f64 / 1e3);
            finding(
                Severity::Warning,
                "time_may_not_reach",
                "gepa.max_time_seconds",
                format!("measuring the seed candidate may take {needed} seconds, and the search has {deadline}"),
                "Raise the limit or `gepa.pipeline.workers.rollout`, or name fewer rows.".to_owned(),
            )
        })
    }

    /// The field that sets a limit.
    fn field(&self, dimension: Dimension) -> &'static str {
        let gepa = &self.config.gepa;
        match dimension {
            Dimension::TrainRollouts if gepa.max_train_rollouts.is_some() => "gepa.max_train_rollouts",
            Dimension::HeldoutRollouts if gepa.max_heldout_rollouts.is_some() => "gepa.max_heldout_rollouts",
            Dimension::TrainRollouts | Dimension::HeldoutRollouts | Dimension::TotalRollouts => {
                "gepa.max_total_rollouts"
            }
            Dimension::Cost => "gepa.max_cost_usd",
            Dimension::PromptTokens => "gepa.max_prompt_tokens",
            Dimension::CompletionTokens => "gepa.max_completion_tokens",
            Dimension::TotalTokens => "gepa.max_total_tokens",
            Dimension::WallMillis => "gepa.max_time_seconds",
            Dimension::Generations => "gepa.max_generations",
        }
    }
}

fn finding(severity: Severity, code: &'static str, field: &str, message: String, hint: String) -> Diagnostic {
    Diagnostic {
        severity,
        code,
        field: field.to_owned(),
        source: "config".to_owned(),
        line: None,
        column: None,
        message,
        hint,
        excerpt: None,
    }
}

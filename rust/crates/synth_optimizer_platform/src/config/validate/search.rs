//! Rules of the search in `[gepa]`: objectives, sampling, stop rules and the pipeline.

use super::super::gepa::{
    BatchSampler, CandidateSelector, PipelineMode, Sampler, Selector, StopMetric, objective_names,
};
use super::super::tree::join;
use super::{Rules, is_blank, repeated};

pub(super) fn check(rules: &mut Rules<'_, '_>) {
    objectives(rules);
    sampling(rules);
    unused(rules);
    stop_rules(rules);
    pipeline(rules);
}

fn objectives(rules: &mut Rules<'_, '_>) {
    let config = rules.config;
    let gepa = &config.gepa;
    if gepa.selection_objective.as_deref().is_some_and(is_blank) {
        rules.error(
            "blank",
            "gepa.selection_objective",
            "`gepa.selection_objective` is blank",
            "Name an objective, or leave it out.",
        );
    }
    for (field, names) in [
        ("gepa.objective_keys", &gepa.objective_keys),
        ("gepa.objective_acceptance.protected_objectives", &gepa.objective_acceptance.protected_objectives),
    ] {
        for (index, name) in names.iter().enumerate() {
            if is_blank(name) {
                let field = format!("{field}[{index}]");
                rules.error("blank", &field, format!("`{field}` is blank"), "Name an objective.");
            }
        }
        for index in repeated(names) {
            let place = format!("{field}[{index}]");
            rules.error("duplicate", &place, format!("{:?} is named twice in `{field}`", names[index]), "Keep one.");
        }
    }
    if !rules.can_read(&["gepa.objective_keys", "gepa.selection_objective"]) {
        return;
    }
    let declared = objective_names(gepa);
    let protected = &gepa.objective_acceptance.protected_objectives;
    let places = gepa.objective_directions.keys().map(|name| (join("gepa.objective_directions", name), name)).chain(
        protected
            .iter()
            .enumerate()
            .map(|(index, name)| (format!("gepa.objective_acceptance.protected_objectives[{index}]"), name)),
    );
    for (field, name) in places {
        if !is_blank(name) && !declared.contains(name) {
            rules.error(
                "unknown_objective",
                &field,
                format!("{name:?} is not an objective of this run; declared: {}", declared.join(", ")),
                "Add it to gepa.objective_keys, or correct the name.",
            );
        }
    }
}

fn sampling(rules: &mut Rules<'_, '_>) {
    let config = rules.config;
    let gepa = &config.gepa;
    if let Some(width) = gepa.batch_sampler.epoch_width
        && width > gepa.minibatch_size
        && rules.can_read(&["gepa.minibatch_size"])
    {
        rules.error(
            "contradiction",
            "gepa.batch_sampler.epoch_width",
            format!(
                "`gepa.batch_sampler.epoch_width` ({width}) is above `gepa.minibatch_size` ({}), which would skip rows",
                gepa.minibatch_size
            ),
            "Give at most gepa.minibatch_size, or leave it out.",
        );
    }
    let field = &gepa.batch_sampler.field;
    if field.split('.').any(is_blank) {
        rules.error(
            "blank",
            "gepa.batch_sampler.field",
            format!("{field:?} is not a dotted path"),
            "Write it like metadata.difficulty.",
        );
    }
}

/// Options of a method that is not chosen. A default written out, as in a stored configuration, is not worth a word.
fn unused(rules: &mut Rules<'_, '_>) {
    let config = rules.config;
    let (selector, sampler) = (&config.gepa.candidate_selector, &config.gepa.batch_sampler);
    let (usual, usual_sampler) = (CandidateSelector::default(), BatchSampler::default());
    let options = [
        (
            "gepa.candidate_selector.epsilon",
            selector.epsilon != usual.epsilon && selector.name != Selector::EpsilonGreedy,
            "gepa.candidate_selector.name",
            "epsilon_greedy",
        ),
        (
            "gepa.candidate_selector.k",
            selector.k != usual.k && selector.name != Selector::TopKPareto,
            "gepa.candidate_selector.name",
            "top_k_pareto",
        ),
        (
            "gepa.batch_sampler.field",
            sampler.field != usual_sampler.field && sampler.name != Sampler::Stratified,
            "gepa.batch_sampler.name",
            "stratified",
        ),
    ];
    for (field, is_unused, name, word) in options {
        if is_unused && rules.can_read(&[name]) {
            rules.warn(
                "unused_option",
                field,
                format!("`{field}` has no effect, because `{name}` is not \"{word}\""),
                format!("Remove it, or choose \"{word}\"."),
            );
        }
    }
}

fn stop_rules(rules: &mut Rules<'_, '_>) {
    let config = rules.config;
    let metrics = [
        ("gepa.no_improvement_metric", config.gepa.no_improvement_metric),
        ("gepa.score_threshold_metric", config.gepa.score_threshold_metric),
    ];
    for (field, metric) in metrics {
        match metric {
            StopMetric::HeldoutScore => rules.warn(
                "heldout_metric",
                field,
                format!("`{field}` is \"heldout_score\", but held-out rows are measured once, after the search; the rule looks at train_score"),
                "Write \"train_score\".",
            ),
            StopMetric::TrainScore => {}
        }
    }
}

fn pipeline(rules: &mut Rules<'_, '_>) {
    const ADAPTIVE: &str = "gepa.pipeline.adaptive_rollout_concurrency";
    let config = rules.config;
    let pipeline = &config.gepa.pipeline;
    let adaptive = &pipeline.adaptive_rollout_concurrency;
    let [initial, least, most] = ["initial", "min", "max"].map(|name| format!("{ADAPTIVE}.{name}"));
    if adaptive.min > adaptive.initial && rules.can_read(&[&initial, &least]) {
        let field = if rules.is_given(&initial) { &initial } else { &least };
        rules.error(
            "contradiction",
            field,
            format!("`{initial}` ({}) is below `{least}` ({})", adaptive.initial, adaptive.min),
            "Keep min <= initial <= max.",
        );
    }
    if adaptive.initial > adaptive.max && rules.can_read(&[&initial, &most]) {
        let field = if rules.is_given(&most) { &most } else { &initial };
        rules.error(
            "contradiction",
            field,
            format!("`{initial}` ({}) is above `{most}` ({})", adaptive.initial, adaptive.max),
            "Keep min <= initial <= max.",
        );
    }
    for (index, code) in adaptive.overload_status_codes.iter().enumerate() {
        if !(100..=599).contains(code) {
            let field = format!("{ADAPTIVE}.overload_status_codes[{index}]");
            rules.error(
                "out_of_range",
                &field,
                format!("{code} is not an HTTP status"),
                "Give statuses from 100 to 599.",
            );
        }
    }
    let (window, proposals) = (pipeline.max_in_flight_candidates, config.gepa.proposals_per_generation);
    let fields = ["gepa.pipeline.mode", "gepa.pipeline.max_in_flight_candidates", "gepa.proposals_per_generation"];
    if pipeline.mode == PipelineMode::AsyncPipelined && window < proposals && rules.can_read(&fields) {
        let field = fields.into_iter().skip(1).find(|field| rules.is_given(field)).unwrap_or(fields[0]);
        rules.warn(
            "narrow_window",
            field,
            format!(
                "`gepa.pipeline.max_in_flight_candidates` ({window}) is below `gepa.proposals_per_generation` ({proposals}), \
                 so one generation at a time is in flight"
            ),
            format!("Give at least {proposals} to let generations overlap."),
        );
    }
}

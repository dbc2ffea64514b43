//! Rules of the search in `[gepa]`: objectives, sampling, stop rules and the pipeline.

use super::super::findings::Code;
use super::super::gepa::{
    BatchSampler, CandidateSelector, PipelineMode, Sampler, Selector, StopMetric, objective_names,
};
use super::super::tree::join;
use super::{Rules, is_blank};

pub(super) fn check(rules: &mut Rules<'_, '_>) {
    objectives(rules);
    sampling(rules);
    unused(rules);
    stop_rules(rules);
    pipeline(rules);
}

/// Objectives that are spoken of and not declared.
fn objectives(rules: &mut Rules<'_, '_>) {
    const PROTECTED: &str = "gepa.objective_acceptance.protected_objectives";
    let gepa = &rules.config.gepa;
    if !rules.can_read(&["gepa.objective_keys", "gepa.selection_objective"]) {
        return;
    }
    let declared = objective_names(gepa);
    let directed = gepa.objective_directions.keys().map(|name| (join("gepa.objective_directions", name), name));
    let protected = gepa.objective_acceptance.protected_objectives.iter().enumerate();
    let protected = protected.map(|(index, name)| (format!("{PROTECTED}[{index}]"), name));
    for (field, name) in directed.chain(protected) {
        rules.add_if(
            !is_blank(name) && !declared.contains(name),
            Code::UnknownObjective,
            &field,
            format!("{name:?} is not an objective of this run; declared: {}", declared.join(", ")),
            "Add it to gepa.objective_keys, or correct the name.",
        );
    }
}

fn sampling(rules: &mut Rules<'_, '_>) {
    let (size, sampler) = (rules.config.gepa.minibatch_size, &rules.config.gepa.batch_sampler);
    let width = sampler.epoch_width.unwrap_or_default();
    rules.add_if(
        width > size && rules.can_read(&["gepa.minibatch_size"]),
        Code::Contradiction,
        "gepa.batch_sampler.epoch_width",
        format!(
            "`gepa.batch_sampler.epoch_width` ({width}) is above `gepa.minibatch_size` ({size}), which would skip rows"
        ),
        "Give at most gepa.minibatch_size, or leave it out.",
    );
    rules.add_if(
        sampler.field.split('.').any(is_blank),
        Code::Blank,
        "gepa.batch_sampler.field",
        format!("{:?} is not a dotted path", sampler.field),
        "Write it like metadata.difficulty.",
    );
}

/// Options of a method that is not chosen. A default written out, as in a stored configuration, is not worth a word.
fn unused(rules: &mut Rules<'_, '_>) {
    let (selector, sampler) = (&rules.config.gepa.candidate_selector, &rules.config.gepa.batch_sampler);
    let (usual, usual_sampler) = (CandidateSelector::default(), BatchSampler::default());
    let is_epsilon = selector.name == Selector::EpsilonGreedy;
    let is_top_k = selector.name == Selector::TopKPareto;
    let is_stratified = sampler.name == Sampler::Stratified;
    let options = [
        ("candidate_selector", "epsilon", selector.epsilon != usual.epsilon && !is_epsilon, "epsilon_greedy"),
        ("candidate_selector", "k", selector.k != usual.k && !is_top_k, "top_k_pareto"),
        ("batch_sampler", "field", sampler.field != usual_sampler.field && !is_stratified, "stratified"),
    ];
    for (section, option, is_unused, word) in options {
        let (field, name) = (format!("gepa.{section}.{option}"), format!("gepa.{section}.name"));
        rules.add_if(
            is_unused && rules.can_read(&[&name]),
            Code::UnusedOption,
            &field,
            format!("`{field}` has no effect, because `{name}` is not \"{word}\""),
            format!("Remove it, or choose \"{word}\"."),
        );
    }
}

fn stop_rules(rules: &mut Rules<'_, '_>) {
    let gepa = &rules.config.gepa;
    let metrics = [
        ("gepa.no_improvement_metric", gepa.no_improvement_metric),
        ("gepa.score_threshold_metric", gepa.score_threshold_metric),
    ];
    for (field, metric) in metrics {
        rules.add_if(
            metric == StopMetric::HeldoutScore,
            Code::HeldoutMetric,
            field,
            format!("`{field}` is \"heldout_score\", but held-out rows are measured once, after the search; the rule looks at train_score"),
            "Write \"train_score\".",
        );
    }
}

fn pipeline(rules: &mut Rules<'_, '_>) {
    const ADAPTIVE: &str = "gepa.pipeline.adaptive_rollout_concurrency";
    let pipeline = &rules.config.gepa.pipeline;
    let adaptive = &pipeline.adaptive_rollout_concurrency;
    let [initial, least, most] = ["initial", "min", "max"].map(|name| format!("{ADAPTIVE}.{name}"));
    rules.add_if(
        adaptive.min > adaptive.initial && rules.can_read(&[&initial, &least]),
        Code::Contradiction,
        if rules.is_given(&initial) { &initial } else { &least },
        format!("`{initial}` ({}) is below `{least}` ({})", adaptive.initial, adaptive.min),
        "Keep min <= initial <= max.",
    );
    rules.add_if(
        adaptive.initial > adaptive.max && rules.can_read(&[&initial, &most]),
        Code::Contradiction,
        if rules.is_given(&most) { &most } else { &initial },
        format!("`{initial}` ({}) is above `{most}` ({})", adaptive.initial, adaptive.max),
        "Keep min <= initial <= max.",
    );
    for (index, code) in adaptive.overload_status_codes.iter().enumerate() {
        let field = format!("{ADAPTIVE}.overload_status_codes[{index}]");
        let hint = "Give statuses from 100 to 599.";
        let is_status = (100..=599).contains(code);
        rules.add_if(!is_status, Code::OutOfRange, &field, format!("{code} is not an HTTP status"), hint);
    }
    let (window, proposals) = (pipeline.max_in_flight_candidates, rules.config.gepa.proposals_per_generation);
    let fields = ["gepa.pipeline.mode", "gepa.pipeline.max_in_flight_candidates", "gepa.proposals_per_generation"];
    rules.add_if(
        pipeline.mode == PipelineMode::AsyncPipelined && window < proposals && rules.can_read(&fields),
        Code::NarrowWindow,
        fields.into_iter().skip(1).find(|field| rules.is_given(field)).unwrap_or(fields[0]),
        format!(
            "`gepa.pipeline.max_in_flight_candidates` ({window}) is below `gepa.proposals_per_generation` ({proposals}), \
             so one generation at a time is in flight"
        ),
        format!("Give at least {proposals} to let generations overlap."),
    );
}

//! Rules about `[gepa]`: objectives, sampling, stop rules, the pipeline, estimates that limits require, and limits that are
//! too small for the first evaluation.

use super::super::gepa::{BatchSampler, CandidateSelector, Sampler, Selector, StopMetric, objective_names};
use super::super::pools::{effective_caps, pools, rows_are_known};
use super::super::proposer::ProposerBackend;
use super::super::report::Code;
use super::super::search::initial_rollouts;
use super::super::tree::join;
use super::{Validator, is_blank};

/// The fields that decide which rows a run evaluates.
const ROW_FIELDS: [&str; 12] = [
    "dataset",
    "dataset.train_seeds",
    "dataset.heldout_seeds",
    "taskset",
    "taskset.train_ids",
    "taskset.heldout_ids",
    "gepa.seed_pools.pareto_eval",
    "gepa.seed_pools.minibatch",
    "gepa.seed_pools.validation",
    "gepa.task_pools.pareto",
    "gepa.task_pools.minibatch",
    "gepa.task_pools.heldout",
];

pub(super) fn check(rules: &mut Validator<'_, '_>) {
    objectives(rules);
    sampling(rules);
    warn_unused_options(rules);
    stop_rules(rules);
    pipeline(rules);
    unused_workers(rules);
    require_estimates(rules);
    time(rules);
    rollouts(rules);
}

/// Checks that every named objective is declared.
fn objectives(rules: &mut Validator<'_, '_>) {
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

fn sampling(rules: &mut Validator<'_, '_>) {
    let (size, sampler) = (rules.config.gepa.minibatch_size, &rules.config.gepa.batch_sampler);
    let (is_set, size) = (size.is_some(), size.unwrap_or_default());
    let width = sampler.epoch_width.unwrap_or_default();
    rules.add_if(
        is_set && width > size && rules.can_read(&["gepa.minibatch_size"]),
        Code::ConflictingFields,
        "gepa.batch_sampler.epoch_width",
        format!(
            "`gepa.batch_sampler.epoch_width` ({width}) is above `gepa.minibatch_size` ({size}), so rows would be skipped"
        ),
        "Set it to at most gepa.minibatch_size, or remove it.",
    );
    let pool = pools(rules.config).minibatch.len();
    let is_known = rules.is_given("gepa.minibatch_size") && rules.can_read(&ROW_FIELDS) && pool > 0;
    rules.add_if(
        is_known && size as usize > pool,
        Code::MinibatchTooLarge,
        "gepa.minibatch_size",
        format!(
            "`gepa.minibatch_size` is {size}, but minibatches are drawn from {pool} train rows, so each has all of them"
        ),
        format!("Set it below {pool}, so that screening a proposal costs less than its full evaluation."),
    );
    rules.add_if(
        sampler.field.split('.').any(is_blank),
        Code::Blank,
        "gepa.batch_sampler.field",
        format!("{:?} is not a dotted path", sampler.field),
        "Write it like metadata.difficulty.",
    );
}

/// Warns about options of a method that is not chosen. Ignores options with their default value, as in a stored
/// configuration.
fn warn_unused_options(rules: &mut Validator<'_, '_>) {
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

fn stop_rules(rules: &mut Validator<'_, '_>) {
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
            format!("`{field}` is \"heldout_score\", but held-out rows are evaluated once, after the search; the rule uses train_score"),
            "Write \"train_score\".",
        );
    }
}

fn pipeline(rules: &mut Validator<'_, '_>) {
    const ADAPTIVE: &str = "gepa.pipeline.adaptive_rollout_concurrency";
    let pipeline = &rules.config.gepa.pipeline;
    let adaptive = &pipeline.adaptive_rollout_concurrency;
    let [initial, least, most] = ["initial", "min", "max"].map(|name| format!("{ADAPTIVE}.{name}"));
    rules.add_if(
        adaptive.min > adaptive.initial && rules.can_read(&[&initial, &least]),
        Code::ConflictingFields,
        if rules.is_given(&initial) { &initial } else { &least },
        format!("`{initial}` ({}) is below `{least}` ({})", adaptive.initial, adaptive.min),
        "Keep min <= initial <= max.",
    );
    let top = adaptive.max.unwrap_or(u32::MAX);
    rules.add_if(
        adaptive.initial > top && rules.can_read(&[&initial, &most]),
        Code::ConflictingFields,
        &most,
        format!("`{initial}` ({}) is above `{most}` ({top})", adaptive.initial),
        "Keep min <= initial <= max.",
    );
    for (index, code) in adaptive.overload_status_codes.iter().enumerate() {
        let field = format!("{ADAPTIVE}.overload_status_codes[{index}]");
        let hint = "Use statuses from 100 to 599.";
        let is_status = (100..=599).contains(code);
        rules.add_if(!is_status, Code::OutOfRange, &field, format!("{code} is not an HTTP status"), hint);
    }
    let (window, proposals) = (pipeline.candidates_in_flight(), rules.config.gepa.proposals_per_generation);
    let fields = ["gepa.pipeline.mode", "gepa.pipeline.max_in_flight_candidates", "gepa.proposals_per_generation"];
    rules.add_if(
        !pipeline.is_serial() && window < proposals && rules.can_read(&fields),
        Code::WindowTooSmall,
        fields.into_iter().skip(1).find(|field| rules.is_given(field)).unwrap_or(fields[0]),
        format!(
            "`gepa.pipeline.max_in_flight_candidates` ({window}) is below `gepa.proposals_per_generation` ({proposals}), \
             so generations do not overlap"
        ),
        format!("Set it to at least {proposals} so that generations overlap."),
    );
}

/// Warns about limits that keep workers from being used.
fn unused_workers(rules: &mut Validator<'_, '_>) {
    const ROLLOUT: &str = "gepa.pipeline.workers.rollout";
    const PROPOSE: &str = "gepa.pipeline.workers.propose";
    const MOST: &str = "gepa.pipeline.adaptive_rollout_concurrency.max";
    const REQUESTS: &str = "proposer.max_concurrent_requests";
    let (gepa, proposer) = (&rules.config.gepa, &rules.config.proposer);
    let (workers, used) = (gepa.pipeline.workers.rollout, gepa.pipeline.concurrent_rollouts());
    let (open, turns) = (gepa.open_generations(), gepa.proposer_turns());
    let requests = proposer.max_concurrent_requests.filter(|_| proposer.backend == ProposerBackend::OpenaiCompatible);
    rules.add_if(
        used < workers && rules.can_read(&[ROLLOUT, MOST]),
        Code::UnusedWorkers,
        MOST,
        format!("`{MOST}` ({used}) is below `{ROLLOUT}` ({workers}): at most {used} rollouts run at the same time"),
        "Leave it out: the number of workers is the limit then.",
    );
    rules.add_if(
        turns > open && rules.can_read(&[PROPOSE]),
        Code::UnusedWorkers,
        PROPOSE,
        format!("`{PROPOSE}` is {turns}, and at most {open} generations are in progress, with one proposer turn each"),
        "Leave it out, or raise `gepa.pipeline.max_in_flight_candidates` with `async_pipelined`.",
    );
    if let Some(requests) = requests.filter(|requests| *requests < turns.min(open)) {
        rules.add_if(
            rules.can_read(&[REQUESTS, PROPOSE]),
            Code::UnusedWorkers,
            REQUESTS,
            format!("`{REQUESTS}` ({requests}) is below the number of proposer turns ({})", turns.min(open)),
            "Leave it out: one request for each turn is the limit then.",
        );
    }
}

/// Checks that the time limit leaves room for one proposer turn, because a turn starts only if it can end in time.
fn time(rules: &mut Validator<'_, '_>) {
    let (timeout, limit) = (rules.config.proposer.timeout_seconds, rules.config.gepa.max_time_seconds);
    if let Some(limit) = limit.filter(|limit| *limit <= timeout)
        && rules.can_read(&["proposer.timeout_seconds"])
    {
        let message = format!("`gepa.max_time_seconds` is {limit}; one proposer turn may take {timeout} seconds");
        let hint = "Raise the limit, or lower `proposer.timeout_seconds`.";
        rules.add(Code::TimeTooShort, "gepa.max_time_seconds", message, hint);
    }
}

/// Checks that a time limit has its estimate. Other limits learn what a call uses from the first calls.
fn require_estimates(rules: &mut Validator<'_, '_>) {
    const ESTIMATE: &str = "gepa.rollout_estimated_wall_seconds";
    let gepa = &rules.config.gepa;
    let is_missing = gepa.max_time_seconds.is_some() && gepa.rollout_estimated_wall_seconds.is_none();
    rules.add_if(
        is_missing && rules.can_read(&[ESTIMATE]),
        Code::EstimateRequired,
        "gepa.max_time_seconds",
        format!("`gepa.max_time_seconds` is set but `{ESTIMATE}` is not"),
        format!("Set `{ESTIMATE}` to the maximum of one rollout."),
    );
}

/// Checks that the rollout limits cover the initial candidate on the train rows and once on the held-out rows.
fn rollouts(rules: &mut Validator<'_, '_>) {
    let caps = ["gepa.max_total_rollouts", "gepa.max_train_rollouts", "gepa.max_heldout_rollouts"];
    if !rules.can_read(&ROW_FIELDS) || !rules.can_read(&caps) || !rows_are_known(rules.config) {
        return;
    }
    let caps = effective_caps(rules.config);
    let pools = pools(rules.config);
    let (train, heldout) = (initial_rollouts(rules.config, pools.pareto.len()), pools.heldout.len() as u64);
    let fits = |rollouts: u64, cap: u32| rollouts <= cap.into();
    if let Some(total) = caps.total {
        let all = train + heldout;
        rules.add_if(
            !fits(all, total),
            Code::BudgetTooSmall,
            "gepa.max_total_rollouts",
            format!("`gepa.max_total_rollouts` is {total}, but evaluating the initial candidate alone requires {all} rollouts: {train} train and {heldout} held-out"),
            format!("Set it to at least {all}, or use fewer rows."),
        );
        return;
    }
    let halves = [
        ("gepa.max_train_rollouts", "train", caps.train, train),
        ("gepa.max_heldout_rollouts", "held-out", caps.heldout, heldout),
    ];
    for (half, kind, cap, rollouts) in halves {
        let field = if rules.is_given(half) { half } else { "gepa.max_total_rollouts" };
        rules.add_if(
            !fits(rollouts, cap),
            Code::BudgetTooSmall,
            field,
            format!("`{field}` allows {cap} {kind} rollouts, but evaluating one candidate requires {rollouts}"),
            format!("Set it to at least {rollouts}, or use fewer rows."),
        );
    }
}

"""THE list of metrics: what each one means, and which metric of gepa's own trackers it mirrors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricName:
    """One metric."""

    name: str
    about: str
    is_of_gepa: bool
    """Whether gepa's trackers have the same metric under the same name."""


METRICS = (
    MetricName("total_metric_calls", "rollouts on train rows so far", True),
    MetricName("iteration", "the generation that begins, from 1", True),
    MetricName("val_program_average", "train score of the candidate that was fully evaluated", True),
    MetricName("val_evaluated_count_new_program", "rows that this score rests on", True),
    MetricName("val_total_count", "rows of the Pareto pool", True),
    MetricName("best_score_on_valset", "train score of the best candidate so far", True),
    MetricName("valset_pareto_front_agg", "mean over rows of the best value that any candidate has there", True),
    MetricName("subsample/before", "sum of the parent's scores on the rows of a screening", True),
    MetricName("subsample/after", "sum of the candidate's scores on these rows", True),
    MetricName("best_valset_score", "train score of the returned candidate, at the end", True),
    MetricName("total_iterations", "generations, at the end", True),
    MetricName("total_candidates", "candidates that were fully evaluated, the seed included", True),
    MetricName("minibatch/before", "mean of the parent's scores on the rows of a screening", False),
    MetricName("minibatch/after", "mean of the candidate's scores on these rows", False),
    MetricName("frontier_size", "candidates on the frontier", False),
    MetricName("candidates/registered", "candidates that were proposed and passed every check, and the seed", False),
    MetricName("candidates/accepted", "candidates that became the best one", False),
    MetricName("candidates/rejected", "candidates that lost a comparison", False),
    MetricName("candidates/deferred", "candidates that could not be judged", False),
    MetricName("proposals/refused", "proposals that broke a rule and cost no rollout", False),
    MetricName("proposals/duplicate", "proposals that repeat a known candidate", False),
    MetricName("proposer/turns", "answers and failures of the proposer", False),
    MetricName("proposer/failed_turns", "failures among them", False),
    MetricName("rollouts/heldout", "rollouts on held-out rows so far", False),
    MetricName("rollouts/failed", "rollouts that gave no score, retried ones included", False),
    MetricName("tokens/prompt", "tokens sent, as far as they were told", False),
    MetricName("tokens/completion", "tokens received, as far as they were told", False),
    MetricName("tokens/total", "all tokens, as far as they were told", False),
    MetricName("calls/paid", "calls of container and proposer that were not answered by the cache", False),
    MetricName("calls/cached", "calls that the cache answered", False),
    MetricName("cost_usd", "what was paid; absent while unknown, NaN once when a known sum becomes unknown", False),
    MetricName("train/seed", "train score of the seed, at the end", False),
    MetricName("train/best", "train score of the returned candidate, at the end", False),
    MetricName("train/gain", "paired difference of both", False),
    MetricName("train/gain_low", "where its 95 % interval begins", False),
    MetricName("train/gain_high", "where it ends", False),
    MetricName("heldout/seed", "held-out score of the seed, at the end", False),
    MetricName("heldout/best", "held-out score of the returned candidate, at the end", False),
    MetricName("heldout/gain", "paired difference of both", False),
    MetricName("heldout/gain_low", "where its 95 % interval begins", False),
    MetricName("heldout/gain_high", "where it ends", False),
    MetricName("sequence_number", "the last event that the tracker has everything of", False),
)
"""Every metric that is ever given."""

"""Runs as OpenTelemetry spans, exported into memory."""

from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from synth_optimizers.errors import CancelledError, ConfigError, ProposerError
from synth_optimizers.events import RunEvent
from synth_optimizers.tracking import OpenTelemetrySubscriber
from synth_optimizers.tracking.otel import provider_from_environment

OURS = "synth_optimizers."


class SpanCollector:
    """A provider that collects its spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """Return the ended spans in the order of their start."""
        found = [span for span in self.exporter.get_finished_spans() if name in ("", span.name)]
        return sorted(found, key=lambda span: span.start_time or 0)


@pytest.fixture
def traced() -> SpanCollector:
    return SpanCollector()


def feed(subscriber: OpenTelemetrySubscriber, events: list[RunEvent]) -> None:
    for event in events:
        subscriber.on_event(event)


def of(span: ReadableSpan, name: str) -> Any:  # noqa: ANN401 (any attribute value)
    return (span.attributes or {}).get(f"{OURS}{name}")


def nanos(event: RunEvent) -> int:
    return round(datetime.fromisoformat(event.ts).timestamp() * 1000) * 1_000_000


def test_proposals_and_evaluations_are_children_of_the_run(traced: SpanCollector, finished: list[RunEvent]) -> None:
    subscriber = OpenTelemetrySubscriber(tracer_provider=traced.provider)
    feed(subscriber, finished)
    subscriber.close(None, None)
    names = Counter(span.name for span in traced.spans())
    assert names == {"gepa.run": 1, "gepa.proposal": 5, "gepa.evaluation": 13}
    [run] = traced.spans("gepa.run")
    assert run.parent is None
    assert (run.start_time, run.end_time) == (nanos(finished[0]), nanos(finished[-1]))
    for span in traced.spans("gepa.proposal") + traced.spans("gepa.evaluation"):
        assert span.parent is not None
        assert (span.parent.span_id, span.parent.trace_id) == (run.context.span_id, run.context.trace_id)
        assert of(span, "run_id") == "finished-run"
        assert nanos(finished[0]) <= (span.start_time or 0) <= (span.end_time or 0) <= nanos(finished[-1])
    assert {span.status.status_code for span in traced.spans()} == {StatusCode.UNSET}


def test_an_evaluation_lasts_from_its_request_to_its_completion(
    traced: SpanCollector, finished: list[RunEvent]
) -> None:
    subscriber = OpenTelemetrySubscriber(tracer_provider=traced.provider)
    feed(subscriber, finished)
    subscriber.close(None, None)
    begun = [
        event
        for event in finished
        if event.type == "rollout.requested" and event.fields["evaluation"] == event.fields["first_call_id"]
    ]
    spans = traced.spans("gepa.evaluation")
    assert [span.start_time for span in spans] == [nanos(event) for event in begun]
    stages = Counter(of(span, "stage") for span in spans)
    assert stages == {"seed_full_train": 1, "candidate_minibatch": 5, "candidate_full_train": 5, "heldout": 2}
    seed = spans[0]
    completed = next(event for event in finished if event.type == "candidate.evaluated")
    assert seed.end_time == nanos(completed)
    assert (of(seed, "score"), of(seed, "rows"), of(seed, "failed_rows")) == (pytest.approx(1 / 6), 6, 0)
    assert "synth_optimizers.generation" not in (seed.attributes or {})
    heldout = {of(span, "candidate_id"): of(span, "score") for span in spans if of(span, "stage") == "heldout"}
    assert sorted(heldout.values()) == pytest.approx([1 / 3, 2 / 3])


def test_a_retry_stays_within_its_evaluation(traced: SpanCollector, finished: list[RunEvent]) -> None:
    subscriber = OpenTelemetrySubscriber(tracer_provider=traced.provider)
    feed(subscriber, finished)
    subscriber.close(None, None)
    retried = [span for span in traced.spans("gepa.evaluation") if span.events]
    assert [[event.name for event in span.events] for span in retried] == [["rollout.failed", "rollout.requested"]] * 2
    failure = retried[0].events[0].attributes or {}
    assert (failure["row_id"], failure["class"], failure["retried"]) == ("train:2", "failed", True)
    reported = next(event for event in finished if event.type == "rollout.failed")
    assert retried[0].events[0].timestamp == nanos(reported)


def test_a_proposal_span_has_models_and_usage(traced: SpanCollector, finished: list[RunEvent]) -> None:
    subscriber = OpenTelemetrySubscriber(tracer_provider=traced.provider)
    feed(subscriber, finished)
    subscriber.close(None, None)
    turns = traced.spans("gepa.proposal")
    assert [of(turn, "is_repair") for turn in turns] == [False, True, False, False, True]
    assert [of(turn, "proposals") for turn in turns] == [1, 2, 1, 1, 2]
    known = turns[0].attributes or {}
    assert (known["gen_ai.request.model"], known["gen_ai.response.model"]) == ("scripted", "scripted")
    assert (known["gen_ai.usage.input_tokens"], known["gen_ai.usage.output_tokens"]) == (206, 30)
    assert of(turns[0], "cost_usd") == 0.001


def test_the_run_span_has_scores_and_omits_an_unknown_cost(traced: SpanCollector, finished: list[RunEvent]) -> None:
    subscriber = OpenTelemetrySubscriber(tracer_provider=traced.provider)
    feed(subscriber, finished)
    subscriber.close(None, None)
    [run] = traced.spans("gepa.run")
    assert of(run, "outcome") == "completed"
    assert of(run, "score.heldout.best") == pytest.approx(2 / 3)
    assert (of(run, "rollouts.train"), of(run, "rollouts.heldout"), of(run, "total_tokens")) == (38, 6, 3396)
    assert of(run, "cost_usd") is None
    accepted = [event for event in run.events if event.name == "candidate.accepted"]
    assert len(accepted) == 4


def test_a_failed_run_has_the_error_status(traced: SpanCollector, failed: list[RunEvent]) -> None:
    subscriber = OpenTelemetrySubscriber(tracer_provider=traced.provider)
    feed(subscriber, failed)
    error = ProposerError("synth_optimizer_proposer_error: 3 turns in a row returned no valid proposal")
    subscriber.close(None, error)
    [run] = traced.spans("gepa.run")
    assert run.status.status_code is StatusCode.ERROR
    assert "3 turns in a row" in (run.status.description or "")
    assert (run.attributes or {})["error.type"] == "synth_optimizer_proposer_error"
    assert [event.name for event in run.events][-1] == "exception"
    assert of(run, "cost_usd") == 0.0060396
    turns = traced.spans("gepa.proposal")
    assert [turn.status.status_code for turn in turns] == [StatusCode.ERROR] * 6
    assert {turn.status.description for turn in turns} == {"the scripted proposer was told to fail"}
    [evaluation] = traced.spans("gepa.evaluation")
    assert evaluation.status.status_code is StatusCode.UNSET


def test_an_evaluation_without_a_score_has_the_error_status(traced: SpanCollector, failed: list[RunEvent]) -> None:
    def unscored(event: RunEvent) -> RunEvent:
        is_seed = event.type == "candidate.evaluated"
        return replace(event, fields={**event.fields, "failed": 6, "score": None}) if is_seed else event

    subscriber = OpenTelemetrySubscriber(tracer_provider=traced.provider)
    feed(subscriber, [unscored(event) for event in failed])
    [evaluation] = traced.spans("gepa.evaluation")
    assert evaluation.status.status_code is StatusCode.ERROR
    assert of(evaluation, "failed_rows") == 6


def test_open_spans_of_an_interrupted_run_end_and_the_resumed_trace_is_linked(
    traced: SpanCollector, resumed: list[RunEvent]
) -> None:
    subscriber = OpenTelemetrySubscriber(tracer_provider=traced.provider)
    feed(subscriber, resumed[:45])
    subscriber.close(None, CancelledError("synth_optimizer_cancelled: interrupted"))
    [first] = traced.spans("gepa.run")
    assert (of(first, "outcome"), first.status.status_code) == ("interrupted", StatusCode.UNSET)
    cut = [span for span in traced.spans("gepa.evaluation") if of(span, "outcome") == "interrupted"]
    assert [of(span, "stage") for span in cut] == ["candidate_full_train"] * 2
    assert {span.end_time for span in cut} == {nanos(resumed[44])}
    before = len(traced.spans())
    feed(subscriber, resumed)
    subscriber.close(None, None)
    second = traced.spans("gepa.run")[1]
    assert second.links[0].context.span_id == first.context.span_id
    assert (second.start_time, of(second, "outcome")) == (nanos(resumed[45]), "completed")
    # Two turns, eight evaluations and the run; interrupted spans are not exported again.
    assert len(traced.spans()) - before == 11


def test_the_run_is_a_child_of_the_current_span(traced: SpanCollector, failed: list[RunEvent]) -> None:
    with traced.provider.get_tracer("program").start_as_current_span("experiment") as around:
        subscriber = OpenTelemetrySubscriber(tracer_provider=traced.provider)
    feed(subscriber, failed)
    subscriber.close(None, None)
    [run] = traced.spans("gepa.run")
    assert run.parent is not None
    assert run.parent.span_id == around.get_span_context().span_id


def test_spans_go_to_the_global_provider(
    traced: SpanCollector, failed: list[RunEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: traced.provider)
    subscriber = OpenTelemetrySubscriber()
    feed(subscriber, failed)
    subscriber.close(None, None)
    assert len(traced.spans("gepa.run")) == 1


def test_a_missing_exporter_is_reported_before_the_run() -> None:
    with pytest.raises(ConfigError, match="has no exporter") as refusal:
        OpenTelemetrySubscriber()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in refusal.value.hint


def test_the_environment_names_the_exporter() -> None:
    provider = provider_from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    assert isinstance(provider, TracerProvider)
    assert provider.resource.attributes["service.name"] == "synth-optimizers"
    [processor] = provider._active_span_processor._span_processors
    assert type(processor.span_exporter).__name__ == "OTLPSpanExporter"  # type: ignore[attr-defined]
    provider.shutdown()


def test_an_unknown_exporter_is_refused() -> None:
    with pytest.raises(ConfigError, match="'smoke'") as refusal:
        provider_from_environment({"OTEL_TRACES_EXPORTER": "smoke"})
    assert "console" in refusal.value.hint

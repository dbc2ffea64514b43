"""Converts a run into OpenTelemetry spans: the run, its proposer turns and its evaluations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from synth_optimizers.errors import ConfigError, error_of
from synth_optimizers.events import RunEvent
from synth_optimizers.extras import install, load
from synth_optimizers.result import GepaRunResult
from synth_optimizers.tracking.forward import outcome
from synth_optimizers.tracking.metrics import Feed, epoch_micros

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, TracerProvider

_load = partial(load, extra="otel", purpose="tracking with otel")

_EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_GROUP = "opentelemetry_traces_exporter"
_SERVICE = "OTEL_SERVICE_NAME"
_PREFIX = "synth_optimizers."
_USAGE = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cost_usd": f"{_PREFIX}cost_usd",
}
_RUN_SPAN_EVENTS = (
    "candidate.accepted",
    "gepa.stop",
    "run.resumed",
    "run.interrupted",
    "budget.refused",
    "gepa.cancel.requested",
)
"""Events that are attached to the span of the run."""


class OpenTelemetrySubscriber:
    """Makes a span `gepa.run` per run with child spans: `gepa.proposal` per proposer turn, `gepa.evaluation` per batch.

    An evaluation lasts from `rollout.requested` to the event that completes it, including retries. Times are those of
    the events. Spans have the attribute `synth_optimizers.run_id`; the run's span is a child of the span that is
    current when the subscriber is made.

    Spans go to `tracer_provider`, else to the global provider of the program, else to the exporter that
    `OTEL_TRACES_EXPORTER` or `OTEL_EXPORTER_OTLP_ENDPOINT` names. A run that is resumed in another process becomes a
    second trace, which covers the whole run. In the same process, the second trace covers the rest and links to the
    first.
    """

    def __init__(self, *, tracer_provider: TracerProvider | None = None) -> None:
        self._trace = _load("opentelemetry.trace", "Link")
        self._parent = _load("opentelemetry.context", "get_current").get_current()
        self._provider = tracer_provider or _global_provider()
        self._tracer = self._provider.get_tracer("synth_optimizers")
        self._feed: Feed | None = None
        self._run: Span | None = None
        self._previous_span: Span | None = None
        self._open: dict[int, Span] = {}
        """Open spans of proposer turns and evaluations, by the number of their first call."""
        self._evaluation_of: dict[int, int] = {}
        self._outcome = "interrupted"
        self._now = 0

    def on_event(self, event: RunEvent) -> None:
        """Start, extend or end the span that the event belongs to."""
        if self._feed is None or not self._feed.contains(event):
            self.close(None, None)
            self._feed, self._previous_span, self._outcome = Feed.of(event), None, "interrupted"
        if not self._feed.advance(event):
            return
        self._now = epoch_micros(event.ts) * 1000
        if self._run is None:
            links = [self._trace.Link(self._previous_span.get_span_context())] if self._previous_span else []
            self._run = self._start_span("gepa.run", self._parent, {f"{_PREFIX}run_id": event.run_id}, links)
        self._apply(event, self._run)

    def close(self, result: GepaRunResult | None, error: BaseException | None) -> None:
        """End all open spans at the time of the last event, and flush them."""
        if self._run is None:
            return
        for span in self._open.values():
            span.set_attribute(f"{_PREFIX}outcome", "interrupted")
            span.end(self._now)
        self._open.clear()
        self._evaluation_of.clear()
        ended = outcome(self._outcome, error)
        self._run.set_attribute(f"{_PREFIX}outcome", ended)
        if result is not None and result.cost_usd is not None:
            self._run.set_attribute(f"{_PREFIX}cost_usd", result.cost_usd)
        if ended == "failed" and error is not None:
            self._run.record_exception(error, timestamp=self._now)
            self._set_failed(self._run, str(error))
        self._run.end(self._now)
        self._run, self._previous_span = None, self._run
        flush = getattr(self._provider, "force_flush", None)
        if flush is not None:
            flush()

    def _apply(self, event: RunEvent, run: Span) -> None:
        fields = event.fields
        match event.type:
            case "gepa.run.started":
                run.set_attributes(
                    {f"{_PREFIX}{name}": fields[name] for name in ("algorithm", "seed", "config_digest")}
                )
            case "rollout.requested":
                self._start_evaluation(event, run)
            case "rollout.finished":
                self._evaluation_of.pop(fields["call_id"], None)
            case "rollout.failed":
                self._add_failed_rollout(fields)
            case (
                "candidate.evaluated"
                | "parent_minibatch_reference.completed"
                | "candidate.minibatch_evaluated"
                | "candidate.full_train_evaluated"
                | "heldout.completed"
            ):
                self._end_evaluation(fields)
            case "proposer.started":
                known = {f"{_PREFIX}{name}": fields[name] for name in ("generation", "attempt", "proposal_count")}
                known[f"{_PREFIX}is_repair"] = bool(fields["problems"])
                self._open[fields["call_id"]] = self._start_child_span(run, "gepa.proposal", event.run_id, known)
            case "proposer.completed" | "proposer.failed":
                self._end_proposal(fields)
            case "gepa.run.finished" | "gepa.run.failed" | "gepa.run.cancelled":
                self._end_run(event, run)
            case event_type if event_type in _RUN_SPAN_EVENTS:
                run.add_event(event_type, {"message": event.message}, timestamp=self._now)

    def _start_evaluation(self, event: RunEvent, run: Span) -> None:
        fields = event.fields
        number, rows = fields["evaluation"], len(fields["row_ids"])
        if number in self._open:
            # A failed rollout is retried within its evaluation.
            attempt = {"rows": rows, "attempt": fields["attempt"]}
            self._open[number].add_event("rollout.requested", attempt, timestamp=self._now)
        elif number == fields["first_call_id"]:
            known = {f"{_PREFIX}{name}": fields[name] for name in ("candidate_id", "stage", "generation")}
            self._open[number] = self._start_child_span(run, "gepa.evaluation", event.run_id, known)
        first = fields["first_call_id"]
        self._evaluation_of.update(dict.fromkeys(range(first, first + rows), number))

    def _add_failed_rollout(self, fields: dict[str, Any]) -> None:
        span = self._open.get(self._evaluation_of.pop(fields["call_id"], -1))
        if span is not None:
            known = {name: fields[name] for name in ("row_id", "class", "message", "retried")}
            span.add_event("rollout.failed", known, timestamp=self._now)

    def _end_evaluation(self, fields: dict[str, Any]) -> None:
        span = self._open.pop(fields["evaluation"], None)
        if span is None:
            return
        score = fields["score"]
        span.set_attributes({f"{_PREFIX}rows": fields["rows"], f"{_PREFIX}failed_rows": fields["failed"]})
        if score is None:
            self._set_failed(span, "no score")
        else:
            span.set_attributes({f"{_PREFIX}score": score["mean"], f"{_PREFIX}score_rows": score["n"]})
        span.end(self._now)

    def _end_proposal(self, fields: dict[str, Any]) -> None:
        span = self._open.pop(fields["call_id"], None)
        if span is None:
            return
        usage = {key: fields["usage"].get(name) for name, key in _USAGE.items()}
        span.set_attributes({key: value for key, value in usage.items() if value is not None})
        span.set_attribute(f"{_PREFIX}cached", fields["cached"])
        if "class" in fields:
            span.set_attribute("error.type", fields["class"])
            self._set_failed(span, fields["message"])
        else:
            span.set_attribute(f"{_PREFIX}proposals", fields["proposal_count"])
            models = {"gen_ai.request.model": "requested_model", "gen_ai.response.model": "effective_model"}
            span.set_attributes({key: fields[name] for key, name in models.items()})
        span.end(self._now)

    def _end_run(self, event: RunEvent, run: Span) -> None:
        fields = event.fields
        self._outcome = event.type.removeprefix("gepa.run.").replace("finished", "completed")
        totals = {"rollouts.train": fields["rollouts"]["train"], "rollouts.heldout": fields["rollouts"]["heldout"]}
        bill = {name: fields["bill"][name] for name in ("total_tokens", "cost_usd")}
        known = {**totals, **bill, "best_candidate_id": fields["best_candidate_id"]}
        known.update(
            {f"score.{found['split']}.{found['role']}": found["score"]["mean"] for found in fields.get("scores", [])}
        )
        run.set_attributes({f"{_PREFIX}{name}": value for name, value in known.items() if value is not None})
        if self._outcome == "failed":
            run.set_attribute("error.type", fields["error_code"])
            self._set_failed(run, fields["message"])

    def _start_span(self, name: str, parent: Context, known: dict[str, Any], links: Sequence[Link] = ()) -> Span:
        attributes = {key: value for key, value in known.items() if value is not None}
        return self._tracer.start_span(name, parent, attributes=attributes, links=links, start_time=self._now)

    def _start_child_span(self, run: Span, name: str, run_id: str, known: dict[str, Any]) -> Span:
        parent = self._trace.set_span_in_context(run, self._parent)
        return self._start_span(name, parent, {f"{_PREFIX}run_id": run_id, **known})

    def _set_failed(self, span: Span, why: str) -> None:
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, why))


def _global_provider(environ: Mapping[str, str] = os.environ) -> TracerProvider:
    """Return the provider that the program has set, or a new one with the exporter of the environment."""
    trace = _load("opentelemetry.trace", "ProxyTracerProvider")
    provider: TracerProvider = trace.get_tracer_provider()
    return provider_from_environment(environ) if isinstance(provider, trace.ProxyTracerProvider) else provider


def provider_from_environment(environ: Mapping[str, str]) -> TracerProvider:
    """Return a provider that exports as the standard environment variables say; raise if they name no exporter."""
    sdk = _load("opentelemetry.sdk.trace", "TracerProvider")
    export = _load("opentelemetry.sdk.trace.export", "BatchSpanProcessor")
    resources = _load("opentelemetry.sdk.resources", "Resource")
    default = "otlp" if any(environ.get(name) for name in _ENDPOINTS) else ""
    wanted = environ.get(_EXPORTER) or default
    if not wanted:
        hint = f"Set {_ENDPOINTS[0]} or {_EXPORTER}, or set a tracer provider in the program."
        raise error_of(ConfigError, "OpenTelemetry has no exporter for spans", hint)
    name = "otlp_proto_http" if wanted == "otlp" else wanted
    found = list(entry_points(group=_GROUP, name=name))
    if not found:
        known = ", ".join(sorted({entry.name for entry in entry_points(group=_GROUP)}))
        hint = f"Installed exporters: {known}. {install('otel')} installs otlp."
        raise error_of(ConfigError, f"the OpenTelemetry exporter {wanted!r} is not installed", hint)
    service = {} if environ.get(_SERVICE) else {"service.name": "synth-optimizers"}
    provider: TracerProvider = sdk.TracerProvider(resource=resources.Resource.create(service))
    provider.add_span_processor(export.BatchSpanProcessor(found[0].load()()))  # type: ignore[attr-defined]
    return provider

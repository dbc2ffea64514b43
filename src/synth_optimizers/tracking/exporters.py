"""Finds out where OpenTelemetry spans go: to the program's own provider, or to what the environment names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from synth_optimizers.tracking.packages import install, load, refused

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_GROUP = "opentelemetry_traces_exporter"
_SERVICE = "OTEL_SERVICE_NAME"


def provider_of_program(environ: Mapping[str, str] = os.environ) -> TracerProvider:
    """Return the provider that the program has set, or one of our own with the exporter of the environment."""
    trace = load("opentelemetry.trace", "ProxyTracerProvider", extra="otel")
    provider: TracerProvider = trace.get_tracer_provider()
    return own_provider(environ) if isinstance(provider, trace.ProxyTracerProvider) else provider


def own_provider(environ: Mapping[str, str]) -> TracerProvider:
    """Return a provider that exports as the standard variables say. Nothing is sent where nobody asked for it."""
    sdk = load("opentelemetry.sdk.trace", "TracerProvider", extra="otel")
    export = load("opentelemetry.sdk.trace.export", "BatchSpanProcessor", extra="otel")
    resources = load("opentelemetry.sdk.resources", "Resource", extra="otel")
    default = "otlp" if any(environ.get(name) for name in _ENDPOINTS) else ""
    wanted = environ.get(_EXPORTER) or default
    if not wanted:
        hint = f"Set {_ENDPOINTS[0]} or {_EXPORTER}, or set a tracer provider in the program."
        raise refused("OpenTelemetry has nowhere to send spans to", hint)
    name = "otlp_proto_http" if wanted == "otlp" else wanted
    found = list(entry_points(group=_GROUP, name=name))
    if not found:
        known = ", ".join(sorted({entry.name for entry in entry_points(group=_GROUP)}))
        hint = f"Exporters that are installed: {known}. {install('otel')} brings otlp."
        raise refused(f"there is no OpenTelemetry exporter {wanted!r}", hint)
    service = {} if environ.get(_SERVICE) else {"service.name": "synth-optimizers"}
    provider: TracerProvider = sdk.TracerProvider(resource=resources.Resource.create(service))
    provider.add_span_processor(export.BatchSpanProcessor(found[0].load()()))  # type: ignore[attr-defined]
    return provider

"""Every route of the service, and a check of its error answers."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from cli.configs import write_config
from support.http_server import free_port
from support.service import Service

from synth_optimizers import _synth_optimizers

FIELDS = {
    "code",
    "error_code",
    "message",
    "detail",
    "hint",
    "retryable",
    "field_errors",
    "state",
    "request_id",
}
JSON = {"content-type": "application/json"}
NAMES = {
    "run_id": "router",
    "other_run_id": "router",
    "candidate_id": "gepa_1",
    "rollout_id": "r-1",
    "turn": "1",
    "name": "result_manifest.json",
    "path": "runs/router",
}


@dataclass(frozen=True)
class Route:
    """One route of the OpenAPI document."""

    method: str
    template: str
    parameters: tuple[str, ...]
    """The path parameters."""
    forbids: bool
    """Whether some input is invalid for this route."""

    def __str__(self) -> str:
        return f"{self.method} {self.template}"

    def path(self, **names: str) -> str:
        """Return the path with example values for its parameters."""
        return self.template.format(**{**NAMES, **names})

    @property
    def mutates(self) -> bool:
        """Whether the route may change something."""
        return self.method != "GET"


def _routes() -> list[Route]:
    document = _synth_optimizers.service_openapi()
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parameters = operation.get("parameters", [])
            names = tuple(each["name"] for each in parameters if each["in"] == "path")
            # A path parameter accepts any text unless it has a pattern.
            bound = [each for each in parameters if each["in"] != "path" or "pattern" in each["schema"]]
            found.append(Route(method.upper(), path, names, bool(bound) or "requestBody" in operation))
    return found


ROUTES = _routes()
MUTATING = [route for route in ROUTES if route.mutates]


def assert_error(reply: httpx.Response, status: int, code: str) -> dict[str, object]:
    """Check that an answer is an error in the standard envelope, and return the error."""
    assert reply.status_code == status, reply.text
    assert reply.headers.get("content-type") == "application/json", reply.headers
    document = reply.json()
    assert set(document) == {"error"}, reply.text
    error: dict[str, object] = document["error"]
    assert set(error) == FIELDS, reply.text
    assert error["code"] == code, reply.text
    assert error["request_id"] == reply.headers["x-request-id"], reply.text
    for name in ("error_code", "message", "hint", "request_id"):
        assert isinstance(error[name], str), name
        assert error[name], name
    assert isinstance(error["retryable"], bool)
    assert isinstance(error["field_errors"], list)
    # A page in a browser must neither read the answer nor execute it.
    assert "access-control-allow-origin" not in reply.headers
    assert reply.headers["x-content-type-options"] == "nosniff"
    return error


def queue_router(service: Service) -> dict[str, object]:
    """Queue the run `router`, whose container does not answer and which no worker claims; return its run request."""
    config = write_config(service.log.parent, container=free_port(), proposer=free_port())
    service.run_id(config, auto_start=False, allow_unverified=True)
    return service.request("router")

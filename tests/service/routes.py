"""Every route of the service, and what an answer that refuses must look like."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from cli.places import write_config
from support.answering import free_port
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
NAMES = {"run_id": "router", "candidate_id": "gepa_1", "rollout_id": "r-1", "name": "result_manifest.json"}


@dataclass(frozen=True)
class Route:
    """One row of the API's document."""

    method: str
    template: str
    parameters: tuple[str, ...]
    """Those in the path."""
    forbids: bool
    """Whether there is anything that may not be sent."""

    def __str__(self) -> str:
        return f"{self.method} {self.template}"

    def path(self, **names: str) -> str:
        """Return the path with names in place of its parameters."""
        return self.template.format(**{**NAMES, **names})

    @property
    def mutates(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET"


def _routes() -> list[Route]:
    document = _synth_optimizers.service_openapi()
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parameters = operation.get("parameters", [])
            names = tuple(each["name"] for each in parameters if each["in"] == "path")
            # Any text may stand in a path, unless a pattern says otherwise.
            bound = [each for each in parameters if each["in"] != "path" or "pattern" in each["schema"]]
            found.append(Route(method.upper(), path, names, bool(bound) or "requestBody" in operation))
    return found


ROUTES = _routes()
MUTATING = [route for route in ROUTES if route.mutates]


def assert_refused(reply: httpx.Response, status: int, code: str) -> dict[str, object]:
    """Check that an answer is a refusal in the one envelope, and return what it says."""
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
    # A page that a browser shows must not be able to read it, and must not be led to run it.
    assert "access-control-allow-origin" not in reply.headers
    assert reply.headers["x-content-type-options"] == "nosniff"
    return error


def queue_router(service: Service) -> dict[str, object]:
    """Queue the run `router`, which nobody starts and whose container is dead, and return its request."""
    config = write_config(service.log.parent, container=free_port(), proposer=free_port())
    service.run_id(config, auto_start=False, allow_unverified=True)
    return service.request("router")

"""The service conforms to its own OpenAPI document, whatever input it receives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import requests
import schemathesis
from cli.configs import small_config
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import CheckFunction, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from support.example import Example
from support.polling import WAIT_TIMEOUT_SECONDS
from support.service import Service, run_service

from service.routes import ROUTES, Route
from synth_optimizers import _synth_optimizers

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
BLOCKING = "/worker/run-next"
"""It answers only when a run is over, and has a separate test."""
PLAIN = re.compile(r"[A-Za-z0-9._-]+")
FUZZED = [route for route in ROUTES if route.template != BLOCKING]
FORBIDDING = [route for route in FUZZED if route.forbids]


def populated(place: Path, example: Example) -> Iterator[Service]:
    """Yield a service with a completed run and one that waits for a manual step."""
    (place / "codex").mkdir()
    # Without this, a codex sign-in of the user would slow down every check of a configuration.
    with run_service(place, env={"CODEX_HOME": str(place / "codex")}) as service:
        service.wait(service.run_id(small_config(place, example)), "completed")
        waiting = small_config(place, example, run__run_id="waiting", cache__namespace="waiting")
        service.run_id(waiting, auto_start=False, manual_step=True)
        yield service


@pytest.fixture(scope="module")
def document(shown: Service) -> dict[str, Any]:
    """Return the OpenAPI document of the service."""
    found: dict[str, Any] = shown.get("/openapi.json")
    return found


@pytest.fixture(scope="module")
def shown(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service for read-only routes."""
    yield from populated(tmp_path_factory.mktemp("shown"), example)


@pytest.fixture(scope="module")
def changed(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service for mutating routes."""
    yield from populated(tmp_path_factory.mktemp("changed"), example)


def schema_of(service: Service) -> schemathesis.BaseSchema:
    """Load the OpenAPI document of a service."""
    return schemathesis.openapi.from_url(f"{service.url}/openapi.json")


def names(service: Service, route: Route) -> dict[str, list[str]]:
    """Return existing names for the path parameters of a route."""
    candidates = service.get("/runs/router/candidates")["items"] if "candidate_id" in route.parameters else []
    rollouts = service.get("/runs/router/rollouts")["items"] if "rollout_id" in route.parameters else []
    known = {
        "run_id": ["router", "waiting"],
        "other_run_id": ["router", "waiting"],
        "turn": ["1", "2"],
        "candidate_id": [each["candidate_id"] for each in candidates],
        "rollout_id": [each["rollout_id"] for each in rollouts],
        "name": ["result_manifest.json", "events.jsonl"],
        "path": ["runs/router", "app.js"],
    }
    return {name: known[name] for name in route.parameters}


def prepared(case: schemathesis.Case[Any], route: Route, known: dict[str, str]) -> schemathesis.Case[Any]:
    """Replace generated names, which do not exist, by existing ones, and shorten waits."""
    for name, value in known.items():
        if PLAIN.fullmatch(str(case.path_parameters.get(name, ""))):
            case.path_parameters[name] = value
    if route.template.endswith("/best") and not case.query.get("timeout_seconds"):
        case.query["timeout_seconds"] = 0.05
    return case


def direct() -> requests.Session:
    """Return an HTTP session without a proxy."""
    session = requests.Session()
    session.trust_env = False
    return session


def fuzz(service: Service, route: Route, mode: GenerationMode, checks: list[CheckFunction]) -> None:
    """Send generated valid or invalid input to one route, and check every answer."""
    operation = schema_of(service)[route.template][route.method]
    choices = {name: st.sampled_from(known) for name, known in names(service, route).items()}

    with direct() as session:

        @settings(
            max_examples=20,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), known=st.fixed_dictionaries({}, optional=choices))
        def examples(case: schemathesis.Case[Any], known: dict[str, str]) -> None:
            prepared(case, route, known).call_and_validate(session=session, checks=checks, timeout=WAIT_TIMEOUT_SECONDS)

        examples()


def nodes(tree: object) -> Iterator[dict[str, Any]]:
    """Yield every object of a document."""
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nodes(child)


def test_the_document_is_valid_and_the_same_everywhere(document: dict[str, Any]) -> None:
    assert document == _synth_optimizers.service_openapi()
    assert document["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(document).validate()
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        jsonschema_rs.meta.validate(schema)
    references = {node["$ref"] for node in nodes(document) if isinstance(node.get("$ref"), str)}
    assert references == {f"#/components/schemas/{name}" for name in schemas}


def test_every_route_of_the_document_has_its_own_name_and_its_parameters(document: dict[str, Any]) -> None:
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) == len(ROUTES)
    for route in ROUTES:
        assert set(route.parameters) == set(re.findall(r"{(\w+)}", route.template)), route
    assert all(operation["responses"]["default"] for operation in operations)


def service_for(route: Route, request: pytest.FixtureRequest) -> Service:
    """Return the service for tests of a route."""
    found: Service = request.getfixturevalue("changed" if route.mutates else "shown")
    return found


@pytest.mark.parametrize("route", FUZZED, ids=str)
def test_valid_input_is_answered_as_documented(route: Route, request: pytest.FixtureRequest) -> None:
    fuzz(service_for(route, request), route, GenerationMode.POSITIVE, CHECKS)


@pytest.mark.parametrize("route", FORBIDDING, ids=str)
def test_invalid_input_is_refused(route: Route, request: pytest.FixtureRequest) -> None:
    fuzz(service_for(route, request), route, GenerationMode.NEGATIVE, [*CHECKS, negative_data_rejection])


@pytest.mark.parametrize("route", FUZZED, ids=str)
def test_every_documented_bound_is_enforced(route: Route, request: pytest.FixtureRequest) -> None:
    service = service_for(route, request)
    schema = schema_of(service)
    operation = schema[route.template][route.method]
    known = {name: known[0] for name, known in names(service, route).items()}
    with direct() as session:
        for case in schema.iter_coverage_cases(
            operation, generation_modes=list(GenerationMode), generation_config=schema.config.generation
        ):
            checks = [*CHECKS, negative_data_rejection]
            prepared(case, route, known).call_and_validate(session=session, checks=checks, timeout=WAIT_TIMEOUT_SECONDS)

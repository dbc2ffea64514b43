"""An error answer of the service raises the exception of the same problem, with all its attributes."""

from __future__ import annotations

import pickle

import pytest
from support.http_server import free_port
from support.stand_in import Answer, StandInService, detail, entry, refusal

from client.clients import with_short_delays
from synth_optimizers import errors
from synth_optimizers.client import AsyncClient, Client, ServiceErrorDetails
from synth_optimizers.errors import CancelledError, ConfigError, OptimizerHttpError, StateTransitionError, error_table
from synth_optimizers.findings import Finding

FIELD = {
    "stage": "config",
    "code": "unknown_key",
    "field": "gepa.minibatch_sise",
    "location": "gepa.toml:17:1",
    "message": "unknown key",
    "hint": "Did you mean minibatch_size?",
    "retryable": False,
}
CONTAINER = {
    **FIELD,
    "stage": "container",
    "code": "down",
    "field": None,
    "location": None,
    "message": "no server answers",
}


@pytest.mark.parametrize("row", error_table(), ids=lambda row: row["error_code"])
def test_every_error_code_raises_its_class(row: dict[str, str], client: Client, service: StandInService) -> None:
    service.route("GET", "/runs/x", refusal(422, "some_code", row["error_code"], "what happened"))
    with pytest.raises(getattr(errors, row["exception"])) as raised:
        client.run("x")
    assert type(raised.value).__name__ == row["exception"]
    assert str(raised.value) == f"{row['error_code']}: what happened"
    assert raised.value.hint == "Do something else."


def test_an_exception_keeps_every_attribute_of_the_error(client: Client, service: StandInService) -> None:
    problems = [FIELD, CONTAINER]
    code = "synth_optimizer_config_error"
    service.route("POST", "/runs", refusal(422, "preflight_failed", code, "2 problems", field_errors=problems))
    with pytest.raises(ConfigError) as raised:
        client.submit("gepa.toml")
    error = raised.value
    assert isinstance(error, ServiceErrorDetails)
    assert (error.status, error.code, error.request_id, error.retryable, error.state) == (
        *(422, "preflight_failed", "req_1", False, None),
    )
    assert [found.stage for found in error.field_errors] == ["config", "container"]
    assert "gepa.minibatch_sise (gepa.toml:17:1): unknown key" in str(error)
    assert "container: no server answers" in str(error)
    (found,) = error.findings
    assert (found.field, found.source, found.line, found.column) == ("gepa.minibatch_sise", "gepa.toml", 17, 1)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)  # noqa: S301 (our own bytes)


def test_a_control_request_in_the_wrong_state_names_the_state(client: Client, service: StandInService) -> None:
    code = "synth_optimizer_state_transition_error"
    service.route("POST", "/runs/x/resume", refusal(409, "invalid_transition", code, state="completed"))
    with pytest.raises(StateTransitionError) as raised:
        client.resume("x")
    assert raised.value.state == "completed"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b"<html>a shop</html>", {"content-type": "text/html"}),
        Answer(200, {"hello": "world"}),
        Answer(200, [1, 2]),
        Answer(404, b"not here", {"content-type": "text/plain"}),
        Answer(500, {"error": "what"}),
        Answer(302, b"", {"location": "http://elsewhere/"}),
    ],
    ids=["html", "other_json", "list", "plain_404", "other_error", "redirect"],
)
def test_an_answer_of_another_server_is_recognized(answer: Answer, client: Client, service: StandInService) -> None:
    service.route("GET", "/health", answer)
    with pytest.raises(OptimizerHttpError, match="is not this service") as raised:
        client.health()
    assert "gepa service" in raised.value.hint
    assert isinstance(raised.value, ServiceErrorDetails)
    assert len(service.seen) == 1


def test_redirects_are_not_followed(client: Client, service: StandInService) -> None:
    service.route("DELETE", "/runs/r", Answer(307, b"", {"location": f"{service.address}/other"}))
    with pytest.raises(OptimizerHttpError, match="redirects to"):
        client.delete("r")
    assert [seen.path for seen in service.seen] == ["/runs/r"]


def test_an_unreachable_address_raises_with_a_hint() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with with_short_delays(Client(address, retries=2)) as client, pytest.raises(OptimizerHttpError) as raised:
        client.health()
    assert f"no service answers at {address}" in str(raised.value)
    assert "synth-optimizers gepa service" in raised.value.hint
    assert (raised.value.status, raised.value.code) == (None, "unreachable")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8879", "ftp://host", "http://", "http://host:99999", "http://host/?x=1", ""]
)
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="address") as raised:
        Client(address)
    assert "http://127.0.0.1:8879" in raised.value.hint


def test_the_token_is_sent_and_never_shown(service: StandInService, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    secret = "tk-" + "5" * 20
    with with_short_delays(Client(service.address, token=secret)) as client:
        with pytest.raises(OptimizerHttpError) as raised:
            client.health()
        shown = [repr(client), str(client), repr(vars(client))]
        shown += [str(raised.value), repr(raised.value.detail)]
    assert service.seen[0].headers["authorization"] == f"Bearer {secret}"
    assert not [text for text in (*shown, caplog.text) if secret in text]
    assert secret not in repr(AsyncClient(service.address, token=secret))
    for bad in ("", " ", "a\nb", "ü"):
        with pytest.raises(ConfigError, match="token"):
            Client(service.address, token=bad)
    with pytest.raises(ConfigError, match="password") as refused:
        Client(f"http://me:{secret}@127.0.0.1:1")
    assert secret not in str(refused.value)


def test_an_unknown_keyword_argument_is_named() -> None:
    with pytest.raises(TypeError, match="backend_base"):
        Client(backend_base="http://127.0.0.1:1")  # type: ignore[call-arg]


def test_a_run_that_failed_raises_the_error_of_its_cause(client: Client, service: StandInService) -> None:
    cause = {"error_code": "synth_optimizer_cache_miss", "message": "no answer", "hint": "Run once.", "detail": "row 3"}
    waiting = [Answer(body=detail(entry(status=status))) for status in ("queued", "running")]
    service.first("/runs/recorded", *waiting)
    service.route("GET", "/runs/recorded", detail(entry(status="failed", error=cause)))
    with pytest.raises(errors.CacheMissError, match="run recorded: no answer") as raised:
        client.wait("recorded", timeout=20)
    assert (raised.value.hint, raised.value.detail) == ("Run once.", "row 3")


def test_a_run_that_failed_with_an_invalid_configuration_has_every_finding(
    client: Client, service: StandInService
) -> None:
    finding = {"severity": "error", "code": "unknown_key", "field": "gepa.sise", "source": "gepa.toml", "line": 3}
    more = {"column": 1, "message": "unknown key", "hint": "Remove it.", "excerpt": None}
    cause = {"error_code": "synth_optimizer_config_error", "message": "1 problem", "findings": [{**finding, **more}]}
    service.route("GET", "/runs/recorded", detail(entry(status="failed", error={**cause, "retryable": True})))
    with pytest.raises(ConfigError) as raised:
        client.wait("recorded")
    assert raised.value.findings == (Finding(**finding, **more),)  # type: ignore[arg-type]
    assert raised.value.retryable is True  # type: ignore[attr-defined]


def test_a_cancelled_run_raises_cancelled_error(client: Client, service: StandInService) -> None:
    expected = {"reason_code": "pause_timeout", "message": "the pause timeout has passed"}
    service.route("GET", "/runs/recorded", detail(entry(status="cancelled", error=expected)))
    with pytest.raises(CancelledError, match="run recorded: the pause timeout has passed") as raised:
        client.wait("recorded")
    known = raised.value
    assert isinstance(known, ServiceErrorDetails)
    assert (known.code, known.state, known.retryable) == ("pause_timeout", "cancelled", False)


def test_waiting_for_an_active_run_raises_timeout_error(client: Client, service: StandInService) -> None:
    service.route("GET", "/runs/recorded", detail(entry(status="running")))
    with pytest.raises(TimeoutError, match="recorded is running"):
        client.wait("recorded", timeout=0)

"""Names that a client sends never resolve to anything but the named resource."""

from __future__ import annotations

import json

import pytest

from service.config_root import MACHINE_PATH, ConfigRoot
from service.routes import ROUTES, Route, assert_error
from service.wire import ask

TRAVERSALS = [
    "..%2f..%2fx",
    "%2e%2e%2f%2e%2e%2fx",
    "..%5c..%5cx",
    "%2e%2e",
    "%2fetc%2fpasswd",
    "C%3a%5cx",
    "router%2f..%2f..%2fx",
    "%00",
    "router%00.json",
    "%c3%bc%e2%80%ae",
    "%ff%fe",
    "x" * 300,
    "%0d%0aset-cookie:%20x",
    "%27%20OR%201=1--",
]


@pytest.mark.parametrize("route", [route for route in ROUTES if route.parameters], ids=str)
def test_no_name_escapes_its_resource(route: Route, place: ConfigRoot) -> None:
    before = place.files()
    for name in TRAVERSALS:
        for parameter in route.parameters:
            headers = {"content-type": "application/json"} if route.mutates else {}
            reply = ask(place.service, route.method, route.path(**{parameter: name}), headers)
            if route.template == "/ui/{path}" and reply.status_code == 200:
                # A path that is no file of the page is a view, which the script of the page looks up.
                assert reply.content == ask(place.service, "GET", "/ui/", {}).content
                continue
            assert 400 <= reply.status_code < 500, (parameter, name, reply.text)
            assert_error(reply, reply.status_code, reply.json()["error"]["code"])
            assert not MACHINE_PATH.search(reply.text), reply.text
            assert "set-cookie" not in reply.headers
    assert place.files() == before
    assert place.service.request("router")["status"] == "completed"


def test_a_path_with_dots_is_not_normalized(place: ConfigRoot) -> None:
    for path in ("/runs/../runs", "/runs/./router", "/../health"):
        assert_error(ask(place.service, "GET", path, {}), 404, "route_not_found")
    for path in ("artifacts/.", "artifacts/..", "artifacts/../../../secret.toml", "artifacts//etc/passwd"):
        path = f"/runs/router/{path}"
        assert_error(ask(place.service, "GET", path, {}), 404, "artifact_not_found")
    for name in ("gepa.toml", "run.lock", "workspace.sqlite-wal", "proposer_transcripts", "latest"):
        assert_error(ask(place.service, "GET", f"/runs/router/artifacts/{name}", {}), 404, "artifact_not_found")


@pytest.mark.parametrize(
    ("section", "key"), [("run", "run_id"), ("candidate", "candidate_id_prefix")], ids=["run_id", "candidate_id_prefix"]
)
@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", ".", "/etc/x", "a\0b", "ü", "\u202ex", "C:\\x", "x" * 300, "-x/../y", "x\n"]
)
def test_a_run_id_with_path_segments_is_refused(section: str, key: str, name: str, place: ConfigRoot) -> None:
    before = place.files()
    sections = place.sections()
    sections[section][key] = name
    body = {"config": sections, "allow_unverified": True, "auto_start": False}
    error = assert_error(place.service.ask("POST", "/runs", body), 422, "invalid_config")
    fields = [each["field"] for each in json.loads(json.dumps(error["field_errors"]))]
    assert fields == [f"{section}.{key}"]
    assert place.files() == before

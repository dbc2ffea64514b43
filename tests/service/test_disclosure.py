"""Submitted secrets are not stored, and answers reveal no paths of the machine."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from cli.configs import small_config
from support.example import Example

from service.config_root import MACHINE_PATH, ConfigRoot
from service.routes import assert_error

SECRETS = {
    "named": "hunter2-hunter2-5d1f",
    "shaped": "sk-5d1f5d1f5d1f5d1f5d1f",
}


ANYTHING = ["policy.config.api_key", "policy.config.nested.password", "dataset.filters.token"]
"""Free-form fields, which accept any key."""
NOTHING = ["proposer.api_key", "policy.api_key", "container.api_key", "credentials.api_key"]
"""Names that are not fields, but are often used for secrets."""


def assert_not_leaked(secret: str, told: str, place: ConfigRoot) -> None:
    """Check that a secret is neither answered nor stored."""
    assert secret not in told
    files = [path for path in place.outside.rglob("*") if path.is_file() and "service." in str(path)]
    kept = [path.name for path in files if secret.encode() in path.read_bytes()]
    assert kept == []


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("field", [*ANYTHING, *NOTHING])
@pytest.mark.parametrize("form", ["sections", "text", "override", "file"])
def test_a_secret_in_a_configuration_is_refused_and_not_stored(
    form: str, field: str, secret: str, place: ConfigRoot, example: Example
) -> None:
    directory = place.root / "secret"
    directory.mkdir(exist_ok=True)
    wrong = small_config(directory, example, run__run_id="other", **{field.replace(".", "__"): secret})
    text = wrong.read_text(encoding="utf-8")
    config: dict[str, dict[str, object]] = {
        "sections": {"config": tomllib.loads(text)},
        "text": {"config": text},
        "override": {"config": place.sections(), "overrides": [f"{field}={json.dumps(secret)}"]},
        "file": {"config_path": "secret/gepa.toml"},
    }
    body = {**config[form], "auto_start": False, "allow_unverified": True}
    reply = place.service.ask("POST", "/runs", body)
    assert reply.status_code == 422
    assert_not_leaked(secret, reply.text, place)
    assert_not_leaked(secret, place.service.ask("POST", "/runs/preflight", body).text, place)
    if field in ANYTHING:
        assert_error(reply, 422, "inline_secret_refused")


@pytest.mark.parametrize("field", NOTHING)
def test_a_secret_under_an_unknown_key_is_reported_as_a_secret(field: str, place: ConfigRoot) -> None:
    setting = f"{field}={json.dumps(SECRETS['shaped'])}"
    body = {"config": place.sections(), "overrides": [setting], "auto_start": False, "allow_unverified": True}
    assert_error(place.service.ask("POST", "/runs", body), 422, "inline_secret_refused")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("container.url", f"http://me:{SECRETS['named']}@127.0.0.1:1"),
        ("policy.base_url", f"http://me:{SECRETS['named']}@127.0.0.1:1"),
        ("proposer.base_url", f"http://127.0.0.1:1/v1?api_key={SECRETS['named']}"),
        ("proposer.api_key_env", SECRETS["shaped"]),
        ("policy.api_key_env", SECRETS["shaped"]),
        ("seed_candidate.router_prompt", f"Use {SECRETS['shaped']} to sign in."),
        ("container.command", ["true", "--api-key", SECRETS["named"]]),
        ("container.command", ["true", f"--token={SECRETS['named']}"]),
    ],
    ids=["url", "policy_url", "query", "env", "policy_env", "prompt", "flag", "assignment"],
)
def test_a_secret_in_the_value_of_a_field_is_refused_and_not_kept(field: str, value: object, place: ConfigRoot) -> None:
    section, key = field.split(".")
    sections = place.sections()
    sections.setdefault(section, {})[key] = value
    body = {"config": sections, "auto_start": False, "allow_unverified": True}
    reply = place.service.ask("POST", "/runs", body)
    assert_error(reply, 422, "inline_secret_refused")
    for secret in SECRETS.values():
        assert_not_leaked(secret, reply.text, place)


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_secret_beside_a_configuration_is_refused_and_not_stored(secret: str, place: ConfigRoot) -> None:
    beside: list[dict[str, object]] = [{"credentials": {"api_key": secret}}, {"api_key": secret}]
    for body in beside:
        reply = place.service.ask("POST", "/runs", {"config": place.sections(), **body})
        assert reply.status_code == 422
        assert_not_leaked(secret, reply.text, place)
    for path in (f"/runs/{secret}", f"/runs?state={secret}", f"/runs?{secret}=1", f"/runs/router/artifacts/{secret}"):
        place.service.ask("GET", path, headers={"x-key": secret, "authorization": f"Bearer {secret}"})
    assert_not_leaked(secret, place.service.ask("GET", "/metrics").text, place)


def test_a_reason_is_stored_without_its_secrets(place: ConfigRoot) -> None:
    # A separate secret, so that a leak fails only this test.
    secret = SECRETS["shaped"].upper()
    run_id = place.service.run_id(place.sections(), auto_start=False, allow_unverified=True)
    reply = place.service.ask("POST", f"/runs/{run_id}/cancel", {"reason": f"the key {secret} is out"})
    assert reply.status_code == 202
    assert_not_leaked(secret, reply.text + json.dumps(place.service.get(f"/runs/{run_id}")), place)


CODEX = {"backend": "codex_app_server", "base_url": None, "model": None}
WRONG: dict[str, dict[str, dict[str, Any]]] = {
    "output_is_a_file": {"run": {"output_dir": "gepa.toml"}},
    "output_cannot_be": {"run": {"output_dir": "/proc/nowhere"}},
    "output_is_outside": {"run": {"output_dir": "{outside}/secret.toml"}},
    "cache_is_a_directory": {"cache": {"path": "deeper"}},
    "cache_is_nowhere": {"cache": {"path": "/proc/nowhere/cache.sqlite", "mode": "readonly"}},
    "cache_is_no_cache": {"cache": {"path": "{outside}/secret.toml"}},
    "command_is_nowhere": {"container": {"command": ["./nowhere"], "cwd": "deeper"}},
    "cwd_is_nowhere": {"container": {"command": ["./nowhere"], "cwd": "/root/nowhere"}},
    "codex_is_nowhere": {"proposer": {**CODEX, "command": ["/usr/nowhere/codex"]}},
    "home_is_nowhere": {"proposer": {**CODEX, "codex_home": "/root/nowhere"}},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("path", ["/runs", "/runs/preflight"])
def test_an_error_reveals_no_paths_of_the_machine(
    path: str, wrong: dict[str, dict[str, Any]], place: ConfigRoot
) -> None:
    sections = place.sections()
    changes = json.loads(json.dumps(wrong).replace("{outside}", str(place.outside)))
    for section, values in changes.items():
        merged = {**sections[section], **values}
        sections[section] = {key: value for key, value in merged.items() if value is not None}
    reply = place.service.ask("POST", path, {"config": sections, "auto_start": False})
    assert reply.status_code == (422 if path == "/runs" else 200), reply.text
    told = reply.json()["error"]["field_errors"] if path == "/runs" else reply.json()["blockers"]
    assert told
    text = json.dumps([told, reply.json().get("error")])
    assert str(place.outside) not in text
    assert not MACHINE_PATH.search(text), text

"""The service reads configurations only from beneath its config root."""

from __future__ import annotations

import os
import re

import pytest

from service.config_root import CANARY, ConfigRoot


@pytest.mark.parametrize("named", ["gepa.toml", "./gepa.toml", "deeper/../gepa.toml", "deeper/gepa.toml", "inner.toml"])
def test_a_file_beneath_the_root_is_read(named: str, place: ConfigRoot) -> None:
    inner = place.root / "inner.toml"
    inner.unlink(missing_ok=True)
    inner.symlink_to("deeper/gepa.toml")
    for path in (named, str(place.root / named)):
        report = place.service.ask("POST", "/runs/preflight", {"config_path": path})
        assert report.status_code == 200
        blockers = [blocker["code"] for blocker in report.json()["blockers"]]
        # The run id is taken by a completed run, which shows that the file was read.
        assert report.json()["facts"]["rows"]["train"] == 8, blockers


@pytest.mark.parametrize(
    "named",
    [
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/self/root/etc/passwd",
        "/proc/self/cwd/secret.toml",
        "/dev/zero",
        "/dev/stdin",
        "../secret.toml",
        "./../secret.toml",
        "deeper/../../secret.toml",
        "../root-other/secret.toml",
        "../root/gepa.toml",
        "../../../../../../../../etc/passwd",
        "..",
        ".",
        "/",
        "",
        "deeper",
        "deeper/",
        "gepa.toml/",
        "gone.toml",
        "~/.bashrc",
        "file:///etc/passwd",
        "a\0b",
        "gepa.toml\0.json",
        "\u202egepa.toml",
        "x" * 300,
        "x" * 5000,
        "deeper/../" * 2000 + "gepa.toml",
    ],
    ids=lambda named: f"{named[:40]!r}_{len(named)}",
)
def test_a_path_outside_the_root_is_not_read(named: str, place: ConfigRoot) -> None:
    place.expect_error(named)


def test_an_absolute_path_must_be_beneath_the_root(place: ConfigRoot) -> None:
    for named in ("secret.toml", "root-other/secret.toml", "root/../secret.toml", "root", "service.sqlite"):
        place.expect_error(str(place.outside / named))


def test_a_link_does_not_lead_out_of_the_root(place: ConfigRoot) -> None:
    links = {
        "up": "../secret.toml",
        "top": str(place.outside / "secret.toml"),
        "passwd": "/etc/passwd",
        "environ": "/proc/self/environ",
        "descriptor": "/proc/self/fd/0",
        "zero": "/dev/zero",
        "chain": "chained",
        "chained": "deeper/chained",
        "deeper/chained": "../../secret.toml",
        "loop": "loop",
        "nowhere": "gone",
        "system": "/",
    }
    for name, target in links.items():
        (place.root / name).symlink_to(target)
    try:
        for name in links:
            place.expect_error(f"{name}/etc/passwd" if name == "system" else name)
    finally:
        for name in links:
            (place.root / name).unlink()


def test_special_files_are_not_read(place: ConfigRoot) -> None:
    # A FIFO without a writer: opening it for reading would block.
    os.mkfifo(place.root / "pipe")
    with (place.root / "large").open("wb") as large:
        large.truncate(5 << 30)
    (place.root / "grown").write_bytes(b"#" * (1024 * 1024 + 1))
    (place.root / "latin").write_bytes(f'{CANARY} = "\xe9"'.encode("latin-1"))
    try:
        for name in ("pipe", "large", "grown", "latin"):
            place.expect_error(name)
    finally:
        for name in ("pipe", "large", "grown", "latin"):
            (place.root / name).unlink()


@pytest.mark.parametrize(
    "text",
    [
        f"root:{CANARY}:0:0:root:/root:/bin/bash\n",
        f"PATH=/usr/bin\0KEY={CANARY}\0",
        f'a = "{CANARY}\n',
        f"a = {CANARY}\n",
        f'{{"key": "{CANARY}"}}\n',
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n",
        f'[container]\nurl = ["{CANARY}"]\n',
    ],
    ids=["passwd", "environ", "open_quote", "bare_word", "json", "key", "wrong_type"],
)
def test_the_content_of_an_invalid_file_is_not_quoted(text: str, place: ConfigRoot) -> None:
    (place.root / "odd.toml").write_text(text)
    body = {"config_path": "odd.toml", "allow_unverified": True}
    for path in ("/runs", "/runs/preflight"):
        reply = place.service.ask("POST", path, body)
        assert CANARY not in reply.text
        found = reply.json() if path == "/runs/preflight" else reply.json()["error"]
        places = [each["location"] for each in found.get("blockers", found.get("field_errors"))]
        assert [each for each in places if re.fullmatch(r"odd\.toml:\d+:\d+", each or "")], reply.text

"""A config root with files around it, and a pattern that recognizes paths of this machine."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.service import Service

from service.routes import assert_error

CANARY = "canary-5d1f"
"""A text in every file that the service must not read."""
MACHINE_PATH = re.compile(r"(?<![\w.…/:-])/(?:bin|dev|etc|home|opt|proc|root|run|srv|sys|tmp|usr|var|work)/")
"""Matches a path of this machine."""


@dataclass(frozen=True)
class ConfigRoot:
    """A config root and its surroundings."""

    root: Path
    outside: Path
    service: Service

    def files(self) -> set[str]:
        """Return every file in the surroundings, except those of the service."""
        found = {str(path.relative_to(self.outside)) for path in self.outside.rglob("*")}
        return {name for name in found if not name.startswith("service.")}

    def expect_error(self, named: str) -> str:
        """Submit and check a configuration path that must be refused, and return the error."""
        said = ""
        for path in ("/runs", "/runs/preflight"):
            reply = self.service.ask("POST", path, {"config_path": named, "allow_unverified": True})
            assert_error(reply, 422, "config_path_refused")
            said += reply.text
        assert CANARY not in said
        assert str(self.outside) not in said
        assert not MACHINE_PATH.search(said)
        return said

    def sections(self) -> dict[str, Any]:
        """Return the valid configuration as sections, with an unused run id."""
        found: dict[str, Any] = tomllib.loads((self.root / "gepa.toml").read_text(encoding="utf-8"))
        found["run"]["run_id"] = "other"
        return found

"""A root of configurations, what is around it, and how a path of this machine is recognized."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.service import Service

from service.routes import assert_refused

CANARY = "canary-5d1f"
"""What stands in every file that must not be read."""
MACHINE = re.compile(r"(?<![\w.…/:-])/(?:bin|dev|etc|home|opt|proc|root|run|srv|sys|tmp|usr|var|work)/")
"""How a path of this machine begins."""


@dataclass(frozen=True)
class Place:
    """A root of configurations and what is around it."""

    root: Path
    outside: Path
    service: Service

    def files(self) -> set[str]:
        """Return every file around, but for those that the service itself keeps."""
        found = {str(path.relative_to(self.outside)) for path in self.outside.rglob("*")}
        return {name for name in found if not name.startswith("service.")}

    def refused(self, named: str) -> str:
        """Name a configuration that must be refused, on both routes, and return what was said."""
        said = ""
        for path in ("/runs", "/runs/preflight"):
            reply = self.service.ask("POST", path, {"config_path": named, "allow_unverified": True})
            assert_refused(reply, 422, "config_path_refused")
            said += reply.text
        assert CANARY not in said
        assert str(self.outside) not in said
        assert not MACHINE.search(said)
        return said

    def sections(self) -> dict[str, Any]:
        """Return the good configuration under the name of a run that is not there yet."""
        found: dict[str, Any] = tomllib.loads((self.root / "gepa.toml").read_text(encoding="utf-8"))
        found["run"]["run_id"] = "other"
        return found

"""Where the measured programs are, and how long a peer may run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    """The programs of a session."""

    programs: Path
    """The release programs of the benchmark."""
    environment: Path
    """The environment with this product."""
    peers: Path
    """The environment with the peers."""
    scratch: Path
    """The directory in which runs are kept while they are measured."""
    cap_seconds: float

    @property
    def python(self) -> Path:
        """The interpreter with this product."""
        return self.environment / "bin/python"

    @property
    def program(self) -> Path:
        """The command line of this product."""
        return self.environment / "bin/synth-optimizers"

    @property
    def peers_python(self) -> Path:
        """The interpreter with the peers."""
        return self.peers / "bin/python"

    def missing(self) -> list[Path]:
        """Return the programs that are missing."""
        needed = (
            self.python,
            self.program,
            self.peers_python,
            self.programs / "stub_container",
            self.programs / "scenes",
        )
        return [path for path in needed if not path.exists()]

"""A finding about a configuration, as part of an error or a warning."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: its location, the problem and a hint."""

    severity: Literal["error", "warning"]
    """`error`: the configuration cannot be used. `warning`: it is used as the message says."""
    code: str
    """A stable short code, such as `unknown_key`."""
    field: str
    """The dotted path of the field, such as `gepa.minibatch_size`."""
    source: str
    """The source of the value: a file, `environment` or `--set`."""
    line: int | None
    """The line in the file, from 1; `None` for a value that is not from a file."""
    column: int | None
    """The column in that line, from 1."""
    message: str
    """What is wrong, with the value."""
    hint: str
    """What to do."""
    excerpt: str | None
    """The line of the file, with a marker below the location."""

"""What every record of the client is: a frozen dataclass read from a JSON object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Self, TypeVar

__all__ = ["Record", "items"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """Read from a JSON object of the service. What it says beyond the fields is left out."""

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> Self:
        """Read an object; `KeyError` names what it lacks."""
        found = {}
        for each in fields(cls):
            if each.name in known:
                found[each.name] = known[each.name]
            elif each.default is MISSING and each.default_factory is MISSING:
                raise KeyError(each.name)
        return cls(**found)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain objects."""
        return asdict(self)


def items(read: Callable[[Any], T], name: str = "items") -> Callable[[Any], tuple[T, ...]]:
    """Return what reads a list of records out of an answer."""
    return lambda known: tuple(read(each) for each in known[name])

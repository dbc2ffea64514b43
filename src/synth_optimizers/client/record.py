"""What every record of the client is: a frozen dataclass read from a JSON object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Self, TypeVar

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
                read, value = each.metadata.get("read"), known[each.name]
                found[each.name] = value if read is None else read(value)
            elif each.default is MISSING and each.default_factory is MISSING:
                raise KeyError(each.name)
        return cls(**found)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain objects."""
        return asdict(self)


def part(read: Callable[[Any], object]) -> dict[str, Any]:
    """Return the metadata of a field that is an object of its own, or null."""
    return {"read": lambda known: None if known is None else read(known)}


def parts(read: Callable[[Any], object]) -> dict[str, Any]:
    """Return the metadata of a field that is a list of objects; null is none of them."""
    return {"read": lambda known: tuple(read(each) for each in known or ())}


def items(read: Callable[[Any], T], name: str = "items") -> Callable[[Any], tuple[T, ...]]:
    """Return what reads a list of records out of an answer."""
    return lambda known: tuple(read(each) for each in known[name])

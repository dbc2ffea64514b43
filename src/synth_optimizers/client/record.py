"""The base of the client's records: frozen dataclasses parsed from JSON objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Self, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """A record parsed from a JSON object of the service; unknown keys are ignored."""

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> Self:
        """Parse an object; a missing key raises `KeyError`."""
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
    """Return the metadata of a field that holds a nested object or null."""
    return {"read": lambda known: None if known is None else read(known)}


def parts(read: Callable[[Any], object]) -> dict[str, Any]:
    """Return the metadata of a field that holds a list of objects; null becomes an empty list."""
    return {"read": lambda known: tuple(read(each) for each in known or ())}


def items(read: Callable[[Any], T], name: str = "items") -> Callable[[Any], tuple[T, ...]]:
    """Return a function that parses a list of records from an answer."""
    return lambda known: tuple(read(each) for each in known[name])

"""`docs/reference/events.md`: every event of a run, from the event catalogue and the schema of its fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pages import UnsupportedExport
from pages.markdown import code, generated_from, page, table

EXAMPLE = Path(__file__).parent / "example_event.jsonl"

Json = Mapping[str, Any]

# Definitions that are inlined where they are used.
LEAVES = {
    "CandidateId": "candidate id",
    "RowId": "row id",
    "CallId": "call number",
    "ErrorCode": "[error code](errors.md)",
}
KINDS = {"string": "text", "boolean": "true or false", "number": "number", "integer": "whole number"}
PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "integer": (int,),
}

INTRO = """\
# Events

A run is a list of events. `events.jsonl` in the run directory holds them, one JSON object per line, in the order in
which they happened; every other file and table is made from them. A line is never changed once it is written."""

ENVELOPE = """\
## A line

| key | type | meaning |
| --- | --- | --- |
| `version` | whole number | Version of this shape, now 1. A reader refuses a larger one. |
| `sequence_number` | whole number | Place in the log, from 0, without gaps. |
| `run_id` | text | The run. |
| `ts` | text | When it was stored: RFC 3339, UTC, milliseconds. |
| `type` | text | One of the types below. |
| `fields` | object | What the type says. |
| `message` | text | The event in words, for people. It holds no volatile value. |

A line of a real run:"""

NORMALIZED = """\
## Normalized feeds

`events.normalized.jsonl` holds what depends on the config, the seed and the answers of container and proposer alone.
Two runs of one config can be compared by it: fresh, cached and readonly, with one worker or many. Of each event it
keeps `type`, `message` and `fields`, without the fields that are marked *volatile* below. Events that are marked
*operational* describe only how the run was executed; normalized feeds leave them out."""

READING = """\
## Types

In the tables, *optional* means that the key is missing where there is nothing to say, and *or null* that it is there
and null. Words and objects with a name are explained below the events."""


class Catalogue:
    """Every event type, with the schemas of its fields."""

    def __init__(self, exported: Json) -> None:
        self.events: list[Json] = exported["events"]
        self.definitions: dict[str, Json] = exported["$defs"]
        for event in self.events:
            if not self.fields(event).keys() >= set(event["volatile"]):
                raise UnsupportedExport(f"{event['type']}: a volatile field is no field")
        described = [(event["type"], self._struct(event)) for event in self.events]
        described += [(name, self.definitions[name]) for name in self.parts()]
        for name, node in described:
            for field, kind in node.get("properties", {}).items():
                if not kind.get("description"):
                    raise UnsupportedExport(f"{name}.{field} has no description")
        for event in self.events:
            if not event["about"]:
                raise UnsupportedExport(f"{event['type']} has no description")

    def fields(self, event: Json) -> dict[str, Json]:
        """Return the fields of an event type."""
        found: dict[str, Json] = self._struct(event)["properties"]
        return found

    def parts(self) -> list[str]:
        """Return the names of the types in event fields, in alphabetical order."""
        found: set[str] = set()
        waiting: list[Any] = [self.fields(event) for event in self.events]
        while waiting:
            node = waiting.pop()
            if isinstance(node, list):
                waiting += node
            elif isinstance(node, dict):
                name = _referred(node)
                if name and name not in found | LEAVES.keys():
                    found.add(name)
                    waiting.append(self.definitions[name])
                waiting += node.values()
        return sorted(found)

    def table(self, struct: Json, volatile: list[str]) -> str:
        """Return the table of the fields of a struct."""
        rows = []
        for name, node in struct["properties"].items():
            is_always = name in struct.get("required", ())
            kind = self.shown(node) if is_always else f"{self.shown(_without_null(node))}, optional"
            about = f"{node['description']} *Volatile.*" if name in volatile else node["description"]
            rows.append([code(name), kind, about])
        return table(["field", "type", "meaning"], rows)

    def shown(self, node: Json) -> str:
        """Return a type as it appears in JSON."""
        name = _referred(node)
        if name:
            return LEAVES.get(name) or f"[{name}](#{name.lower()})"
        other = _without_null(node)
        if other != node:
            return f"{self.shown(other)}, or null"
        match node:
            case {"type": "array", "prefixItems": inners}:
                return f"[{', '.join(self.shown(inner) for inner in inners)}]"
            case {"type": "array", "items": inner}:
                is_plain = _referred(inner) in LEAVES or inner.get("type") in KINDS
                return f"list of {self.shown(inner)}{'s' if is_plain else ''}"
            case {"type": "object", "additionalProperties": {} as inner}:
                return f"{self.shown(inner)} by {node.get('x-keys', 'name')}"
            case {"type": str(kind)} if kind in KINDS:
                return KINDS[kind]
        raise UnsupportedExport(f"the schema {json.dumps(node)} is not known")

    def problems(self, line: str) -> list[str]:
        """Return how a line of a feed differs from the catalogue."""
        event = json.loads(line)
        known = {row["type"]: row for row in self.events}
        keys = {"version", "sequence_number", "run_id", "ts", "type", "fields", "message"}
        found = [f"the line has {key}" for key in sorted(event.keys() ^ keys)]
        if event["type"] not in known:
            return [*found, f"the type {event['type']} is not known"]
        return found + self._mismatch(known[event["type"]]["fields"], event["fields"], event["type"])

    def _mismatch(self, node: Json, value: Any, place: str) -> list[str]:  # noqa: ANN401 (any JSON)
        name = _referred(node)
        definition = self.definitions[name] if name else node
        other = _without_null(definition)
        if other != definition:
            return [] if value is None else self._mismatch(other, value, place)
        if "enum" in definition:
            return [] if value in definition["enum"] else [f"{place} is {value!r}, no word of {name}"]
        match definition:
            case {"properties": properties}:
                missing = [key for key in definition.get("required", ()) if key not in value]
                found = [f"{place}.{key} is not in the catalogue" for key in value.keys() - properties.keys()]
                found += [f"{place}.{key} is missing" for key in missing]
                pairs = [(properties[key], value[key], f"{place}.{key}") for key in properties if key in value]
            case {"additionalProperties": {} as inner}:
                found, pairs = [], [(inner, item, f"{place}.*") for item in value.values()]
            case {"prefixItems": inners}:
                found, pairs = [], [(inner, item, place) for inner, item in zip(inners, value, strict=True)]
            case {"items": inner}:
                found, pairs = [], [(inner, item, f"{place}[]") for item in value]
            case _:
                kind = definition["type"]
                fits = isinstance(value, PYTHON[kind]) and (kind == "boolean" or not isinstance(value, bool))
                return [] if fits else [f"{place} is {value!r}, not {KINDS[kind]}"]
        return found + [problem for pair in pairs for problem in self._mismatch(*pair)]

    def _struct(self, event: Json) -> Json:
        return self.definitions[_referred(event["fields"])]


def render(exported: Json) -> str:
    """Return the page."""
    catalogue = Catalogue(exported)
    example = EXAMPLE.read_text(encoding="utf-8").strip()
    made_from = generated_from("`event_catalogue()`", source="rust/crates/synth_optimizer_core/src/model")
    parts = [made_from, INTRO, ENVELOPE, f"```json\n{example}\n```"]
    parts += [NORMALIZED, READING, "## Every event", _contents(catalogue)]
    for event in catalogue.events:
        operational = " *Operational*: normalized feeds leave it out." if event["operational"] else ""
        struct = catalogue.definitions[_referred(event["fields"])]
        parts += [
            f"### {code(event['type'])}",
            event["about"] + operational,
            catalogue.table(struct, event["volatile"]),
        ]
    parts.append("## Words and objects")
    for name in catalogue.parts():
        item = catalogue.definitions[name]
        parts += [f"### {name}", " ".join(item["description"].split())]
        parts.append(catalogue.table(item, []) if "properties" in item else _words(item))
    return page(*parts)


def _contents(catalogue: Catalogue) -> str:
    rows = [
        [f"[{code(event['type'])}](#{event['type'].replace('.', '')})", event["about"]] for event in catalogue.events
    ]
    return table(["type", "meaning"], rows)


def _words(definition: Json) -> str:
    meanings = definition.get("x-enum-descriptions", {})
    if not meanings:
        return ", ".join(code(word) for word in definition["enum"]) + "."
    lines = (f"* {code(word)}{f': {meanings[word]}' if word in meanings else ''}" for word in definition["enum"])
    return "\n".join(lines)


def _referred(node: Json) -> str:
    """Return the name of the definition that a schema refers to, or an empty text."""
    reference: str = node.get("$ref", "")
    return reference.removeprefix("#/$defs/")


def _without_null(node: Json) -> Json:
    """Return a schema without its null alternative."""
    if "anyOf" in node:
        options = [option for option in node["anyOf"] if option != {"type": "null"}]
        return options[0] if len(options) == 1 else node
    if isinstance(node.get("type"), list):
        kinds = [kind for kind in node["type"] if kind != "null"]
        return {**node, "type": kinds[0]} if len(kinds) == 1 else node
    return node

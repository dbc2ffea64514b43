"""`docs/events.md`: every event of a run, from the table and the structs that define them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pages.markdown import code, generated_from, page, table
from pages.rust_source import EventType, Field, Struct, Type, Words, events_of, find, items_of
from pages.rust_tokens import NotUnderstood

MODEL = "rust/crates/synth_optimizer_platform/src/model"
EXAMPLE = Path(__file__).parent / "example_event.jsonl"

# Types that serialize in a way of their own, as a reader of a feed meets them.
LEAVES = {
    "String": "text",
    "bool": "true or false",
    "f64": "number",
    "i64": "whole number",
    "u16": "whole number",
    "u32": "whole number",
    "u64": "whole number",
    "CandidateId": "candidate id",
    "RowId": "row id",
    "RequestId": "request number",
    "Payload": "text by field",
    "Cost": "dollars, or null",
    "ErrorCode": "[error code](errors.md)",
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
*aside* tell only how the run was carried out; normalized feeds leave them out."""

READING = """\
## Types

In the tables, *optional* means that the key is missing where there is nothing to say, and *or null* that it is there
and null. Words and objects with a name are explained below the events."""


class Catalogue:
    """Every event type, with the structs and vocabularies that its fields are made of."""

    def __init__(self, root: Path) -> None:
        self.model = root / MODEL
        self.types: list[EventType] = events_of(self.model / "event.rs")
        self.defined, self.used = items_of(self.model / "event_fields.rs")
        self._check()

    def struct(self, event: EventType) -> Struct:
        """Return the fields of an event type."""
        item = self.item(event.fields)
        if not isinstance(item, Struct):
            raise NotUnderstood(f"{event.wire}: {event.fields} is no struct")
        return item

    def item(self, name: str) -> Struct | Words:
        """Return what a name stands for, from the file that defines it."""
        if name in self.defined:
            return self.defined[name]
        module = self.used.get(name, "")
        parent, _, last = module.rpartition("::")
        directory = {"super": self.model, "crate::config": self.model.parent / "config"}.get(parent)
        if directory is None:
            raise NotUnderstood(f"nothing tells what the type {name} is on the wire")
        # A name may be handed on by the module that it is used from.
        for path in [directory / f"{last}.rs", *sorted(directory.glob("*.rs"))]:
            item = find(path, name)
            if item is not None:
                self.defined[name] = item
                return item
        raise NotUnderstood(f"no file of {module} defines {name}")

    def parts(self) -> list[Struct | Words]:
        """Return what the fields of events are made of, in the order in which it is first met."""
        found: dict[str, Struct | Words] = {}
        waiting = [field.type for event in self.types for field in self.struct(event).fields]
        while waiting:
            kind = waiting.pop(0)
            waiting[:0] = kind.arguments
            if kind.name in found or kind.name in LEAVES or kind.arguments:
                continue
            item = self.item(kind.name)
            found[kind.name] = item
            if isinstance(item, Struct):
                waiting[:0] = [field.type for field in item.fields]
        return list(found.values())

    def problems(self, line: str) -> list[str]:
        """Return how a line of a feed differs from what the catalogue says about it."""
        event = json.loads(line)
        known = {row.wire: row for row in self.types}
        keys = {"version", "sequence_number", "run_id", "ts", "type", "fields", "message"}
        found = [f"the line has {key}" for key in sorted(event.keys() ^ keys)]
        if event["type"] not in known:
            return [*found, f"the type {event['type']} is not known"]
        return found + self._differences(self.struct(known[event["type"]]), event["fields"], event["type"])

    def _differences(self, struct: Struct, value: dict[str, Any], place: str) -> list[str]:
        named = {field.name: field for field in struct.fields}
        found = [f"{place}.{key} is not in the catalogue" for key in value.keys() - named.keys()]
        for name, field in named.items():
            if name in value:
                found += self._mismatch(field.type, value[name], f"{place}.{name}")
            elif not field.is_left_out:
                found.append(f"{place}.{name} is missing")
        return found

    def _mismatch(self, kind: Type, value: Any, place: str) -> list[str]:  # noqa: ANN401 (any JSON)
        match kind:
            case Type("Option", (inner,)):
                return [] if value is None else self._mismatch(inner, value, place)
            case Type("Box", (inner,)):
                return self._mismatch(inner, value, place)
            case Type("Vec", (inner,)):
                return [problem for item in value for problem in self._mismatch(inner, item, f"{place}[]")]
            case Type("BTreeMap", (_, inner)):
                return [problem for item in value.values() for problem in self._mismatch(inner, item, f"{place}.*")]
            case Type("()", inners):
                pairs = zip(inners, value, strict=True)
                return [problem for inner, item in pairs for problem in self._mismatch(inner, item, place)]
        if kind.name in LEAVES:
            return [] if _fits(kind.name, value) else [f"{place} is {value!r}, not {LEAVES[kind.name]}"]
        item = self.item(kind.name)
        if isinstance(item, Struct):
            return self._differences(item, value, place)
        return [] if value in {word.word for word in item.words} else [f"{place} is {value!r}, no word of {item.name}"]

    def _check(self) -> None:
        for event in self.types:
            names = {field.name for field in self.struct(event).fields}
            if not names.issuperset(event.volatile):
                raise NotUnderstood(f"{event.wire}: a volatile field is no field")
            for field in self.struct(event).fields:
                self.shown(field.type)

    def shown(self, kind: Type) -> str:
        """Return a type as a reader of JSON meets it."""
        match kind:
            case Type("Option", (inner,)):
                return f"{self.shown(inner)}, or null"
            case Type("Box", (inner,)):
                return self.shown(inner)
            case Type("Vec", (Type("()", inners),)):
                return f"list of [{', '.join(self.shown(inner) for inner in inners)}]"
            case Type("Vec", (inner,)):
                plural = "s" if inner.name in LEAVES else ""
                return f"list of {self.shown(inner)}{plural}"
            case Type("BTreeMap", (Type("String"), inner)):
                return f"{self.shown(inner)} by name"
            case Type(name, ()) if name in LEAVES:
                return LEAVES[name]
            case Type(name, ()):
                return f"[{name}](#{self.item(name).name.lower()})"
        raise NotUnderstood(f"the type {kind} is not known")


def render(root: Path) -> str:
    """Return the page."""
    catalogue = Catalogue(root)
    example = EXAMPLE.read_text(encoding="utf-8").strip()
    parts = [generated_from(f"{MODEL}/event.rs", "event_fields.rs"), INTRO, ENVELOPE, f"```json\n{example}\n```"]
    parts += [NORMALIZED, READING, "## Every event", _contents(catalogue)]
    for event in catalogue.types:
        parts += [f"### {code(event.wire)}", _about(event), _fields(catalogue, catalogue.struct(event), event.volatile)]
    parts.append("## Words and objects")
    for item in sorted(catalogue.parts(), key=lambda item: item.name):
        parts += [f"### {item.name}", item.about]
        parts.append(_fields(catalogue, item, ()) if isinstance(item, Struct) else _words(item))
    return page(*parts)


def _contents(catalogue: Catalogue) -> str:
    rows = [[f"[{code(event.wire)}](#{_anchor(event.wire)})", event.about] for event in catalogue.types]
    return table(["type", "meaning"], rows)


def _about(event: EventType) -> str:
    return event.about + (" *Aside*: normalized feeds leave it out." if event.is_aside else "")


def _fields(catalogue: Catalogue, struct: Struct, volatile: tuple[str, ...]) -> str:
    def meaning(field: Field) -> str:
        return f"{field.about} *Volatile.*" if field.name in volatile else field.about

    def kind(field: Field) -> str:
        if not field.is_left_out:
            return catalogue.shown(field.type)
        inner = field.type.arguments[0] if field.type.name == "Option" else field.type
        return f"{catalogue.shown(inner)}, optional"

    rows = [[code(field.name), kind(field), meaning(field)] for field in struct.fields]
    return table(["field", "type", "meaning"], rows)


def _words(words: Words) -> str:
    if not any(word.about for word in words.words):
        return ", ".join(code(word.word) for word in words.words) + "."
    return "\n".join(f"* {code(word.word)}{': ' if word.about else ''}{word.about}" for word in words.words)


def _anchor(heading: str) -> str:
    return heading.replace(".", "")


def _fits(leaf: str, value: Any) -> bool:  # noqa: ANN401 (any JSON)
    if leaf in {"String", "CandidateId", "RowId", "ErrorCode"}:
        return isinstance(value, str)
    if leaf == "bool":
        return isinstance(value, bool)
    if leaf == "Payload":
        return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    if leaf == "Cost" and value is None:
        return True
    if leaf in {"f64", "Cost"}:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, int) and not isinstance(value, bool)

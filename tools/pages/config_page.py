"""`docs/reference/config.md`: every field of the configuration, from its JSON Schema and the overrides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pages import UnsupportedExport
from pages import config_text as text
from pages.markdown import code, generated_from, page, paragraph, table

Json = dict[str, Any]

SOURCE = "rust/crates/synth_optimizer_core/src/config"

KINDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
# Bounds that only prevent overflow are not shown in every row.
BEYOND = 10**9

PLURALS = {"string": "texts", "integer": "whole numbers", "number": "numbers"}


def render(schema: Json, overrides: Iterable[Mapping[str, Any]]) -> str:
    """Return the page."""
    fields = _Fields(schema)
    parts = [
        generated_from("`config_schema()`", "`config_overrides()`", source=SOURCE),
        text.TITLE,
        f"```toml\n{text.EXAMPLE}\n```",
        text.RULES,
        text.LAYERS,
        table(
            ["variable", "field", "meaning"],
            [[code(row["variable"]), code(row["field"]), row["about"]] for row in overrides],
        ),
        text.SET,
        text.PATHS,
        text.FIELDS,
    ]
    for name, node in schema["properties"].items():
        parts += fields.section(name, node, 3)
    left = text.SECTIONS.keys() - fields.sections
    if left:
        raise UnsupportedExport(f"config_text.py describes sections that do not exist: {', '.join(sorted(left))}")
    return page(*parts)


class _Fields:
    """Renders sections and remembers which ones it has rendered."""

    def __init__(self, schema: Json) -> None:
        self.definitions: Json = schema["$defs"]
        self.sections: set[str] = set()

    def section(self, path: str, node: Json, depth: int) -> list[str]:
        """Return a section and its subsections."""
        self.sections.add(path)
        if path not in text.SECTIONS:
            raise UnsupportedExport(f"config_text.py has no words for [{path}]")
        name = path.replace("*", "MODEL")
        definition = self.resolved(node)
        entry = self.resolved(self._item(definition))
        title = f"[[{name}]]" if "properties" in entry else f"[{name}]"
        parts = [f"{'#' * depth} {code(title)}", paragraph(text.SECTIONS[path])]
        definition = entry or definition
        if "properties" not in definition:
            return [*parts, self._map_table(definition)]
        own, inner = [], []
        for field, child in definition["properties"].items():
            if child.get("deprecated"):
                continue
            child_path = f"{path}.{field}"
            if "properties" in self.resolved(child) or "properties" in self.resolved(self._item(child)):
                inner.append((child_path, child))
                continue
            own.append((field, child))
            if "properties" in self.resolved(self._entry(child)):
                inner.append((f"{child_path}.*", self._entry(child)))
        parts += self._grouped(path, own, depth)
        for child_path, child in inner:
            parts += self.section(child_path, child, depth + 1)
        return parts

    def resolved(self, node: Json) -> Json:
        """Return the definition that a node refers to, or the node itself."""
        if "anyOf" in node:
            options = [option for option in node["anyOf"] if option != {"type": "null"}]
            if len(options) != 1:
                raise UnsupportedExport(f"anyOf with {len(options)} options")
            return self.resolved(options[0])
        if "$ref" not in node:
            return node
        found: Json = self.definitions[node["$ref"].removeprefix("#/$defs/")]
        return found

    def _entry(self, node: Json) -> Json:
        """Return the schema of the values of a map."""
        entry = self.resolved(node).get("additionalProperties")
        return entry if isinstance(entry, dict) else {}

    def _item(self, node: Json) -> Json:
        """Return the schema of the entries of a list of sections."""
        item = self.resolved(node).get("items")
        return item if isinstance(item, dict) and "$ref" in item else {}

    def _map_table(self, definition: Json) -> str:
        if definition.get("additionalProperties") != {"type": "string"}:
            raise UnsupportedExport(f"a section of {definition.get('additionalProperties')}")
        rows = [["any mutable field", "text", "unset", definition["description"]]]
        return table(["field", "type or values", "default", "meaning"], rows)

    def _grouped(self, path: str, fields: list[tuple[str, Json]], depth: int) -> list[str]:
        starts = text.PARTS.get(path, {})
        missing = starts.keys() - {name for name, _ in fields}
        if missing:
            raise UnsupportedExport(f"config_text.py names fields of [{path}] that do not exist: {', '.join(missing)}")
        parts: list[str] = []
        group: list[tuple[str, Json]] = []
        for name, node in fields:
            if name in starts:
                parts += self._table(group)
                title, about = starts[name]
                parts += [f"{'#' * (depth + 1)} {title}", paragraph(about)]
                group = []
            group.append((name, node))
        return parts + self._table(group)

    def _table(self, fields: list[tuple[str, Json]]) -> list[str]:
        if not fields:
            return []
        rows = [[code(name), self._type(node), self._default(node), self._about(name, node)] for name, node in fields]
        parts = [table(["field", "type or values", "default", "meaning"], rows)]
        names_of: dict[str, list[str]] = {}
        for name, node in fields:
            meanings = self._meanings(node)
            if meanings:
                names_of.setdefault(meanings, []).append(code(name))
        return parts + [f"{', '.join(names)}:\n\n{meanings}" for meanings, names in names_of.items()]

    def _type(self, node: Json) -> str:
        definition = self.resolved(node)
        if "enum" in definition:
            return ", ".join(code(word) for word in _words(definition))
        if "x-rows" in definition:
            return f'`"all"`, range, or list of {definition["x-rows"]}'
        kind = _only(definition["type"])
        if kind == "array" and definition["items"] is True:
            return "list of texts or whole numbers"
        if kind == "array":
            return f"list of {PLURALS[_only(definition['items']['type'])]}"
        if kind == "object":
            entry = self.resolved(self._entry(node))
            if definition["additionalProperties"] is True:
                return "table of anything"
            if "enum" in entry:
                return "table of " + " or ".join(self._type(self._entry(node)).split(", "))
            return "table of texts" if entry.get("type") == "string" else "sections by name"
        return KINDS[kind] + _range(node)

    def _meanings(self, node: Json) -> str:
        definition = self.resolved(node)
        meanings, aliases = definition.get("x-enum-descriptions", {}), definition.get("x-aliases", {})
        if "enum" not in definition or not (meanings or aliases):
            return ""
        lines = []
        for word in _words(definition):
            also = ", ".join(code(alias) for alias, meant in aliases.items() if meant == word)
            about = f": {meanings[word]}" if word in meanings else ""
            lines.append(f"* {code(word)}{f' (also {also})' if also else ''}{about}")
        return "\n".join(lines)

    def _default(self, node: Json) -> str:
        if "Required." in node.get("description", ""):
            return "required"
        if "default" not in node:
            return "unset"
        return code(json.dumps(node["default"], ensure_ascii=False))

    def _about(self, name: str, node: Json) -> str:
        about: str = node.get("description") or self.resolved(node).get("description", "")
        if not about:
            raise UnsupportedExport(f"the field {name} has no description")
        return about.removesuffix(" Required.")


def _words(definition: Json) -> list[str]:
    """Return the canonical values of an enumeration, without their aliases."""
    return [word for word in definition["enum"] if word not in definition["x-aliases"] and "-" not in word]


def _only(kinds: str | list[str]) -> str:
    named = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    if len(named) != 1:
        raise UnsupportedExport(f"a field of the types {kinds}")
    return named[0]


def _range(node: Json) -> str:
    least, most = node.get("minimum"), node.get("maximum")
    if most is not None and most >= BEYOND:
        most = None
    if least is not None and most is not None:
        return f", {_number(least)} to {_number(most)}"
    if least is not None:
        return f", from {_number(least)}"
    return "" if most is None else f", up to {_number(most)}"


def _number(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")

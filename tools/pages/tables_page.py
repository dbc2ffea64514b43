"""`docs/reference/tables.md`: the tables and views of `workspace.sqlite`, from its schema and the schema's comments."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pages import UnsupportedExport
from pages.markdown import code, generated_from, page, paragraph, table

INTRO = """\
# Workspace tables

`workspace.sqlite` in the run directory is an SQLite database with everything about one run. It can be read at any
moment, also during the run. Open it read-only: only the run writes to it.

`events` is the truth. The tables under *Projections* are computed from it in the transaction that adds the event, and
`synth-optimizers workspace rebuild` computes them again. Views are computed when they are read.

In tables, moments are milliseconds since 1970, and money is in billionths of a dollar. In views, moments are RFC 3339
in UTC. `NULL` is unknown, never zero. The [guide to results](../guides/results.md) has queries to begin with."""

SOURCE = "rust/crates/synth_optimizer_platform/migrations"

TABLES = """\
## Tables"""
VIEWS = """\
## Views"""
PROJECTIONS = """\
## Projections"""


@dataclass
class _Relation:
    """A table or a view, with its comments in the schema."""

    kind: str
    name: str
    about: str
    part: str
    columns: dict[str, str] = field(default_factory=dict)


def schema_files(root: Path) -> list[Path]:
    """Return the schema files of a tree, in the order in which they apply."""
    return sorted((root / SOURCE).glob("*.sql"))


def render(migrations: Sequence[str]) -> str:
    """Return the page of a schema, given as SQL."""
    relations = [relation for sql in migrations for relation in _relations(sql)]
    database = sqlite3.connect(":memory:")
    try:
        for sql in migrations:
            database.executescript(sql)
        parts = [generated_from("the schema", source=SOURCE), INTRO]
        heading = ""
        for relation in relations:
            wanted = _heading(relation)
            if wanted != heading:
                heading = wanted
                parts.append(heading)
            parts += _relation(relation, _columns(database, relation))
    finally:
        database.close()
    return page(*parts)


def _heading(relation: _Relation) -> str:
    if relation.kind == "VIEW":
        return VIEWS
    return PROJECTIONS if relation.part.startswith("Projections") else TABLES


def _relations(sql: str) -> Iterator[_Relation]:
    """Yield tables and views in order. A comment belongs to the statement that follows it without a blank line."""
    part = ""
    comment: list[str] = []
    relation: _Relation | None = None
    for line in sql.splitlines():
        if made := re.match(r"CREATE (TABLE|VIEW) (\w+)", line):
            relation = _Relation(made[1], made[2], " ".join(comment), part)
            yield relation
        elif heading := re.fullmatch(r"-- ===== (.*) =====", line):
            part = heading[1]
        elif line.startswith("--"):
            comment.append(line.removeprefix("--").strip())
            continue
        elif relation and relation.kind == "TABLE" and (told := re.match(r"  (\w+) .*?-- (.*)", line)):
            relation.columns[told[1]] = told[2]
        comment = []


def _columns(database: sqlite3.Connection, relation: _Relation) -> list[tuple[str, str]]:
    rows = database.execute(f"PRAGMA table_xinfo({relation.name})").fetchall()
    if not rows:
        raise UnsupportedExport(f"{relation.name} has no columns")
    return [(row[1], row[2]) for row in rows]


def _relation(relation: _Relation, columns: list[tuple[str, str]]) -> list[str]:
    about = _sentence(relation.about)
    if relation.kind == "VIEW":
        names = ", ".join(code(name) for name, _ in columns)
        return [f"### {relation.name}", about, paragraph(f"Columns: {names}.")]
    unknown = relation.columns.keys() - {name for name, _ in columns}
    if unknown:
        raise UnsupportedExport(f"{relation.name} has no columns {', '.join(sorted(unknown))}")
    told = {name: _sentence(text) for name, text in relation.columns.items()}
    # The column `one` only restricts the table to a single row.
    shown = [(name, kind.lower()) for name, kind in columns if name != "one"]
    rows = [[code(name), kind, told[name]] for name, kind in shown if name in told]
    rest = ", ".join(f"{code(name)} ({kind})" for name, kind in shown if name not in told)
    described = table(["column", "type", "meaning"], rows) if rows else ""
    listed = paragraph(f"{'Further columns' if rows else 'Columns'}: {rest}.") if rest else ""
    return [f"### {relation.name}", about, described, listed]


def _sentence(text: str) -> str:
    begun = text[:1].upper() + text[1:]
    return begun if not text or text.endswith((".", "?")) else f"{begun}."

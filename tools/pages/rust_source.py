"""Reads the few forms of Rust that the pages are made from, and fails on whatever it does not understand.

Understood are structs with named fields, the macros `words!` and `events!`, and doc comments before all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pages.rust_tokens import NotUnderstood, Reader, unquoted


@dataclass(frozen=True)
class Type:
    """A type: a name, and what stands between its angle brackets. A tuple has the name `()`."""

    name: str
    arguments: tuple[Type, ...] = ()


@dataclass(frozen=True)
class Field:
    """A field of a struct as it stands on the wire."""

    name: str
    type: Type
    about: str
    is_left_out: bool
    """Whether it is left out where it has nothing to say."""


@dataclass(frozen=True)
class Struct:
    """A struct with named fields."""

    name: str
    about: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Word:
    """One word of a vocabulary."""

    word: str
    aliases: tuple[str, ...]
    about: str


@dataclass(frozen=True)
class Words:
    """A closed vocabulary."""

    name: str
    about: str
    words: tuple[Word, ...]


@dataclass(frozen=True)
class EventType:
    """One row of the table of events."""

    wire: str
    about: str
    fields: str
    volatile: tuple[str, ...]
    is_aside: bool


class Parser(Reader):
    """Reads structs, vocabularies and rows of the table of events."""

    def type(self) -> Type:
        """Pass over a type."""
        if self.take_if("("):
            return Type("()", self._types(")"))
        name = self.kind("word")
        return Type(name, self._types(">") if self.take_if("<") else ())

    def _types(self, end: str) -> tuple[Type, ...]:
        found = [self.type()]
        while self.take_if(","):
            found.append(self.type())
        self.take(end)
        return tuple(found)

    def struct(self) -> Struct:
        """Pass over a struct with its docs and attributes."""
        about = self.docs()
        for attribute in self.attributes():
            if not attribute.startswith("derive("):
                raise NotUnderstood(f"{self.path.name}: the attribute {attribute!r} of a struct is not known")
        self.take("pub", "struct")
        name = self.kind("word")
        self.take("{")
        fields = []
        while not self.take_if("}"):
            fields.append(self._field(name))
        return Struct(name, about, tuple(fields))

    def _field(self, struct: str) -> Field:
        about = self.docs()
        wire, is_left_out = None, False
        for attribute in self.attributes():
            for option in _serde_options(attribute, self):
                if option.startswith("rename="):
                    wire = unquoted(option.removeprefix("rename="))
                is_left_out |= option.startswith("skip_serializing_if=")
        self.take("pub")
        name = self.kind("word")
        self.take(":")
        kind = self.type()
        self.take(",")
        if not about:
            raise NotUnderstood(f"{self.path.name}: {struct}.{name} has no doc comment")
        return Field(wire or name, kind, about, is_left_out)

    def words(self) -> Words:
        """Pass over `words! { ... }`."""
        self.take("words", "!", "{")
        about = self.docs()
        name = self.kind("word")
        self.take("{")
        words = []
        while not self.take_if("}"):
            meaning = self.docs()
            self.kind("word")
            self.take("=")
            spellings = [self.string()]
            while self.take_if("|"):
                spellings.append(self.string())
            self.take(",")
            words.append(Word(spellings[0], tuple(spellings[1:]), meaning))
        self.take("}")
        return Words(name, about, tuple(words))

    def event(self) -> EventType:
        """Pass over one row of the table of events."""
        about = self.docs()
        self.kind("word")
        self.take("(")
        fields = self.kind("word")
        self.take(")", "=")
        wire = self.string()
        self.take(",", "volatile", "[")
        volatile = []
        while not self.take_if("]"):
            volatile.append(self.string())
            if self.peek() != "]":
                self.take(",")
        is_aside = self.take_if(",")
        if is_aside:
            self.take("aside")
        self.take(";")
        if not about:
            raise NotUnderstood(f"{self.path.name}: {wire} has no doc comment")
        return EventType(wire, about, fields, tuple(volatile), is_aside)


def events_of(path: Path) -> list[EventType]:
    """Return every row of `events! { ... }`."""
    parser = Parser(path)
    starts = list(parser.places("events", "!", "{"))
    if len(starts) != 1:
        raise NotUnderstood(f"{path.name}: `events! {{` stands there {len(starts)} times, not once")
    parser.at = starts[0]
    parser.take("events", "!", "{")
    rows = []
    while not parser.take_if("}"):
        rows.append(parser.event())
    return rows


def items_of(path: Path) -> tuple[dict[str, Struct | Words], dict[str, str]]:
    """Return everything that a file defines, and the module of every name that it uses from elsewhere.

    The file may hold nothing but `use`, `words!` and structs.
    """
    parser = Parser(path)
    defined: dict[str, Struct | Words] = {}
    used: dict[str, str] = {}
    while parser.at < len(parser.tokens):
        if parser.peek() == "use":
            used |= _use(parser)
            continue
        item = parser.words() if parser.peek() == "words" else parser.struct()
        defined[item.name] = item
    return defined, used


def find(path: Path, name: str) -> Struct | Words | None:
    """Return the struct or vocabulary of this name, if the file defines it."""
    parser = Parser(path)
    for place in parser.places("pub", "struct", name, "{"):
        parser.at = _first_doc(parser, place)
        return parser.struct()
    return vocabularies(path).get(name)


def vocabularies(*paths: Path) -> dict[str, Words]:
    """Return every vocabulary that the files define."""
    found = {}
    for path in paths:
        parser = Parser(path)
        for place in parser.places("words", "!", "{"):
            # The macro that makes vocabularies calls itself, without docs.
            if parser.tokens[place + 3].kind == "doc":
                words = parser.words()
                found[words.name] = words
    return found


def _first_doc(parser: Parser, place: int) -> int:
    """Return where the docs and attributes before a place begin."""
    while place and (parser.tokens[place - 1].kind == "doc" or parser.tokens[place - 1].text == "]"):
        place -= 1
        if parser.tokens[place].text == "]":
            while parser.tokens[place].text != "#":
                place -= 1
    return place


def _serde_options(attribute: str, parser: Parser) -> list[str]:
    match = re.fullmatch(r"serde\((.*)\)", attribute)
    options = match.group(1).split(",") if match else []
    known = r"default|skip_serializing_if=\"(Option::is_none|BTreeMap::is_empty)\"|rename=\"\w+\""
    if not options or any(re.fullmatch(known, option) is None for option in options):
        raise NotUnderstood(f"{parser.path.name}: the attribute {attribute!r} is not known")
    return options


def _use(parser: Parser) -> dict[str, str]:
    """Return the names of a `use`, each with the path before it."""
    parser.take("use")
    path: list[str] = []
    while True:
        if parser.take_if("{"):
            names = []
            while not parser.take_if("}"):
                names.append(parser.kind("word"))
                parser.take_if(",")
            break
        path.append(parser.kind("word"))
        if parser.peek() == ";":
            names = [path.pop()]
            break
        parser.take(":", ":")
    parser.take(";")
    return {name: "::".join(path) for name in names}

"""Rust source as a list of tokens with a place in it; every failure names the file and the line."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<doc>///[^\n]*)
  | (?P<comment>//[^\n]*)
  | (?P<raw>r(?P<hashes>\#+)".*?"(?P=hashes))
  | (?P<text>"(?:\\.|[^"\\])*")
  | (?P<char>'(?:\\[^\n]+?|[^'\\\n])')
  | (?P<word>[A-Za-z_]\w*)
  | (?P<number>\d[\w.]*)
  | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class NotUnderstood(Exception):  # noqa: N818 (it says what it is)
    """The source holds something that this reader does not know."""


@dataclass(frozen=True)
class Token:
    """One token: its kind is `doc`, `text`, `word`, `number`, `sign`, `raw` or `char`."""

    kind: str
    text: str
    line: int


class Reader:
    """A file as a list of tokens, with a place in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tokens = _tokens(path.read_text(encoding="utf-8"))
        self.at = 0

    def fail(self, wanted: str) -> NotUnderstood:
        """Return the error that names the place and what was expected there."""
        if self.at >= len(self.tokens):
            return NotUnderstood(f"{self.path.name}: the file ends where {wanted} should be")
        token = self.tokens[self.at]
        return NotUnderstood(f"{self.path.name}:{token.line}: {token.text!r} stands where {wanted} should be")

    def places(self, *texts: str) -> Iterator[int]:
        """Go to every place where these tokens stand, one after the other."""
        for place in range(len(self.tokens)):
            coming = self.tokens[place : place + len(texts)]
            if [token.text for token in coming] == list(texts):
                self.at = place
                yield place

    def peek(self, ahead: int = 0) -> str:
        """Return the text of a coming token; nothing at the end."""
        place = self.at + ahead
        return self.tokens[place].text if place < len(self.tokens) else ""

    def take(self, *texts: str) -> None:
        """Pass over tokens that must be these."""
        for text in texts:
            if self.peek() != text:
                raise self.fail(repr(text))
            self.at += 1

    def take_if(self, text: str) -> bool:
        """Pass over a token if it is this one."""
        if self.peek() != text:
            return False
        self.at += 1
        return True

    def kind(self, kind: str) -> str:
        """Pass over a token of this kind and return its text."""
        if self.at >= len(self.tokens) or self.tokens[self.at].kind != kind:
            raise self.fail(f"a {kind}")
        self.at += 1
        return self.tokens[self.at - 1].text

    def string(self) -> str:
        """Pass over a string and return what it says."""
        return unquoted(self.kind("text"))

    def docs(self) -> str:
        """Pass over doc comments and return them as one text."""
        lines = []
        while self.at < len(self.tokens) and self.tokens[self.at].kind == "doc":
            lines.append(self.kind("doc").removeprefix("///").strip())
        return " ".join(lines).strip()

    def attributes(self) -> list[str]:
        """Pass over attributes and return what they hold, without spaces."""
        found = []
        while self.peek() == "#":
            self.take("#", "[")
            depth, held = 1, ""
            while depth:
                if self.at >= len(self.tokens):
                    raise self.fail("the end of an attribute")
                text = self.peek()
                depth += {"[": 1, "]": -1}.get(text, 0)
                held += text if depth else ""
                self.at += 1
            found.append(held)
        return found


def unquoted(text: str) -> str:
    """Return what a string literal says."""
    inner = text[1:-1]
    if re.search(r"\\[^\"\\]", inner):
        raise NotUnderstood(f"the string {text} holds an escape")
    return re.sub(r"\\(.)", r"\1", inner)


@functools.cache
def _tokens(source: str) -> list[Token]:
    tokens, line = [], 1
    for match in TOKEN.finditer(source):
        kind = "raw" if match.lastgroup == "hashes" else str(match.lastgroup)
        if kind not in {"space", "comment"}:
            tokens.append(Token(kind, match.group(), line))
        line += match.group().count("\n")
    return tokens

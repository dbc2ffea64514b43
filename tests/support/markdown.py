"""Parses Markdown pages for tests: code blocks, anchors and links; and runs their shell lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.polling import WAIT_TIMEOUT_SECONDS

FENCE = re.compile(
    r"(?P<note><!-- (?P<said>[^>]*?) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", flags=re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A code block of a page, and the comment directly above it."""

    language: str
    code: str
    note: str
    line: int


def all_blocks(text: str) -> list[Block]:
    """Return the code blocks of a page in order."""
    return [
        Block(found["language"], found["code"], found["said"] or "", text.count("\n", 0, found.start("code")))
        for found in FENCE.finditer(text)
    ]


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of one language."""
    return [block.code for block in all_blocks(text) if block.language == language]


def lines(text: str, language: str) -> list[str]:
    """Return the lines of all code blocks of one language."""
    return [line for block in blocks(text, language) for line in block.splitlines()]


def without_code(text: str) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> list[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", without_code(text), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def links(text: str) -> list[str]:
    """Return the targets of the links and images of a page within this repository."""
    return [found for found in re.findall(r"\]\(([^)\s]+)\)", without_code(text)) if "://" not in found]


def broken_links(page: Path) -> list[str]:
    """Return the broken links of a page, including those to headings."""
    broken = []
    for target in links(page.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        found = page.parent / file if file else page
        if not found.exists() or (anchor and anchor not in anchors(found.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


def run_words(words: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a page, which must succeed, and return its output."""
    # The commands of the test environment come first on the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SYNTH_OPTIMIZERS_")}
    ended = subprocess.run(  # noqa: S603 (commands of our own pages)
        words,
        cwd=place,
        env=environ | {"PATH": path, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
    return ended

"""Writes the section "Edits" of the benchmark page from the figures that the tests of edits write.

Usage: python report.py --results DIRECTORY --page docs/benchmarks.md

The section is what stands between the two marks in the page; the rest of the page stays as it is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

BEGIN = "<!-- The section below is written by `make bench-edits`. -->"
END = "<!-- End of the section that `make bench-edits` writes. -->"

Figures = Mapping[str, Any]

# Classes of texts by their number of lines. Shorter texts are not asked for by edits.
CLASSES = (("6-20 lines", 20), ("21-100 lines", 100), ("more than 100 lines", 10**9))
ALL = "all"

# Recorded after the outcomes of the others were known, because many of their lines occur more than once.
LATER = ("cli", "http", "lifecycles", "tables")

INTRODUCTION = """\
Written on {day} by `make bench-edits`, which needs no key. A proposer is asked to change a text of more than 5 lines by
[edits](reference/proposals.md#edits). This section says how many of such answers apply, and how many tokens they save.

*Recorded* are the answers of a language model about {texts} prompts, instructions and pages of this repository, with
{least} to {most} lines. `bench/edits/recorded` has each text as it was, three rows of evidence that ask for one to
three changes, and the answers exactly as the model wrote them. The questions are those that the proposer
`openai_compatible` renders. Each was answered once, and no answer was corrected afterwards. A refused answer got the
repair question of the product, and one more answer. The first {first} texts were all answered before any answer was
checked. {later} were added when these outcomes were known, because many of their
lines occur more than once.

*Scripted* are four changes of each of {scripted} texts of this repository: a new rule, a reworded line, a reworded line
with a rule below a heading, a deleted line. The script quotes any line, whether it occurs once or not. Of the reworded
lines it quotes some in part, and one in ten wrongly.

Both kinds go through the proposer and the parser of its answers. Recorded answers then go through the whole check of
proposals, scripted ones only through the application of edits. `kept lines` is the mean of `kept_share`. `whole texts`
are the tokens of the same answers with the whole new text instead of edits. Tokens are characters divided by 4, the
estimate of `gepa.max_candidate_tokens`. They include the thoughts that an answer has as fields, and refused answers.
"""
LIMITS = """\
What the figures do not say: the recorded answers are of one model, and they probably flatter it. The same model wrote
the rows of evidence, knew how edits are matched beyond what the question says, and answered all questions in one
session. The rows come from no run, and what their feedback says need not be true of this package. How exactly other
models quote was not measured. Tokens of reasoning outside of the answer are not counted. That an answer applies does
not say that the new text scores better.

The shortest texts save little or nothing, because the fields around the edits are as long as the text.
"""


def share(part: float, whole: float) -> str:
    """Return a share in percent."""
    return f"{100 * part / whole:.1f} %"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Write a table."""
    names = list(head)
    yield "| " + " | ".join(names) + " |"
    yield "|" + " --- |" * len(names)
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"
    yield ""


def class_of(lines: int) -> str:
    """Return the class of a text."""
    return next(name for name, most in CLASSES if lines <= most)


def recorded_rows(recorded: list[Figures]) -> Iterator[Iterable[object]]:
    """Return a row for each class of the recorded answers, and one for all of them."""
    for name in (*(name for name, _ in CLASSES), ALL):
        texts = [text for text in recorded if name in (ALL, class_of(text["lines"]))]
        kept = [text["kept_share"] for text in texts if text["kept_share"] is not None]
        edits, whole = (sum(text[field] for text in texts) for field in ("answer_tokens", "whole_answer_tokens"))
        yield (
            name,
            len(texts),
            share(sum(text["applies_at_once"] for text in texts), len(texts)),
            share(sum(text["applies"] for text in texts), len(texts)),
            share(statistics.mean(kept), 1),
            f"{edits:,}",
            f"{whole:,}",
            f"{sum(text['text_tokens'] for text in texts):,}",
            share(whole - edits, whole),
        )


def scripted_rows(scripted: list[Figures]) -> Iterator[Iterable[object]]:
    """Return a row for each class of the scripted answers, and one for all of them."""
    for name in (*(name for name, _ in CLASSES), ALL):
        tallies = [tally for tally in scripted if name in (ALL, tally["name"])]
        fields = ("texts", "answers", "at_once", "repaired", "answer_tokens", "whole_answer_tokens")
        texts, answers, at_once, repaired, edits, whole = (sum(tally[field] for tally in tallies) for field in fields)
        yield (
            name,
            texts,
            answers,
            share(at_once, answers),
            share(at_once + repaired, answers),
            f"{edits:,}",
            f"{whole:,}",
            share(whole - edits, whole),
        )


def refusals(recorded: list[Figures]) -> Iterator[str]:
    """List the recorded answers that were refused."""
    refused = [text for text in recorded if not text["applies_at_once"]]
    if not refused:
        yield from ("No recorded answer was refused.", "")
        return
    yield from ("Refused first answers:", "")
    for text in refused:
        end = "the second answer applies" if text["applies"] else "the second answer is refused too"
        yield f"* `{text['name']}`: `{'`, `'.join(text['problems'])}`; {end}"
    yield ""


def text_rows(recorded: list[Figures]) -> Iterator[Iterable[object]]:
    """Return a row for each text, the shortest first."""
    for text in sorted(recorded, key=lambda text: (text["lines"], text["name"])):
        edits, whole = text["answer_tokens"], text["whole_answer_tokens"]
        outcome = "applies" if text["applies_at_once"] else "after repair" if text["applies"] else "refused"
        kept = "" if text["kept_share"] is None else share(text["kept_share"], 1)
        yield text["name"], text["lines"], outcome, kept, edits, whole, share(whole - edits, whole)


def section(recorded: list[Figures], scripted: list[Figures], day: str) -> Iterator[str]:
    """Write the section."""
    lines = [text["lines"] for text in recorded]
    wanted = {name for name, _ in CLASSES}
    scripted = [tally for tally in scripted if tally["name"] in wanted]
    yield from ("## Edits", "")
    yield INTRODUCTION.format(
        day=day,
        texts=len(recorded),
        least=min(lines),
        most=max(lines),
        first=len(recorded) - len(LATER),
        later=", ".join(f"`{name}`" for name in LATER),
        scripted=sum(tally["texts"] for tally in scripted),
    )
    outcome = ("apply at once", "after one repair")
    yield from ("### Recorded answers", "")
    head = ("text", "texts", *outcome, "kept lines", "tokens", "whole texts", "new texts alone", "saved")
    yield from table(head, recorded_rows(recorded))
    yield from refusals(recorded)
    yield from ("### Scripted answers", "")
    yield from table(("text", "texts", "answers", *outcome, "tokens", "whole texts", "saved"), scripted_rows(scripted))
    yield LIMITS
    yield from ("### Recorded answers by text", "")
    yield from table(("text", "lines", "outcome", "kept lines", "tokens", "whole text", "saved"), text_rows(recorded))


def main() -> None:
    """Read the figures and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, required=True, help="directory of the figures")
    parser.add_argument("--page", type=Path, required=True, help="page with the two marks")
    parser.add_argument("--date", default=date.today().isoformat(), help="date of the measurement")
    options = parser.parse_args()
    recorded, scripted = (
        json.loads((options.results / f"{name}.json").read_text(encoding="utf-8")) for name in ("recorded", "scripted")
    )
    page = options.page.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{options.page}: the marks of the section are missing: {BEGIN} and {END}")
    lines = [begin, "", *section(recorded, scripted, options.date)]
    options.page.write_text(before + "\n".join(lines).rstrip() + "\n\n" + end + after, encoding="utf-8")


if __name__ == "__main__":
    main()

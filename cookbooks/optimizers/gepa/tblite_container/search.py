"""Searches pipelines of common commands that turn the input of an example into its output.

Stages are appended to each other, shortest pipelines first, and run in the sandbox under its limits. After each stage
the texts nearest to the wanted output are kept. The number of runs is bounded. The available stages depend only on the
current text and on words of the instruction. So equal inputs give equal results, as long as no stage times out: those
that do are dropped, which depends on the load of the machine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tblite_container.policy import PLACE, script
from tblite_container.sandbox import Command, Sandbox

MAX_STAGES = 4
KEPT = 24
AT_ONCE = 6
MAX_ORDERS = 3
SEPARATORS = {",": "-d,", " ": "-d' '", "/": "-d/", ".": "-d.", "=": "-d="}


@dataclass(frozen=True)
class Example:
    """Small inputs by file name, the expected output, and the instruction."""

    inputs: tuple[tuple[str, str], ...]
    output: str
    instruction: str

    @property
    def text(self) -> str:
        """All inputs, concatenated."""
        return "".join(text for _, text in self.inputs)


@dataclass(frozen=True)
class State:
    """A text and the stages that produced it."""

    stages: tuple[str, ...]
    text: str


def pipelines(sandbox: Sandbox, example: Example, unwanted: frozenset[str] = frozenset()) -> list[str]:
    """Return short pipelines that reproduce an example, without the unwanted ones.

    Pipelines that depend on the accidental order of the input lines come last.
    """
    known = {example.text}
    states = [State((), example.text)]
    accidents: list[str] = []
    for _ in range(MAX_STAGES):
        grown: list[State] = []
        for start in range(0, len(states), AT_ONCE):
            for state in _expanded(sandbox, states[start : start + AT_ONCE], example.instruction):
                if state.text == example.output or (state.text.strip() and state.text not in known):
                    known.add(state.text)
                    grown.append(state)
            found = dict.fromkeys(render_pipeline(state.stages) for state in grown if state.text == example.output)
            fresh = [one for one in found if one not in unwanted and one not in accidents]
            right = reproducing(sandbox, fresh, example)
            sound = order_independent(sandbox, right, example)
            if sound:
                return sound
            accidents += right
        states = _nearest([state for state in grown if state.text != example.output], example.output)
    return accidents


def _nearest(states: Sequence[State], wanted: str) -> list[State]:
    """Return the states nearest to the wanted text, with few that differ only in the order of lines.

    No stage brings back a lost word.
    """
    needed = _words(wanted)
    able = [state for state in states if needed <= _words(state.text)]
    ordered = sorted(able, key=lambda state: (-likeness(state.text, wanted), len(state.text), state.stages))
    counts: Counter[tuple[str, ...]] = Counter()
    kept = []
    for state in ordered:
        lines = tuple(sorted(state.text.splitlines()))
        counts[lines] += 1
        if counts[lines] <= MAX_ORDERS:
            kept.append(state)
    return kept[:KEPT]


def reproducing(sandbox: Sandbox, candidates: Sequence[str], example: Example) -> list[str]:
    """Return the pipelines that produce the output of an example from its input files."""
    files = dict(example.inputs)
    outcomes = sandbox.run([Command(script(one, list(files)), files) for one in candidates])
    return [
        one
        for one, outcome in zip(candidates, outcomes, strict=True)
        if not outcome.problem and outcome.stdout == example.output
    ]


def order_independent(sandbox: Sandbox, candidates: Sequence[str], example: Example) -> list[str]:
    """Return the pipelines that print the same lines, in any order, when the input lines are reordered."""
    wanted = sorted(example.output.splitlines())
    for turn in (_reversed, _shuffled):
        files = {name: turn(text) for name, text in example.inputs}
        outcomes = sandbox.run([Command(script(one, list(files)), files) for one in candidates])
        pairs = zip(candidates, outcomes, strict=True)
        candidates = [one for one, outcome in pairs if sorted(outcome.stdout.splitlines()) == wanted]
    return list(candidates)


def _reversed(text: str) -> str:
    return "".join(reversed(text.splitlines(keepends=True)))


def _shuffled(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[1::2] + lines[::2])


def render_pipeline(stages: Sequence[str]) -> str:
    """Return stages as a pipeline that reads the input files."""
    first = stages[0]
    # These commands read no files, or print their names.
    if first.startswith(("tr ", "wc ", "grep -c ", "head ", "tail ")):
        return " | ".join([f"cat {PLACE}", *stages])
    head, *rest = first.split(" | ")
    return " | ".join([f"{head} {PLACE}", *rest, *stages[1:]])


def likeness(text: str, wanted: str) -> float:
    """Return the similarity of two texts: their lines, their words, and their number of lines."""
    shared = [
        _overlap(_trimmed(text), _trimmed(wanted)),
        _overlap(sorted(_words(text)), sorted(_words(wanted))),
        _overlap(["line"] * text.count("\n"), ["line"] * wanted.count("\n")),
    ]
    return round(0.5 * shared[0] + 0.3 * shared[1] + 0.2 * shared[2], 6)


def _words(text: str) -> set[str]:
    return set(re.findall("[a-z]+", text.lower()))


def _trimmed(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def _overlap(left: list[str], right: list[str]) -> float:
    common = (Counter(left) & Counter(right)).total()
    return 2 * common / (len(left) + len(right)) if left or right else 1.0


def _expanded(sandbox: Sandbox, states: Sequence[State], instruction: str) -> list[State]:
    """Return the result of every stage on every state. One command runs all stages of a state."""
    options = [stages_for(state, instruction) for state in states]
    commands = [
        Command(
            "\n".join(f"{{ {stage}; }} < text 2> /dev/null; printf '\\0'" for stage in stages), {"text": state.text}
        )
        for state, stages in zip(states, options, strict=True)
    ]
    grown = []
    for state, stages, outcome in zip(states, options, sandbox.run(commands), strict=True):
        texts = outcome.stdout.split("\0")[:-1]
        pairs = zip(stages, texts, strict=False)  # Stages that timed out have no text.
        grown += [State((*state.stages, stage), text) for stage, text in pairs if text != state.text]
    return grown


def stages_for(state: State, instruction: str) -> list[str]:
    """Return the stages that may apply to a text, given the stages that produced it."""
    text = state.text
    lines = text.splitlines()
    found = ["wc -l"]
    if lines[1:]:
        found += ["sort", "sort -u", "sort | uniq -c", "sort | uniq -c | sort -k1,1nr -k2,2"]
        found += ["tac", "awk '!seen[$0]++'", "wc -w"]
    if lines[1:] and state.stages and state.stages[-1].startswith("sort"):
        # The first lines of a text, or adjacent lines, are meaningful only if it is sorted.
        found += ["head -n 1", "tail -n 1", "uniq -d", "uniq -u"]
    for separator, option in SEPARATORS.items():
        if any(separator in line.strip() for line in lines):
            found += _field_stages(lines, separator, option)
    if re.search("^ ", text, flags=re.MULTILINE):
        found.append("sed 's/^ *//'")
    if re.search("^$", text.removesuffix("\n"), flags=re.MULTILINE):
        found.append("grep -v '^$'")
    if re.search("[A-Z]", text):
        found.append("tr A-Z a-z")
    if re.search("[a-z] [A-Za-z]", text):
        found.append("tr -cs A-Za-z '\\n'")
    if all(line.strip()[:1].isdigit() for line in lines):
        found += ["sort -n", "sort -rn"] if lines[1:] else []
    # Words in capitals and single symbols that the instruction and the text share.
    for word in sorted(set(re.findall(r"\b[A-Z]{3,}\b", instruction))):
        found += [f"grep {word}", f"grep -v {word}", f"grep -c {word}"] if word in text else []
    for sign in sorted(set(re.findall(r"(?<!\S)([#;%*!])(?![\w])", instruction))):
        found += [f"grep -v '^{sign}'"] if any(line.startswith(sign) for line in lines) else []
    # Of stages with equal results the first one is kept: stages by position come after stages by content.
    found += ["tail -n +2"] if lines[1:] and not state.stages else []
    return found


def _field_stages(lines: list[str], separator: str, option: str) -> list[str]:
    most = max(line.strip().count(separator) for line in lines) + 1
    found = [f"cut {option} -f{field}" for field in range(1, min(most, 3) + 1)]
    found += [f"cut {option} -f{field}-" for field in range(2, min(most, 3) + 1)]
    awk = "awk" if separator == " " else f"awk -F{separator}"
    found.append(f"{awk} '{{print $NF}}'")
    if separator == " ":
        found += ["awk '{print $1}'", "awk '{print $2}'", "awk '{print $2, $1}'"]
    if all(re.search(rf"{re.escape(separator)}\d+$", line) for line in lines):
        key = "" if separator == " " else f"-t{separator} "
        found += [f"sort {key}-k2,2n", f"sort {key}-k2,2nr"] if lines[1:] else []
        found += [
            f"{awk} '{{s += $2}} END {{print s}}'",
            f"{awk} '{{s[$1] += $2}} END {{for (k in s) print k, s[k]}}'",
        ]
    return found

"""`runs lineage`, `runs rows`, `runs compare` and `runs transcript`: show a run as a whole."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from synth_optimizers.cli.errors import CommandError
from synth_optimizers.cli.formatting import (
    format_cost,
    format_count,
    format_duration,
    format_gain,
    format_number,
    format_score,
    format_stop_rule,
    one_line,
    pluralize,
)
from synth_optimizers.cli.options import (
    complete_run,
    json_option,
    root_option,
    run_argument,
    service_option,
    token_option,
)
from synth_optimizers.cli.output import print_message, write_json, write_lines, write_table, write_text
from synth_optimizers.cli.results import write_changes
from synth_optimizers.cli.source import RunSource, find_source
from synth_optimizers.diff import word_diff
from synth_optimizers.visible_text import visible_text

WIDTH = 80
"""The width of output that is not written to a terminal."""
MAX_TURN_LINES = 200
"""Lines of a text of a transcript that are shown without --all."""


def _width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH


def _shown(text: object, longest: int) -> str:
    """Return a text of a model or a container on one line, with visible characters only."""
    return one_line(visible_text(str(text)), longest)


@click.command(short_help="Show all candidates as a tree.")
@run_argument
@json_option
def lineage(run: RunSource, as_json: bool) -> None:
    """Show all candidates as a tree, with scores and what became of each, and the checks of a search in sprints."""
    found = run.lineage()
    if as_json:
        write_json(found)
        return
    if not found["candidates"]:
        print_message("the run has no candidates yet")
        return
    width = _width()
    for depth, known in _in_tree_order(found["candidates"]):
        for line in _candidate_lines(known, depth, width):
            write_text(line)
    write_text("* best, + on the frontier")
    if found["checks"]:
        write_text("")
        for check in found["checks"]:
            for line in _check_lines(check, width):
                write_text(line)


def _in_tree_order(candidates: list[dict[str, Any]]) -> Iterable[tuple[int, dict[str, Any]]]:
    """Yield the candidates with their depth, each after its first parent."""
    children: dict[str | None, list[dict[str, Any]]] = {}
    for known in candidates:
        children.setdefault(next(iter(known["parent_ids"]), None), []).append(known)
    # A stack instead of recursion: a line of candidates can be longer than the stack of Python.
    stack = [(0, known) for known in reversed(children.get(None, []))]
    while stack:
        depth, known = stack.pop()
        yield depth, known
        stack += [(depth + 1, child) for child in reversed(children.get(known["candidate_id"], []))]


def _candidate_lines(known: dict[str, Any], depth: int, width: int) -> list[str]:
    mark = "*" if known["is_best"] else "+" if known["on_frontier"] else " "
    # A long line of candidates stays readable: the indentation ends at a third of the width.
    indent = "  " * min(depth, width // 6)
    parts = [f"{mark} {indent}{known['candidate_id']}"]
    if known["train_score"] is not None:
        parts.append(f"train {format_number(known['train_score']['mean'])}")
    if known["heldout_score"] is not None:
        parts.append(f"held-out {format_number(known['heldout_score']['mean'])}")
    if known["operation"] in ("merge", "rebase"):
        parts.append(f"{known['operation']} of {' and '.join(known['parent_ids'])}")
    if known["sprint"] is not None:
        parts.append(f"sprint {known['sprint']}")
    head = _wrap("  ".join(parts), width, indent=f"    {indent}")
    reason = visible_text(known["reason"] or f"{known['status'].replace('_', ' ')}, not decided yet")
    return [*head, *_wrap(f"    {indent}{one_line(reason, 500)}", width, indent=f"    {indent}")]


def _check_lines(check: dict[str, Any], width: int) -> list[str]:
    verdict = "runs" if check["verdict"] is None else check["verdict"].replace("_", " ")
    compared = f"of {check['head_id']} against {check['anchor_id']}"
    text = f"check {check['check']} (sprint {check['sprint']}) {compared}: {verdict}"
    if check["reason"]:
        text += f", {one_line(visible_text(check['reason']), 300)}"
    return _wrap(f"{text}; {pluralize(check['rollouts'], 'rollout')}", width, indent="  ")


def _wrap(text: str, width: int, indent: str) -> list[str]:
    lead = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(
        text.lstrip(), width, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False
    ) or [""]


@click.command(short_help="Show the scores of candidates by row.")
@run_argument
@json_option
@click.option("--split", type=click.Choice(["train", "heldout"]), default="train", show_default=True, help="The rows.")
@click.option("--metric", metavar="NAME", help="Another objective than the deciding one.")
@click.option(
    "--order",
    type=click.Choice(["unsolved", "gain", "id"]),
    default="unsolved",
    show_default=True,
    help="Which rows come first.",
)
@click.option("--candidate", "candidates", multiple=True, metavar="ID", help="A column; may be repeated.")
@click.option("--all", "show_all", is_flag=True, help="All rows, and all candidates in the JSON document.")
def rows(
    run: RunSource,
    as_json: bool,
    split: str,
    metric: str | None,
    order: str,
    candidates: tuple[str, ...],
    show_all: bool,
) -> None:
    """Show the scores of candidates by row: unsolved rows first, who wins a row, and where the best candidate gained.

    The columns are the initial, the best and the accepted candidates, as many as fit. A dot is a row that was not
    measured.
    """
    columns = ",".join(candidates) or ("all" if show_all and as_json else None)
    query = {"split": split, "metric": metric, "order": order, "candidates": columns, "limit": 1000 if show_all else 40}
    found = run.rows(**query)
    pages = [found]
    while show_all and pages[-1]["next_offset"] is not None:
        pages.append(run.rows(**query, offset=pages[-1]["next_offset"]))
    table = {**found, "rows": [row for page in pages for row in page["rows"]], "next_offset": pages[-1]["next_offset"]}
    if as_json:
        write_json(table)
        return
    if not table["rows"]:
        print_message(f"the run has no rollouts on {split} rows")
        return
    _write_rows(table, split)


def _write_rows(table: dict[str, Any], split: str) -> None:
    ids = [known["candidate_id"] for known in table["candidates"]]
    chosen = _columns_that_fit(table)
    named = {table["best_candidate_id"]: "best", table["initial_candidate_id"]: "initial"}
    titles = [
        "row",
        "gain",
        "best",
        "won by",
        *(named.get(ids[at], ids[at].removeprefix("gepa_")[:8]) for at in chosen),
    ]
    lines = [
        [
            _shown(row["example_id"], 24),
            "-" if row["gain"] is None else f"{row['gain']:+.3f}",
            "-" if row["best_value"] is None else f"{row['best_value']:.3f}",
            f"{row['winner_count']} of {row['measured']}",
            *(_cell(row["cells"][at]) for at in chosen),
        ]
        for row in table["rows"]
    ]
    write_table(titles, lines)
    hidden = len(ids) - len(chosen) + table["candidate_count"] - len(ids)
    more = [f"{len(table['rows'])} of {pluralize(table['row_count'], f'{split} row')}"]
    more += [f"{pluralize(hidden, 'more candidate')} in --json"] if hidden > 0 else []
    more += ["all rows with --all"] if table["next_offset"] is not None else []
    write_text("; ".join(more))


def _cell(cell: float | str | None) -> str:
    return "." if cell is None else cell if isinstance(cell, str) else f"{cell:.3f}"


def _columns_that_fit(table: dict[str, Any]) -> list[int]:
    """Return the columns that fit: the initial and the best candidate, then the newest ones."""
    count = max(2, (_width() - 24 - 28) // 10)
    places = range(len(table["candidates"]))
    first = [at for at in places if table["candidates"][at]["is_initial"] or table["candidates"][at]["is_best"]]
    others = [at for at in places if at not in first]
    return sorted([*first, *others[max(0, len(others) - max(0, count - len(first))) :]])


@click.command(short_help="Compare two runs, or two candidates of one run.")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.argument("other", metavar="[OTHER_RUN]", required=False, shell_complete=complete_run)
@click.option(
    "--candidate",
    "candidate_id",
    metavar="ID",
    help="The candidate of the first run: best (the default), initial or an id.",
)
@click.option("--other-candidate", "other_candidate_id", metavar="ID", help="The same for the second run.")
@root_option
@service_option
@token_option
@json_option
def compare(
    run: str,
    other: str | None,
    candidate_id: str | None,
    other_candidate_id: str | None,
    root: Path,
    service: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Compare two runs: settings that differ, the gain of the second best candidate over the first, texts and costs.

    Without OTHER_RUN, the initial and the best candidate of one run are compared, or those that are named.
    """
    first = find_source(run, root, service, token_file)
    second = first if other is None else find_source(other, root, service, token_file)
    if first.kind != second.kind:
        hint = "Name two directories, or two runs of the same service."
        raise CommandError(f"{run} and {other} are not both directories or both runs of a service", hint)
    found = first.compare(second, candidate_id=candidate_id, other_candidate_id=other_candidate_id)
    if as_json:
        write_json(found)
        return
    write_lines(_comparison_lines(found), 12)
    if found["settings"]:
        write_text("")
        lines = [[known["field"], _setting(known["left"]), _setting(known["right"])] for known in found["settings"]]
        write_table(["setting", found["left"]["run_id"], found["right"]["run_id"]], lines)
    changes = {
        str(known["field"]): word_diff(visible_text(known["left"] or ""), visible_text(known["right"] or ""))
        for known in found["texts"]
    }
    if changes:
        write_text("")
        write_changes(changes)


def _setting(value: object) -> str:
    return "-" if value is None else _shown(value, 20)


def _comparison_lines(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for label, side in (("first", found["left"]), ("second", found["right"])):
        cost, tokens = side["usage"]["cost_usd"], side["usage"]["total_tokens"]
        rollouts = pluralize(side["rollouts_finished"], "rollout")
        lines += [
            (label, f"{side['run_id']} {side['state']}, candidate {side['candidate_id'] or 'none'}"),
            ("", f"train {format_score(side['train_score'])}"),
            ("", f"held-out {format_score(side['heldout_score'])}"),
            ("", f"{rollouts}, {format_count(tokens)} tokens, {format_cost(cost)}"),
        ]
        if side["stopped_by"]:
            lines.append(("", f"stopped by {format_stop_rule(side['stopped_by'])}"))
    for label, gain in (("train gain", found["train_gain"]), ("held-out", found["heldout_gain"])):
        if gain is not None:
            lines.append((label, format_gain(gain)))
    return [*lines, *(("note", note) for note in found["notes"])]


@click.command(short_help="Show proposer turns, or one with its texts.")
@run_argument
@click.argument("turn", required=False, metavar="[TURN]")
@click.option("--all", "show_all", is_flag=True, help="Show long texts in full.")
@json_option
def transcript(run: RunSource, turn: str | None, show_all: bool, as_json: bool) -> None:
    """List the proposer turns, or show what the proposer saw and wrote in one of them. TURN is a number, from 1."""
    if turn is None:
        turns = run.turns()
        if as_json:
            write_json({"turns": turns})
        elif not turns:
            print_message("the proposer was not asked yet")
        else:
            titles = ("turn", "gen", "status", "model", "tokens", "cost", "time", "proposals")
            write_table(titles, [_turn_row(known) for known in turns])
        return
    found = run.turn(turn)
    if as_json:
        write_json(found)
        return
    _write_turn(found, show_all=show_all)


def _turn_row(known: dict[str, Any]) -> list[str]:
    tokens = (known["usage"] or {}).get("total_tokens")
    kind = "repair " if known["is_repair"] else ""
    outcomes = [proposal["outcome"] for proposal in known["proposals"]]
    fates = [f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes)]
    return [
        str(known["turn"]),
        str(known["generation"]),
        f"{kind}{known['status']}{' (cached)' if known['cached'] else ''}",
        _shown(known["effective_model"] or known["requested_model"] or "-", 20),
        "-" if tokens is None else format_count(tokens),
        format_cost(known["cost_usd"]),
        "-" if known["duration_ms"] is None else format_duration(known["duration_ms"] / 1000),
        ", ".join(fates) or "-",
    ]


def _write_turn(found: dict[str, Any], *, show_all: bool) -> None:
    lines = [
        ("turn", f"{found['turn']} of generation {found['generation']}, attempt {found['attempt']}: {found['status']}")
    ]
    if found["parent_ids"]:
        lines.append(("parent", " and ".join(found["parent_ids"])))
    if found["evidence"]:
        lines.append(("evidence", _shown(", ".join(found["evidence"]), 200)))
    if found["failure"]:
        lines.append(("error", _shown(found["failure"]["message"], 300)))
    for proposal in found["proposals"]:
        why = "; ".join(_shown(problem["message"], 200) for problem in proposal["problems"])
        fate = f"{proposal['index']} {proposal['outcome']} {proposal['candidate_id'] or ''}".rstrip()
        # A service of an earlier version has no such field.
        status = proposal.get("candidate_status")
        if status:
            fate += f", {status.replace('_', ' ')}"
        lines.append(("proposal", f"{fate}: {why}" if why else fate))
    spoken = found["transcript"]
    if spoken["problem"]:
        lines.append(("transcript", _shown(spoken["problem"], 300)))
    write_lines(lines, 12)
    for title, texts in (("shown", spoken["shown"]), ("answered", spoken["answered"])):
        for said in texts:
            write_text(f"\n== {title}: {_shown(said['role'], 40)}")
            _write_long(said["text"], show_all=show_all)
    if spoken["left_out"]:
        print_message(f"{pluralize(spoken['left_out'], 'message')} left out; {spoken['artifact']} has all of them")


def _write_long(text: str, *, show_all: bool) -> None:
    lines = visible_text(text).splitlines()
    kept = lines if show_all or len(lines) <= MAX_TURN_LINES else lines[:MAX_TURN_LINES]
    write_text(os.linesep.join(kept))
    if len(kept) < len(lines):
        write_text(f"... {pluralize(len(lines) - len(kept), 'more line')}; show them with --all")

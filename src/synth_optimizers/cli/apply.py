"""`runs apply`: writes the best texts of a run back to where the initial texts came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from synth_optimizers.cli.errors import CommandError
from synth_optimizers.cli.options import json_option, run_argument
from synth_optimizers.cli.output import print_message, write_json, write_text
from synth_optimizers.cli.results import candidates_to_compare, write_changes
from synth_optimizers.cli.source import RunSource
from synth_optimizers.cli.summary import display_path
from synth_optimizers.config import GepaConfig
from synth_optimizers.diff import word_diff
from synth_optimizers.text_source import TextSource


@click.command(short_help="Write the best texts back to their files.")
@run_argument
@click.option("--candidate", metavar="CANDIDATE", help="Another candidate than the best one.")
@click.option("--dry-run", is_flag=True, help="Show the changes and write nothing.")
@click.option("--force", is_flag=True, help="Also replace a text that has changed since the run.")
@json_option
def apply(run: RunSource, candidate: str | None, dry_run: bool, force: bool, as_json: bool) -> None:
    """Show the changes, and write the best texts to the files that the initial texts came from.

    Every other byte of the files stays as it is. A text that has changed since the run is not replaced without --force.
    """
    sources = _sources(run)
    initial, chosen = candidates_to_compare(run.summary(), (), run, candidate)
    plan = [_change(name, sources[name], initial, chosen, force=force) for name in sources]
    if not as_json:
        print_message(f"{initial['candidate_id']} -> {chosen['candidate_id']}")
        write_changes({change["field"]: word_diff(change["before"], change["after"]) for change in plan})
    changed = [change for change in plan if change["before"] != change["after"]]
    for change in changed:
        TextSource.parse_required(change["source"]).check(change["after"])
    for change in changed if not dry_run else []:
        TextSource.parse_required(change["source"]).write(change["after"])
        change["written"] = True
    if as_json:
        write_json({"candidate_id": chosen["candidate_id"], "texts": plan})
        return
    for change in plan:
        word = "written to" if change["written"] else "would be written to" if change in changed else "already in"
        write_text(f"{change['field']} {word} {_shown(change['source'])}")


def _sources(run: RunSource) -> dict[str, str]:
    place = run.place
    if isinstance(place, str):
        raise CommandError(f"{place} is a run of a service, which has no files here", "Use `runs best --out FILE`.")
    found: dict[str, str] = GepaConfig.from_run_dir(place).to_dict()["candidate"].get("sources") or {}
    if not found:
        raise CommandError(
            f"the run in {display_path(place)} does not know where its texts came from",
            "Use `runs best --out FILE`; or give texts as @FILE, FILE.toml:KEY, FILE.yaml#KEY or module:NAME, "
            "or name them in [candidate.sources].",
        )
    return found


def _change(name: str, source: str, initial: dict[str, Any], chosen: dict[str, Any], *, force: bool) -> dict[str, Any]:
    """Return what happens to one text. The file must still hold the initial text, or the new one."""
    before, after = TextSource.parse_required(source).read(), str(chosen["payload"][name])
    known = (str(initial["payload"][name]), after)
    # A file may end with a line break that the text of a candidate does not have.
    if (
        not force
        and before not in known
        and before.removesuffix("\n") not in [text.removesuffix("\n") for text in known]
    ):
        raise CommandError(
            f"{_shown(source)} has changed since the run: it does not hold the initial text of {name}",
            "Compare it with `runs diff`, then replace it with --force.",
        )
    if before.removesuffix("\n") == after.removesuffix("\n"):
        after = before
    return {"field": name, "source": source, "before": before, "after": after, "written": False}


def _shown(source: str) -> str:
    parsed = TextSource.parse_required(source)
    place = display_path(Path(parsed.path))
    return place if parsed.kind == "file" else f"{place} ({parsed.key})"

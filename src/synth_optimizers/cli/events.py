"""`synth-optimizers events`: replays and compares event feeds."""

from pathlib import Path

import click

from synth_optimizers import events_compare, events_replay
from synth_optimizers.cli.options import existing_file, json_option
from synth_optimizers.cli.output import write_json, write_text

FEED = click.Path(path_type=Path)
FEED_FILE = existing_file("the events.jsonl of a run directory")
NORMALIZED = existing_file("the events.normalized.jsonl of a run directory")


@click.group()
def events() -> None:
    """Read and compare event feeds."""


@events.command()
@click.option("--events", "feed", required=True, type=FEED, callback=FEED_FILE, metavar="FILE", help="An events.jsonl.")
@json_option
def replay(feed: Path, as_json: bool) -> None:
    """Print the events of a run as text."""
    story = events_replay(feed)
    if as_json:
        write_json({"events": str(feed), "lines": story.splitlines()})
    else:
        write_text(story, newline=False)


@events.command()
@click.option(
    "--left", required=True, type=FEED, callback=NORMALIZED, metavar="FILE", help="An events.normalized.jsonl."
)
@click.option(
    "--right", required=True, type=FEED, callback=NORMALIZED, metavar="FILE", help="The feed to compare it with."
)
@json_option
def compare(left: Path, right: Path, as_json: bool) -> None:
    """Compare two normalized feeds; exit with 1 if they differ."""
    events_compare(left, right)
    if as_json:
        write_json({"equal": True, "left": str(left), "right": str(right)})
    else:
        write_text("normalized event feeds match")

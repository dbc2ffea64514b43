"""From an evaluation function to a first optimized prompt through the Python API: the steps of BRING_YOUR_OWN_TASK.md.

Without options, the template task is run with its offline reflector and needs no key. With --base-url and --model, a
language model writes the proposals; its key, if it needs one, is in the variable OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from shared.launch import run_server
from shared.with_servers import reflector_of

from synth_optimizers import GepaRun
from synth_optimizers.bridge import serve

# Events that are printed during a run; all events are in events.jsonl of the run directory.
TOLD = ("generation.completed", "gepa.run.finished")


def config(url: str, proposer: dict[str, Any], runs: Path) -> dict[str, Any]:
    """Return the configuration of a run: the same sections and fields as in gepa.toml."""
    return {
        "run": {"output_dir": str(runs), "seed": 1},
        "container": {"url": url},
        "dataset": {"train_seeds": "all", "heldout_seeds": "all"},
        "candidate": {"target_modules": ["prompt"]},
        "proposer": {"backend": "openai_compatible", **proposer},
        "gepa": {"minibatch_size": 10, "max_total_rollouts": 600},
    }


@contextlib.contextmanager
def offline_proposer() -> Iterator[dict[str, Any]]:
    """Serve the template's reflector, and yield the section that names it."""
    free = {"prompt_usd": 0.0, "completion_usd": 0.0}
    with run_server(sys.executable, *reflector_of("template"), "--port", "0") as url:
        yield {"base_url": url, "model": "offline-reflector", "prices": {"offline-reflector": free}}


def main() -> None:
    """Run the task and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    own = Path(__file__).resolve().parent / "template_container"
    parser.add_argument("--task", type=Path, default=own, help="a directory with task.py, rows.csv and prompt.txt")
    parser.add_argument("--base-url", help="an OpenAI-compatible server, such as http://127.0.0.1:11434/v1")
    parser.add_argument("--model", help="its model")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are kept")
    args = parser.parse_args()
    if bool(args.base_url) != bool(args.model):
        parser.error("--base-url and --model go together")
    texts = {"prompt": (args.task / "prompt.txt").read_text(encoding="utf-8")}
    task = serve(f"{args.task / 'task.py'}:evaluate", rows=str(args.task / "rows.csv"), texts=texts)
    model = contextlib.nullcontext({"base_url": args.base_url, "model": args.model})
    with task as url, model if args.model else offline_proposer() as proposer:
        run = GepaRun.from_config(config(url, proposer, args.runs))
        with run.start() as handle:
            for event in handle.iter_events():
                if event.type in TOLD:
                    sys.stdout.write(f"{event.message}\n")
            result = handle.wait()
    scores = result.scores
    sys.stdout.write(f"held-out: seed {scores.seed_heldout}, best {scores.best_heldout}, gain {scores.heldout_gain}\n")
    sys.stdout.write(f"run directory: {result.run_dir}\n\n{result.best_candidate['payload']['prompt']}\n")


if __name__ == "__main__":
    main()

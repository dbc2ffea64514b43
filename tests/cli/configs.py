"""Configurations for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

from support.example import Example, example_config

CONFIG = """\
[run]
run_id = "router"
seed = 7
output_dir = "runs"

[container]
url = "http://127.0.0.1:{container}"
startup_timeout_seconds = 2

[dataset]
train_seeds = [0, 1, 2, 3, 4, 5]
heldout_seeds = [0, 1, 2]

[candidate]
target_modules = ["router_prompt"]

[proposer]
backend = "openai_compatible"
base_url = "http://127.0.0.1:{proposer}/v1"
model = "offline-reflector"

[proposer.prices.offline-reflector]
prompt_usd = 0.0
completion_usd = 0.0

[gepa]
search = "reference"
max_generations = 2
minibatch_size = 3
proposals_per_generation = 2
max_total_rollouts = 120

[cache]
mode = "readwrite"
path = "cache.sqlite"
namespace = "router"
"""


SMALL = {
    "dataset__train_seeds": list(range(8)),
    "dataset__heldout_seeds": list(range(4)),
    "run__run_id": "router",
    "gepa__search": "reference",
    "gepa__max_generations": 2,
    "gepa__minibatch_size": 4,
    "gepa__max_total_rollouts": 100,
    "gepa__proposals_per_generation": 2,
    "gepa__score_threshold_value": None,
    "cache__path": "cache.sqlite",
}


def small_config(directory: Path, example: Example, **changes: object) -> Path:
    """Write the configuration of a short run of the example."""
    return example_config(directory, example, **{**SMALL, **changes})


def write_config(directory: Path, *, container: int, proposer: int, text: str = CONFIG) -> Path:
    """Write a configuration of a small run."""
    path = directory / "gepa.toml"
    path.write_text(text.format(container=container, proposer=proposer))
    return path

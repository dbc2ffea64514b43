"""The hand-written texts of `docs/reference/config.md`: layers, paths, and the purpose of each section."""

TITLE = """\
# Configuration

A run is described by one TOML file. Only a few fields are required:"""

EXAMPLE = """\
[run]
run_id = "ticket-router"
seed = 7

[container]
url = "http://127.0.0.1:9100"

[dataset]
train_seeds = "0..7"
heldout_seeds = "0..3"

[candidate]
target_modules = ["router_prompt"]

[proposer]
backend = "openai_compatible"
base_url = "http://127.0.0.1:11434/v1"
model = "qwen3"

[gepa]
max_generations = 4
max_total_rollouts = 120"""

RULES = """\
* Every problem of a file is reported at once, with line, column and a hint.
* An unknown key is an error that names the nearest known one.
* Words such as `"readwrite"` are taken in upper and lower case, with `-` or `_`.
* A key or secret does not belong into the file. Fields that end in `_env` take the *name* of a variable.
* The JSON Schema for an editor is `synth_optimizers.config_schema()`."""

LAYERS = """\
## Where a value comes from

A value comes from one of four layers. A later layer replaces an earlier one.

1. The default of the field.
2. The file, or a mapping of the same shape.
3. The environment: the variables below, and no others. A blank variable is ignored.
4. `--set key=value`, which may be repeated; in Python `overrides=["key=value"]` or `overrides={"key": value}`. The last
   one for a key counts.

Each layer is checked on its own: a wrong value is reported even where a later layer replaces it. `gepa check
--explain` and `GepaConfig.explain()` show every value with its origin: `default`, `file:LINE:COLUMN`, `mapping`,
`environment:VARIABLE` or `set`."""

SET = """\
### `--set`

The key is the dotted path of a field. The value is written as in TOML; a text needs no quotes of its own.

```sh
--set gepa.minibatch_size=4
--set proposer.model=qwen3
--set 'dataset.train_seeds=[0, 1, 2, 3]'
--set 'proposer.prices."qwen3:8b"={ prompt_usd = 0.0, completion_usd = 0.0 }'
```"""

PATHS = """\
### Paths

A relative path starts at the directory of the file, whichever layer it comes from and wherever the command is run.
For a mapping it starts at the working directory. `~` is not replaced. These fields are paths: `run.output_dir`,
`container.cwd`, `cache.path`, `disk_budget.path`, `candidate.sources`, `proposer.codex_home`,
`proposer.instructions_file`, `proposer.price_file`, and the program in `proposer.command` if it holds a `/`; without
one it is looked for among the programs of `PATH`. Programs in `container.command` are left as they are: they start in
`container.cwd`."""

FIELDS = """\
## Every field

*Unset* means that the field is optional and has no default; the last column says what happens then. Seconds are at
most 10^9 and tokens at most 10^15; the tables do not repeat that.

Two fields are named after seeds and hold something else: `train_seeds` and `heldout_seeds` are row numbers, and
`[seed_candidate]` is the initial candidate. Only `run.seed` is a random seed."""

# The introduction of each section, before its table.
SECTIONS = {
    "run": "The name of the run, and where its files go: into a directory named `run_id` below `output_dir`. Running "
    "the file again under the same `run_id` continues the run.",
    "container": "The task is a service that answers HTTP, described in [containers.md](containers.md). Either it runs "
    "already at `url`, or `command` starts it for the run and ends it with it.",
    "dataset": "Rows by number. The container decides what a number means: an index, a seed of an environment, an "
    "episode. A container that names its tasks by id gets `SPLIT:NUMBER`, or the id at that place of its own list; the "
    "event `dataset.seeds.mapped` says which. Without `[dataset]` and `[taskset]`, a run uses all rows of the splits "
    "`train` and `test`, if the container names them.",
    "taskset": "Rows by name, for a container that knows its tasks by id. A configuration has `[dataset]` or "
    "`[taskset]`, not both.",
    "candidate": "What the search may change.",
    "candidate.keep": "A literal text that every candidate must keep. Repeat the table for more texts.",
    "seed_candidate": "The initial candidate. Each key is a mutable field of the container's program. With any entry, "
    "all texts of the initial candidate come from here, and the container's own are not used.",
    "policy": "The model that works on the task. The optimizer sends this section to the container with every rollout "
    "and does nothing else with it. It sends no key: the container has its own. A container that does not read the "
    "section ignores it, also its default model.",
    "proposer": "Who writes new texts. There are two backends, and fields of one are refused with the other. Only "
    '`codex_app_server` takes `command`, `sandbox_mode`, `approval_policy`, `auth_mode = "host"`, `codex_home`, '
    "`answer`, `max_turn_tokens`, `max_commands`, `startup_timeout_seconds`, `rpc_timeout_seconds` and "
    "`interrupt_timeout_seconds`. Only `openai_compatible` takes `structured_output`, `max_output_tokens`, "
    "`backoff_ms`, `backoff_max_seconds` and `max_concurrent_requests`.",
    "proposer.prices.*": "What the tokens of a model cost, in a section of its own per model, such as "
    "`[proposer.prices.qwen3]`. A model without a price makes the cost of the run unknown.",
    "gepa": "The search: how it goes, how rollouts are sent, how much it may use, and when it stops.",
    "gepa.objective_acceptance": "How objectives other than the deciding one take part in acceptance.",
    "gepa.candidate_selector": "How the parent of a generation is chosen.",
    "gepa.batch_sampler": "How the rows of a minibatch are drawn.",
    "gepa.seed_pools": "Which rows of `[dataset]` are used for what. An empty pool is the whole of what it is "
    "drawn from.",
    "gepa.task_pools": "The same for `[taskset]`. Without the section, every pool is all tasks.",
    "gepa.leakage": "Proposals are searched for text of the rows. Held-out text is refused whatever the policy.",
    "gepa.merge": "A merge takes fields from two candidates that share an ancestor.",
    "gepa.sprint": "Constants of the search in sprints, none of which needs to be set.",
    "gepa.circuit_breaker": "Stops a run whose container has broken.",
    "gepa.pipeline": "How work is ordered, and how much of it runs at once.",
    "gepa.pipeline.workers": "How much runs at once. It never changes what is decided, unless time is limited.",
    "gepa.pipeline.adaptive_rollout_concurrency": "Fewer rollouts at once while the container is overloaded, "
    "and more after enough successes. `gepa.pipeline.workers.rollout` is the upper limit.",
    "cache": "Answers of the container and of the proposer, kept by what was asked. Runs that share a file and a "
    "namespace share answers.",
    "disk_budget": "How much disk all runs together may take.",
}

# Parts of long sections: the first field of each part, its title and its introduction.
PARTS = {
    "gepa": {
        "max_generations": ("Search", "How candidates are made, screened and judged."),
        "rollout_submission_mode": ("Rollouts", "How rollouts are sent, tried again and given up."),
        "max_total_rollouts": (
            "Limits",
            "Work is reserved before it is sent, so that a limit on rollouts is never passed. With a limit on money, "
            "tokens or time, the estimates that it needs must be given too. If `max_train_rollouts` or "
            "`max_heldout_rollouts` is given, the two limits replace `max_total_rollouts`, which then only stands in "
            "for the one that is missing.",
        ),
        "no_improvement_generations": ("Stop rules", "When the search ends before a limit does."),
    },
}

"""A synth-container whose tasks are small jobs at a terminal, solved by one pipeline and judged by hidden checks.

With `--policy offline` the pipeline is that of the nearest recipe of the prompt, with `--policy llm` a model writes it.
Either way it runs in a jail, on an example that everyone may see and on hidden inputs. What it prints is
judged by pytest, in another jail.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, HTTPException

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shared import llm
from shared.container import ZERO_USAGE, application, prompt_program, rollout_record
from shared.rows import Json
from shared.serving import arguments, serve

from tblite_container.jail import KINDS, LANDLOCK, LIMITS
from tblite_container.policy import choose, script
from tblite_container.sandbox import AUTO, Case, Command, Outcome, Sandbox, SandboxError, Verdict
from tblite_container.tasks import EXAMPLE, HIDDEN, Task, load_tasks
from tblite_container.texts import feedback, pipeline_of, task_question

FAMILY = "tblite"
FIELD = "recipes_prompt"
SEED_PROMPT = """\
You solve small tasks at a terminal. Read the instruction and answer with one shell pipeline that reads the files
{input} and prints the result. Follow the recipe that fits the instruction best.
- show the file as it is: cat {input}
- number of lines of the file: wc -l < {input}"""


@dataclass(frozen=True)
class Answer:
    """The answer of a policy to a task: a pipeline or none, its source, and its usage."""

    pipeline: str | None
    source: str
    usage: Json
    trace: Json


@dataclass(frozen=True)
class Trial:
    """The outcome of a pipeline."""

    outcomes: dict[str, Outcome]
    verdicts: list[Verdict]

    @property
    def passed(self) -> int:
        """The number of checks that passed."""
        return sum(verdict.passed for verdict in self.verdicts)

    @property
    def is_solved(self) -> bool:
        """Whether there were checks and all of them passed."""
        return bool(self.verdicts) and self.passed == len(self.verdicts)


PROGRAM = prompt_program(
    FAMILY,
    FIELD,
    SEED_PROMPT,
    names=("recipes", "task"),
    question="{instruction}",
    variables=["instruction"],
)
"""The program: the recipes, which are mutable, and the task as their input."""


def task_info() -> Json:
    """Return the description of the task for a proposer."""
    return {
        "task": {
            "task_id": FAMILY,
            "name": "TBLite",
            "description": "Solve small terminal tasks with one shell pipeline of common commands each.",
        },
        "output_space": {"kind": "shell pipeline"},
        "proposal_guidance": {
            "premises": [
                "A recipe is a line `- description: pipeline`. A description may hold phrases, parted by semicolons.",
                "The offline policy runs the recipe with the phrase nearest in meaning to the instruction.",
                "{input} stands for the names of all input files. bash, coreutils, grep, sed and awk are there.",
                "The pipeline is judged on hidden inputs, by checks of its output.",
            ],
            "constraints": [
                "Write recipes for kinds of tasks, not for single tasks.",
                "No colon in a description; one line for each recipe.",
            ],
        },
    }


async def answer_of(policy: str, request: Json, task: Task, prompt: str) -> Answer:
    """Return the pipeline of the policy."""
    if policy == "llm":
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": task_question(task)}]
        said = await llm.complete(messages, request.get("policy") or {})
        heard: Json = {"type": "llm_response", "messages": messages, "text": said.text}
        return Answer(pipeline_of(said.text), "the model", dict(said.usage), heard)
    choice = choose(prompt, task.instruction)
    trace: Json = {"type": "recipe_chosen", "nearness": list(choice.nearness)}
    if choice.recipe is None:
        return Answer(None, "", ZERO_USAGE, trace)
    return Answer(choice.recipe.pipeline, f"the recipe `{'; '.join(choice.recipe.phrases)}`", ZERO_USAGE, trace)


def try_out(sandbox: Sandbox, task: Task, pipeline: str) -> Trial:
    """Run a pipeline on the example and on the hidden cases, and check its output for the hidden cases."""
    files = {case: task.inputs(case) for case in (EXAMPLE, *HIDDEN)}
    commands = [Command(script(pipeline, task.files), inputs) for inputs in files.values()]
    outcomes = dict(zip(files, sandbox.run(commands), strict=True))
    cases = [
        Case(case, list(files[case].values()), "" if outcomes[case].problem else outcomes[case].stdout)
        for case in HIDDEN
    ]
    return Trial(outcomes, sandbox.check(task.family, cases))


def result(rollout_id: str, task: Task, candidate: Json, answer: Answer, trial: Trial | None, kind: str) -> Json:
    """Score a rollout by the hidden checks only, and describe the outcome."""
    reward = 1.0 if trial and trial.is_solved else 0.0
    share = trial.passed / len(trial.verdicts) if trial and trial.verdicts else 0.0
    printed = trial.outcomes[EXAMPLE].stdout[:2000] if trial else ""
    example = task.example()
    tried, verdicts = (trial.outcomes[EXAMPLE], trial.verdicts) if trial else (None, [])
    text = feedback(answer.source, answer.pipeline, example, tried, verdicts)
    told = {
        "pipeline": answer.pipeline,
        "example_passed": trial is not None and printed == example["output"],
        "example_printed": printed,
        "failed_checks": sorted({verdict.check for verdict in verdicts if not verdict.passed}),
        "sandbox": kind,
    }
    return rollout_record(
        rollout_id,
        task,
        reward,
        family=FAMILY,
        succeeded=bool(reward),
        objectives={"outcome_reward": reward, "checks_passed": round(share, 4)},
        told={"feedback": text, **told},
        usage=answer.usage,
        events=[answer.trace, {"type": "pipeline_run", "sandbox": kind, "pipeline": answer.pipeline}],
        summary={"example_id": task.task_id, "pipeline": answer.pipeline},
        reward_details={"checks_passed": round(share, 4), "sandbox": kind},
        metadata={"candidate": candidate},
    )


def build(tasks: dict[str, Task], sandbox: Sandbox, policy: str, log: Path | None = None) -> FastAPI:
    """Return the application."""
    # More concurrent jails than processors would slow all of them down while their deadlines run.
    turns = asyncio.Semaphore(max(2, len(os.sched_getaffinity(0))))

    async def rollout(request: Json, task: Task, prompt: str) -> Json:
        answer = await answer_of(policy, request, task, prompt)
        trial = None
        if answer.pipeline is not None:
            try:
                async with turns:
                    trial = await asyncio.to_thread(try_out, sandbox, task, answer.pipeline)
            except SandboxError as error:
                raise HTTPException(status_code=500, detail=f"the sandbox failed: {error}") from error
        return result(str(request["rollout_id"]), task, request["candidate"], answer, trial, sandbox.kind)

    taskset = {"taskset_id": "tblite", "source": "tasks.jsonl", "sandbox": sandbox.kind}
    texts = {"program": PROGRAM, "task_info": task_info(), "taskset": taskset}
    return application("tblite", "small terminal tasks", tasks, rollout, **texts, log=log)


def refusal(wanted: str, found: str, policy: str) -> str:
    """Return why commands must not run in a sandbox that was not requested explicitly; empty if they may.

    A model may have written the recipes of a prompt too, so resource limits alone are not enough for either policy.
    """
    if wanted != AUTO:
        return ""
    if found == LIMITS:
        return "no sandbox here keeps commands from your files; --sandbox limits runs them anyway"
    if found == LANDLOCK and policy == "llm":
        return (
            "only Landlock here, which leaves sockets of this machine open to a model's commands; "
            "--sandbox landlock runs them anyway"
        )
    return ""


def main() -> None:
    """Serve the container on loopback until the process ends."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--sandbox",
        choices=(AUTO, *KINDS),
        default=AUTO,
        help="auto takes the best that the machine has, but weak ones only if they are named",
    )
    args = parser.parse_args()
    with Sandbox(args.sandbox) as sandbox:
        problem = refusal(args.sandbox, sandbox.kind, args.policy)
        if problem:
            sys.exit(f"tblite: {problem}")
        if sandbox.kind == LIMITS:
            sys.stderr.write("tblite: the sandbox is limits alone: commands can reach your files and the network\n")
        serve(build(load_tasks(), sandbox, args.policy, args.log), args)


if __name__ == "__main__":
    main()

"""Runs dspy.GEPA once and writes what it has used.

The options are those of `peer_gepa.py`. Rollouts run in this process.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
from dspy.lm15 import Message, Response, Usage
from gepa.utils import TimeoutStopCondition
from marks import Marks
from task import INITIAL, judge, next_line, reply, rules_of


class Engine:
    """Stands in for the model: answers with the record of the rollout."""

    def __init__(self, options: Mapping[str, Any], marks: Marks) -> None:
        self.options = options
        self.marks = marks
        self.count = 0

    def complete(self, request: Any) -> Response:
        """Answer a prompt."""
        self.marks.rollout()
        self.count += 1
        (row,) = re.findall(r"row (\d+)", str(request.messages))
        reward, feedback = judge(rules_of(str(request.system)), int(row), self.options["rows"], self.options["needs"])
        record = json.dumps(reply(reward, feedback, self.options["reply_bytes"]))
        text = f"[[ ## answer ## ]]\n{record}\n\n[[ ## completed ## ]]"
        usage = Usage(input_tokens=40, output_tokens=4, total_tokens=44)
        return Response(id=None, model="m", message=Message.assistant(text), finish_reason="stop", usage=usage)


def metric(_gold: Any, pred: Any, _trace: Any = None, _name: Any = None, _pred_trace: Any = None) -> dspy.Prediction:
    """Return the reward and the feedback of a record."""
    record = json.loads(pred.answer)
    feedback = record["actionable_side_info"]["feedback"]
    return dspy.Prediction(score=record["reward_info"]["outcome_reward"], feedback=feedback)


def propose(
    candidate: dict[str, str],
    reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
    components_to_update: list[str],
) -> dict[str, str]:
    """Add a line to the parent."""
    return {
        name: candidate[name] + "\n" + next_line(str(seen["Feedback"]) for seen in reflective_dataset[name])
        for name in components_to_update
    }


def main() -> None:
    """Run dspy.GEPA once."""
    options = json.loads(sys.argv[1])
    marks = Marks()
    engine = Engine(options, marks)
    dspy.configure(lm=dspy.LM("m", engine=engine, cache=False))
    rows = [dspy.Example(question=f"row {row}").with_inputs("question") for row in range(options["rows"])]
    optimizer = dspy.GEPA(
        metric=metric,
        max_metric_calls=options["rollouts"],
        reflection_minibatch_size=3,
        instruction_proposer=propose,
        use_merge=False,
        num_threads=8,
        log_dir=options.get("directory"),
        track_stats=True,
        gepa_kwargs={"stop_callbacks": TimeoutStopCondition(options["seconds"])},
    )
    program = dspy.Predict(dspy.Signature("question -> answer", INITIAL))
    found = optimizer.compile(program, trainset=rows, valset=rows)
    marks.write(rollouts=engine.count, candidates=len(found.detailed_results.candidates))


if __name__ == "__main__":
    main()

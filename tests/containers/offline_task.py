"""The offline task of every test container: garden questions, and texts that must mention the right needs."""

from __future__ import annotations

import math
import time
from typing import Any

Json = dict[str, Any]

FAMILY = "garden.advice"
SEED = {"care_notes": "Advise the gardener. Mind: water", "manner": "Answer in one sentence."}
CUES = ("water", "shade", "frost", "lime")
TRAIN_ROWS = 6
HELDOUT_ROWS = 3


def row_of(split: str, seed: int) -> Json:
    """Return a row; a row number beyond the last one wraps around, as in many containers."""
    heldout = split in {"test", "heldout", "validation"}
    index = seed % (HELDOUT_ROWS if heldout else TRAIN_ROWS)
    name = "test" if heldout else "train"
    return {
        "task_id": f"{name}:{index}",
        "example_id": f"{name}:{index}",
        "split": name,
        "seed": index,
        "question": f"How do I care for plant {index}?",
        "need": CUES[index % len(CUES)],
    }


def row_of_id(task_id: str) -> Json | None:
    """Return the row of an id like `train:3`, if there is one."""
    split, _, seed = task_id.partition(":")
    if split not in {"train", "test"} or not seed.isdigit():
        return None
    row = row_of(split, int(seed))
    return row if row["task_id"] == task_id else None


def program() -> Json:
    """Return the program: two mutable texts and one fixed one."""

    def mutable(field: str, role: str) -> Json:
        return {
            "module_id": f"{field}_text",
            "role": role,
            "content": SEED[field],
            "mutable": True,
            "candidate_field": field,
            "template_variables": [],
            "metadata": {},
        }

    question = {
        "module_id": "question",
        "role": "user",
        "content": "{question}",
        "mutable": False,
        "candidate_field": "",
        "template_variables": ["question"],
        "metadata": {},
    }
    return {
        "version": "prompt_program.v1",
        "program_id": "garden_advice",
        "modules": [mutable("care_notes", "system"), mutable("manner", "system"), question],
        "target_modules": [
            {"module_id": "care_notes_text", "candidate_field": "care_notes"},
            {"module_id": "manner_text", "candidate_field": "manner"},
        ],
        "seed_candidate": dict(SEED),
        "rollout_overlay_schema": {"candidate_fields": list(SEED)},
        "metadata": {"task_id": FAMILY},
    }


def rows_info(key: str) -> Json:
    """Return the answer of the dataset or taskset route."""
    return {key: "garden_rows", "splits": {"train": TRAIN_ROWS, "test": HELDOUT_ROWS}, "source": "inline"}


def now() -> str:
    """Return the current time in the format of the contract."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def score(row: Json, candidate: Json) -> tuple[float, str]:
    """Return the reward of a candidate on a row, and the feedback; train rows name what is missing."""
    notes = str(candidate.get("care_notes") or SEED["care_notes"]).lower()
    words = {word.strip(".,:;") for word in notes.split()}
    if row["need"] in words:
        return 1.0, "solved"
    missing = f"missing rule: {row['need']} in care_notes"
    return 0.0, missing if row["split"] == "train" else "not solved"


def record(rollout_id: str, row: Json, candidate: Json, fault: str | None = None) -> Json:
    """Return a whole rollout record; except for the times, it depends on its arguments only."""
    if fault == "wrong-row":
        row = row_of("train", 0)
    reward, feedback = score(row, candidate)
    shown = math.nan if fault == "nan" else reward
    notes = str(candidate.get("care_notes", ""))
    answer = "good advice" if reward else "bad advice"
    return {
        "rollout_id": rollout_id,
        "status": "failed" if fault == "failed-status" else "completed",
        "success_status": "succeeded" if reward else "failed",
        "status_detail": "the grader broke" if fault == "failed-status" else "",
        "task_id": FAMILY,
        "seed": row["seed"],
        "reward_info": {
            "outcome_reward": shown,
            "event_rewards": [],
            "details": {"example_id": row["example_id"], "prediction": answer},
        },
        "actionable_side_info": {"feedback": feedback},
        "summary": {"outcome_reward": shown, "example_id": row["example_id"], "prediction": answer},
        "usage": {
            "prompt_tokens": 20 + len(notes.split()),
            "completion_tokens": 3,
            "total_tokens": 23 + len(notes.split()),
            "cost_usd": 0.00002,
        },
        "trace": {
            "event_history": [
                {
                    "type": "llm_request",
                    "call_site_id": FAMILY,
                    "messages": [{"role": "system", "content": notes}, {"role": "user", "content": row["question"]}],
                },
                {"type": "llm_response", "text": answer},
            ]
        },
        "metadata": {"candidate": candidate},
        "created_at": now(),
        "updated_at": now(),
    }

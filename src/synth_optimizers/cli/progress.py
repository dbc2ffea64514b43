"""What a view knows about a run: its events, folded one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from synth_optimizers.cli.words import counted, moment, span
from synth_optimizers.spending import NEVER_SENT, Spending, total_of

if TYPE_CHECKING:
    from synth_optimizers.events import RunEvent

__all__ = ["Evaluation", "Progress", "Turn"]

STAGES = {
    "seed_full_train": "seed on train rows",
    "parent_minibatch_reference": "parent on the minibatch",
    "candidate_minibatch": "screening",
    "candidate_full_train": "full evaluation",
    "heldout": "held-out rows",
}
ENDINGS = {"gepa.run.finished": "completed", "gepa.run.failed": "failed", "gepa.run.cancelled": "cancelled"}


@dataclass(slots=True)
class Evaluation:
    """An evaluation under way."""

    candidate_id: str
    stage: str
    since: float
    total: int = 0
    done: int = 0


@dataclass(slots=True)
class Turn:
    """A turn of the proposer that has no answer yet."""

    generation: int
    since: float
    is_repair: bool


@dataclass(slots=True)
class Progress:
    """The state of a run as far as its events tell it."""

    run_id: str = ""
    container_url: str = ""
    state: str = "created"
    events: int = 0
    started: float | None = None
    latest: float = 0.0
    generation: int | None = None
    generations: int = 0
    candidates: int = 0
    accepted: int = 0
    rejected: int = 0
    frontier_size: int = 0
    seed_score: dict[str, Any] | None = None
    best_id: str | None = None
    best_score: dict[str, Any] | None = None
    spending: Spending = field(default_factory=Spending)
    used: dict[str, float] = field(default_factory=dict)
    """What counts against the limits, answers from the cache included."""
    clock: tuple[float, float] | None = None
    """The last measured time of the run in seconds, and when it was measured."""
    last_decision: str = ""
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    turns: dict[int, Turn] = field(default_factory=dict)
    stop: dict[str, Any] | None = None
    ending: RunEvent | None = None
    is_interrupted: bool = False
    _requests: dict[int, int] = field(default_factory=dict)
    _scores: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    _merits: dict[str, float] = field(default_factory=dict)

    def apply(self, event: RunEvent) -> None:
        """Take note of an event."""
        now = moment(event.ts)
        if self.started is None:
            self.started, self.run_id = now, event.run_id
        elif event.type == "run.resumed":
            # The time in which nobody worked on the run is not time of the run.
            self.started += max(0.0, now - self.latest)
            self.is_interrupted = False
        self.latest = now
        self.events += 1
        step = _STEPS.get(event.type)
        if step is not None:
            step(self, event, event.fields, now)

    def took(self, event: RunEvent) -> float | None:
        """Return how long the turn or evaluation took that an event ends; ask before the event is applied."""
        begun: Turn | Evaluation | None = self.turns.get(event.fields.get("request", -1))
        if "evaluation" in event.fields and "score" in event.fields:
            begun = self.evaluations.get(event.fields["evaluation"])
        return None if begun is None else moment(event.ts) - begun.since

    def elapsed(self, now: float) -> float:
        """Return how long the run has been worked on, in seconds."""
        if self.started is None:
            return 0.0
        over = self.ending is not None or self.is_interrupted
        return (self.latest if over else max(now, self.latest)) - self.started

    def in_flight(self) -> int:
        """Return how many rollouts were asked for and have no answer in the log."""
        return len(self._requests)

    def doing(self, now: float) -> list[str]:
        """Say what the run waits for, and for how long."""
        if self.ending is not None:
            return []
        if self.candidates == 0:
            return [f"setting up: container {self.container_url}, then the proposer"]
        found = []
        # Copies: a view draws while another thread applies events.
        for turn in list(self.turns.values()):
            what = "repair" if turn.is_repair else "proposals"
            found.append(f"{span(now - turn.since)} proposer writes {what} for generation {turn.generation}")
        for evaluation in list(self.evaluations.values()):
            stage = STAGES.get(evaluation.stage, evaluation.stage)
            found.append(
                f"{span(now - evaluation.since)} {stage} of {evaluation.candidate_id}: "
                f"{evaluation.done} of {counted(evaluation.total, 'rollout')}"
            )
        return found or [self.state]

    def _use(self, usage: dict[str, Any]) -> None:
        for name, amount in {**usage, "total_tokens": total_of(usage)}.items():
            self.used[name] = self.used.get(name, 0) + (amount or 0)

    def _settle(self, fields: dict[str, Any]) -> None:
        evaluation = self.evaluations.get(self._requests.pop(fields["request"], -1))
        if evaluation is not None:
            evaluation.done += 1
        self.spending.count_rollout(fields)
        self._use(fields["usage"])

    def _decide(self, event: RunEvent, best: str | None) -> None:
        if event.fields.get("reason") != "seed":
            self.last_decision = event.message
        merit = self._merits.get(best or "", float("-inf"))
        if best is not None and (self.best_id is None or merit > self._merits.get(self.best_id, float("-inf"))):
            self._set_best(best, self._scores.get(best))

    def _set_best(self, best_id: str | None, score: dict[str, Any] | None) -> None:
        self.best_id, self.best_score = best_id, score


def _started(run: Progress, _event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    run.container_url = fields.get("container_url", "")


def _moved(run: Progress, _event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    run.state = fields["to"]


def _registered(run: Progress, _event: RunEvent, _fields: dict[str, Any], _now: float) -> None:
    run.candidates += 1


def _requested(run: Progress, _event: RunEvent, fields: dict[str, Any], now: float) -> None:
    number = fields["evaluation"]
    evaluation = run.evaluations.get(number)
    if evaluation is None:
        evaluation = run.evaluations[number] = Evaluation(fields["candidate_id"], fields["stage"], now)
    evaluation.total += len(fields["row_ids"])
    for place in range(len(fields["row_ids"])):
        run._requests[fields["first_request"] + place] = number


def _finished(run: Progress, _event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    run._settle(fields)


def _failed(run: Progress, _event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    if fields["class"] in NEVER_SENT:
        evaluation = run.evaluations.get(run._requests.pop(fields["request"], -1))
        if evaluation is not None:
            evaluation.total -= 1
        return
    run._settle(fields)


def _evaluated(run: Progress, event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    run.evaluations.pop(fields["evaluation"], None)
    if event.type == "candidate.evaluated":
        run.seed_score = fields["score"]
    if event.type in ("candidate.evaluated", "candidate.full_train_evaluated"):
        run._scores[fields["candidate_id"]] = fields["score"]


def _frontier(run: Progress, _event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    run._merits[fields["candidate_id"]] = fields["merit"]
    run.frontier_size = fields["size"]


def _accepted(run: Progress, event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    run.accepted += fields["reason"] != "seed"
    run._decide(event, fields["candidate_id"])


def _rejected(run: Progress, event: RunEvent, _fields: dict[str, Any], _now: float) -> None:
    run.rejected += 1
    run._decide(event, None)


def _deferred(run: Progress, event: RunEvent, _fields: dict[str, Any], _now: float) -> None:
    run._decide(event, None)


def _generation(run: Progress, _event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    run.generation = fields["generation"]


def _generation_done(run: Progress, _event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    run.generations += 1
    run.frontier_size = fields["frontier_size"]
    run._set_best(fields["best_candidate_id"], fields["best_train_score"])


def _turn(run: Progress, _event: RunEvent, fields: dict[str, Any], now: float) -> None:
    run.turns[fields["request"]] = Turn(fields["generation"], now, bool(fields["problems"]))


def _turn_done(run: Progress, _event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    run.turns.pop(fields["request"], None)
    run.spending.count_call(fields)
    if fields.get("class") not in NEVER_SENT:
        run._use(fields["usage"])


def _clock(run: Progress, _event: RunEvent, fields: dict[str, Any], now: float) -> None:
    run.clock = (fields["elapsed_millis"] / 1000, now)


def _stopped(run: Progress, _event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    run.stop = fields["stopped_by"]


def _interrupted(run: Progress, _event: RunEvent, _fields: dict[str, Any], _now: float) -> None:
    run.is_interrupted = True


def _ended(run: Progress, event: RunEvent, fields: dict[str, Any], _now: float) -> None:
    run.state, run.ending = ENDINGS[event.type], event
    run.evaluations.clear()
    run.turns.clear()
    run._requests.clear()
    best = fields.get("best_candidate_id")
    if best is not None and best != run.best_id:
        run._set_best(best, run._scores.get(best))


_STEPS = {
    "gepa.run.started": _started,
    "optimizer.state.transitioned": _moved,
    "candidate.registered": _registered,
    "rollout.requested": _requested,
    "rollout.finished": _finished,
    "rollout.failed": _failed,
    "candidate.evaluated": _evaluated,
    "parent_minibatch_reference.completed": _evaluated,
    "candidate.minibatch_evaluated": _evaluated,
    "candidate.full_train_evaluated": _evaluated,
    "heldout.completed": _evaluated,
    "frontier.updated": _frontier,
    "candidate.accepted": _accepted,
    "candidate.rejected": _rejected,
    "candidate.deferred": _deferred,
    "generation.started": _generation,
    "generation.completed": _generation_done,
    "proposer.started": _turn,
    "proposer.completed": _turn_done,
    "proposer.failed": _turn_done,
    "clock.observed": _clock,
    "gepa.stop": _stopped,
    "run.interrupted": _interrupted,
    "gepa.run.finished": _ended,
    "gepa.run.failed": _ended,
    "gepa.run.cancelled": _ended,
}

"""The client of the service: `Client`, and `AsyncClient` for event loops. It needs the extra `client`."""

from synth_optimizers.client.aio import AsyncClient
from synth_optimizers.client.entries import Origin, RequestEntry, RunDetail, Submission, Transition, Waiting
from synth_optimizers.client.models import (
    Artifact,
    Best,
    Candidate,
    Frontier,
    Rollout,
    ScorePoint,
    ScoreRecord,
    ScoreSeries,
)
from synth_optimizers.client.records import Acknowledgement, Health, Pruned, Readiness, Step, WorkerRun, WorkerTick
from synth_optimizers.client.refusals import Refused
from synth_optimizers.client.sync import Client

__all__ = [
    "Acknowledgement",
    "Artifact",
    "AsyncClient",
    "Best",
    "Candidate",
    "Client",
    "Frontier",
    "Health",
    "Origin",
    "Pruned",
    "Readiness",
    "Refused",
    "RequestEntry",
    "Rollout",
    "RunDetail",
    "ScorePoint",
    "ScoreRecord",
    "ScoreSeries",
    "Step",
    "Submission",
    "Transition",
    "Waiting",
    "WorkerRun",
    "WorkerTick",
]

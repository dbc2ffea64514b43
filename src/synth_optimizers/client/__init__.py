"""The HTTP client of the service: `Client`, and `AsyncClient` for event loops. It needs the extra `client`."""

from synth_optimizers.client.aio import AsyncClient
from synth_optimizers.client.errors import Refused
from synth_optimizers.client.result_records import (
    Artifact,
    Best,
    Candidate,
    Frontier,
    Rollout,
    ScorePoint,
    ScoreRecord,
    ScoreSeries,
)
from synth_optimizers.client.run_records import Origin, RequestEntry, RunDetail, Submission, Transition, Waiting
from synth_optimizers.client.service_records import (
    Acknowledgement,
    Health,
    Pruned,
    Readiness,
    Step,
    WorkerRun,
    WorkerTick,
)
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

"""The HTTP client of the service: `Client`, and `AsyncClient` for event loops. It needs the extra `client`."""

from synth_optimizers.client.aio import AsyncClient
from synth_optimizers.client.errors import ServiceErrorDetails
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
from synth_optimizers.client.run_records import Origin, RequestEntry, RunDetail, SubmitResult, Transition, Waiting
from synth_optimizers.client.service_records import (
    ControlResult,
    Health,
    PruneResult,
    Readiness,
    RunNextResult,
    StepResult,
    TickResult,
)
from synth_optimizers.client.sync import Client

__all__ = [
    "Artifact",
    "AsyncClient",
    "Best",
    "Candidate",
    "Client",
    "ControlResult",
    "Frontier",
    "Health",
    "Origin",
    "PruneResult",
    "Readiness",
    "RequestEntry",
    "Rollout",
    "RunDetail",
    "RunNextResult",
    "ScorePoint",
    "ScoreRecord",
    "ScoreSeries",
    "ServiceErrorDetails",
    "StepResult",
    "SubmitResult",
    "TickResult",
    "Transition",
    "Waiting",
]

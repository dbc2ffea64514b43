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
from synth_optimizers.client.view_records import (
    CandidateTable,
    ComparedText,
    Comparison,
    Lineage,
    LineageCandidate,
    RowTable,
    SprintCheck,
    TableRow,
    Turn,
    TurnDetail,
)

__all__ = [
    "Artifact",
    "AsyncClient",
    "Best",
    "Candidate",
    "CandidateTable",
    "Client",
    "ComparedText",
    "Comparison",
    "ControlResult",
    "Frontier",
    "Health",
    "Lineage",
    "LineageCandidate",
    "Origin",
    "PruneResult",
    "Readiness",
    "RequestEntry",
    "Rollout",
    "RowTable",
    "RunDetail",
    "RunNextResult",
    "ScorePoint",
    "ScoreRecord",
    "ScoreSeries",
    "ServiceErrorDetails",
    "SprintCheck",
    "StepResult",
    "SubmitResult",
    "TableRow",
    "TickResult",
    "Transition",
    "Turn",
    "TurnDetail",
    "Waiting",
]

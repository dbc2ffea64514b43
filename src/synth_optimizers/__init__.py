"""The public names of synth-optimizers."""

from synth_optimizers._synth_optimizers import __version__, config_schema
from synth_optimizers.config import EffectiveValue, GepaConfig
from synth_optimizers.errors import (
    BudgetExceededError,
    CacheCorruptError,
    CacheFullError,
    CacheMissError,
    CancelledError,
    ConfigError,
    ContainerContractError,
    EventCompareError,
    InvariantError,
    OptimizerDiskBudgetError,
    OptimizerHttpError,
    OptimizerIoError,
    OptimizerJsonError,
    OptimizerSqliteError,
    OptimizerTomlDecodeError,
    ProposerError,
    RunFailedError,
    StateTransitionError,
    SynthOptimizerError,
)
from synth_optimizers.events import RunEvent, events_compare, events_replay
from synth_optimizers.findings import Finding
from synth_optimizers.handle import RunHandle
from synth_optimizers.preflight import Blocker, Bounds, CheckReport, PlannedCost, RunPlan, check_toml
from synth_optimizers.queue import (
    gepa_serve,
    gepa_service_run_next,
    workspace_cancel_run_request,
    workspace_claim_next_run_request,
    workspace_complete_run_request,
    workspace_fail_run_request,
    workspace_heartbeat_run_request,
    workspace_recover_expired_run_requests,
    workspace_start_run_request,
    workspace_submit_run_request,
)
from synth_optimizers.result import GepaRunResult
from synth_optimizers.run import GepaRun
from synth_optimizers.scores import Gain, Score, Scores
from synth_optimizers.status import RunStatus
from synth_optimizers.subscribers import Subscriber
from synth_optimizers.workspace import workspace_rebuild, workspace_status, workspace_vacuum

__all__ = [
    "Blocker",
    "Bounds",
    "BudgetExceededError",
    "CacheCorruptError",
    "CacheFullError",
    "CacheMissError",
    "CancelledError",
    "CheckReport",
    "ConfigError",
    "ContainerContractError",
    "EffectiveValue",
    "EventCompareError",
    "Finding",
    "Gain",
    "GepaConfig",
    "GepaRun",
    "GepaRunResult",
    "InvariantError",
    "OptimizerDiskBudgetError",
    "OptimizerHttpError",
    "OptimizerIoError",
    "OptimizerJsonError",
    "OptimizerSqliteError",
    "OptimizerTomlDecodeError",
    "PlannedCost",
    "ProposerError",
    "RunEvent",
    "RunFailedError",
    "RunHandle",
    "RunPlan",
    "RunStatus",
    "Score",
    "Scores",
    "StateTransitionError",
    "Subscriber",
    "SynthOptimizerError",
    "__version__",
    "check_toml",
    "config_schema",
    "events_compare",
    "events_replay",
    "gepa_serve",
    "gepa_service_run_next",
    "workspace_cancel_run_request",
    "workspace_claim_next_run_request",
    "workspace_complete_run_request",
    "workspace_fail_run_request",
    "workspace_heartbeat_run_request",
    "workspace_rebuild",
    "workspace_recover_expired_run_requests",
    "workspace_start_run_request",
    "workspace_status",
    "workspace_submit_run_request",
    "workspace_vacuum",
]

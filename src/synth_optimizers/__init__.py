"""The public names of synth-optimizers. Most modules are imported when one of their names is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from synth_optimizers import errors
from synth_optimizers._synth_optimizers import (
    __version__,
    config_schema,
    events_compare,
    events_replay,
    workspace_cancel_run_request,
    workspace_claim_next_run_request,
    workspace_complete_run_request,
    workspace_fail_run_request,
    workspace_heartbeat_run_request,
    workspace_rebuild,
    workspace_recover_expired_run_requests,
    workspace_start_run_request,
    workspace_status,
    workspace_submit_run_request,
    workspace_vacuum,
)

# The exceptions: every name in `errors.__all__`.
from synth_optimizers.errors import *  # noqa: F403

if TYPE_CHECKING:
    from synth_optimizers.config import EffectiveValue, GepaConfig
    from synth_optimizers.events import RunEvent
    from synth_optimizers.findings import Finding
    from synth_optimizers.function_run import optimize
    from synth_optimizers.handle import RunHandle, Subscriber
    from synth_optimizers.preflight import Bounds, CheckReport, PlannedCost, PreflightFinding, RunPlan, check_toml
    from synth_optimizers.queue import gepa_serve, gepa_service_run_next
    from synth_optimizers.result import GepaRunResult
    from synth_optimizers.run import GepaRun
    from synth_optimizers.scores import Claim, ClaimedGain, Gain, Score, Scores
    from synth_optimizers.status import RunStatus

__all__ = [
    "Bounds",
    "CheckReport",
    "Claim",
    "ClaimedGain",
    "EffectiveValue",
    "Finding",
    "Gain",
    "GepaConfig",
    "GepaRun",
    "GepaRunResult",
    "PlannedCost",
    "PreflightFinding",
    "RunEvent",
    "RunHandle",
    "RunPlan",
    "RunStatus",
    "Score",
    "Scores",
    "Subscriber",
    "__version__",
    "check_toml",
    "config_schema",
    "events_compare",
    "events_replay",
    "gepa_serve",
    "gepa_service_run_next",
    "optimize",
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
__all__ += errors.__all__

_MODULES = {
    "config": ("EffectiveValue", "GepaConfig"),
    "events": ("RunEvent",),
    "findings": ("Finding",),
    "function_run": ("optimize",),
    "handle": ("RunHandle", "Subscriber"),
    "preflight": ("Bounds", "CheckReport", "PlannedCost", "PreflightFinding", "RunPlan", "check_toml"),
    "queue": ("gepa_serve", "gepa_service_run_next"),
    "result": ("GepaRunResult",),
    "run": ("GepaRun",),
    "scores": ("Claim", "ClaimedGain", "Gain", "Score", "Scores"),
    "status": ("RunStatus",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (every public name)
    """Import the module of a public name."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

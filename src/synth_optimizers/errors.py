"""The exceptions of synth-optimizers; their classes and codes come from one table in the core."""

from typing import TypeVar

from synth_optimizers._synth_optimizers import (
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
    error_table,
)

__all__ = [
    "BudgetExceededError",
    "CacheCorruptError",
    "CacheFullError",
    "CacheMissError",
    "CancelledError",
    "ConfigError",
    "ContainerContractError",
    "EventCompareError",
    "InvariantError",
    "OptimizerDiskBudgetError",
    "OptimizerHttpError",
    "OptimizerIoError",
    "OptimizerJsonError",
    "OptimizerSqliteError",
    "OptimizerTomlDecodeError",
    "ProposerError",
    "RunFailedError",
    "StateTransitionError",
    "SynthOptimizerError",
    "error_table",
]

E = TypeVar("E", bound=SynthOptimizerError)


def error_of(kind: type[E], message: str, hint: str | None = None, detail: str | None = None) -> E:
    """Return an error written like those of the core; without a hint it has that of its kind."""
    error = kind(f"{kind.error_code}: {message}")
    error.hint, error.detail = hint or error.hint, detail
    return error

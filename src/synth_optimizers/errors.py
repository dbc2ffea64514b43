"""The exceptions of synth-optimizers; the core defines their classes and codes in one table."""

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
    StorageFullError,
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
    "StorageFullError",
    "SynthOptimizerError",
    "error_table",
]

E = TypeVar("E", bound=SynthOptimizerError)


def error_of(kind: type[E], message: str, hint: str | None = None, detail: str | None = None) -> E:
    """Return an error formatted like those of the core; without a hint it uses the general hint of its class."""
    error = kind(f"{kind.error_code}: {message}")
    error.hint, error.detail = hint or error.hint, detail
    return error

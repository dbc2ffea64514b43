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
from synth_optimizers.findings import Finding

__all__ = [
    "BudgetExceededError",
    "CacheCorruptError",
    "CacheFullError",
    "CacheMissError",
    "CancelledError",
    "ConfigError",
    "ContainerContractError",
    "EffectiveValue",
    "EventCompareError",
    "Finding",
    "GepaConfig",
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
    "__version__",
    "config_schema",
]

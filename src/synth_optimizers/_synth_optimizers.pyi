"""The extension module of synth-optimizers: the Rust core as Python sees it."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, TypedDict, type_check_only

from synth_optimizers.findings import Finding

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
    "__version__",
    "config_schema",
    "error_table",
    "load_config",
]

__version__: str

@type_check_only
class _ErrorRow(TypedDict):
    error_code: str
    exception: str
    exit_code: int
    http_status: int
    hint: str

@type_check_only
class _LoadedConfig(TypedDict):
    config: dict[str, Any]
    values: list[tuple[str, Any, str]]
    warnings: tuple[Finding, ...]

def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file.

    Editors that know JSON Schema complete and check `gepa.toml` with it.
    """

def load_config(
    path_or_mapping: str | PathLike[str] | Mapping[str, Any],
    *,
    overrides: Sequence[str] = ...,
    environ: Mapping[str, str] | None = None,
) -> _LoadedConfig:
    """Load a configuration from a TOML file or a mapping; `GepaConfig` is the comfortable way to it.

    Raises `ConfigError` with every problem at once, `OptimizerTomlDecodeError` when the file is not TOML in UTF-8,
    and `OptimizerIoError` when it cannot be read.
    """

def error_table() -> list[_ErrorRow]:
    """Return every error of the product: code, exception class, exit code, HTTP status and general hint."""

class SynthOptimizerError(RuntimeError):
    """The base of every error that this package raises on purpose.

    The message is the code, a colon and what happened.
    """

    error_code: ClassVar[str]
    """The stable code to match on."""
    detail: str | None
    """More about it: an excerpt, the inner message, a place."""
    hint: str
    """What to do."""
    findings: tuple[Finding, ...]
    """Every finding, for problems of a configuration."""

class ConfigError(SynthOptimizerError):
    """The configuration cannot be used; `findings` holds every problem."""

class ContainerContractError(SynthOptimizerError):
    """The container is unreachable or does not answer as the contract says."""

class ProposerError(SynthOptimizerError):
    """The proposer failed or answered with something that is not a proposal."""

class CacheMissError(SynthOptimizerError):
    """A readonly run needs an answer that the cache does not hold."""

class CacheFullError(SynthOptimizerError):
    """The cache has reached its size limit."""

class CacheCorruptError(SynthOptimizerError):
    """An entry of the cache is damaged."""

class BudgetExceededError(SynthOptimizerError):
    """The work asked for does not fit a limit."""

class CancelledError(SynthOptimizerError):
    """The run was cancelled."""

class EventCompareError(SynthOptimizerError):
    """Two event feeds differ."""

class RunFailedError(SynthOptimizerError):
    """The run failed and no more precise cause is known."""

class InvariantError(SynthOptimizerError):
    """A rule that always holds was broken: a defect."""

class StateTransitionError(SynthOptimizerError):
    """The operation is not legal in the current state."""

class OptimizerIoError(SynthOptimizerError):
    """A file could not be read or written."""

class OptimizerDiskBudgetError(SynthOptimizerError):
    """The disk budget is used up."""

class OptimizerJsonError(SynthOptimizerError):
    """A document is not valid JSON of the stated shape."""

class OptimizerTomlDecodeError(SynthOptimizerError):
    """A file is not valid TOML."""

class OptimizerHttpError(SynthOptimizerError):
    """An HTTP exchange failed."""

class OptimizerSqliteError(SynthOptimizerError):
    """The database could not be used."""

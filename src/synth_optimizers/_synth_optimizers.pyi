"""The extension module of synth-optimizers: the Rust core as Python sees it.

The public functions have docstrings here for editors. All docstrings are in Rust, where `help` finds them.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Literal, final

from synth_optimizers.findings import Finding

_Path = str | PathLike[str]

__version__: str
LOGGERS: tuple[str, ...]
"""The names of the library's loggers."""

@final
class LoadedConfig:
    @property
    def warnings(self) -> tuple[Finding, ...]: ...
    def to_dict(self) -> dict[str, Any]: ...
    def values(self) -> list[tuple[str, Any, str]]: ...

@final
class RunFold:
    def __new__(cls) -> RunFold: ...
    def apply(
        self, sequence_number: int, ts: str, event_type: str, fields: dict[str, Any], message: str
    ) -> list[tuple[Literal["minor", "detail", "plain", "good", "warning", "bad"], str]]: ...
    def read(
        self, log: EventLog
    ) -> tuple[int, list[tuple[int, Literal["detail", "plain", "good", "warning", "bad"], str]]]: ...
    def end(self) -> dict[str, Any] | None: ...
    def search(self) -> str | None: ...
    def totals(self) -> dict[str, Any]: ...
    def shown(self) -> dict[str, Any]: ...

@final
class EventLog:
    def __new__(cls, run_dir: _Path) -> EventLog: ...
    def read(self, from_sequence: int) -> list[dict[str, Any]]: ...

@final
class NativeRun:
    @property
    def run_id(self) -> str: ...
    @property
    def run_dir(self) -> str: ...
    @property
    def is_done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> dict[str, str] | None: ...
    def wait_for_event(self, after: int, timeout: float | None = None) -> bool: ...
    def signal(self, kind: str, reason: str) -> bool: ...

def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file, for completion and checks in editors."""

def load_config(
    path_or_mapping: _Path | Mapping[str, Any],
    *,
    overrides: Sequence[str] = ...,
    environ: Mapping[str, str] | None = None,
) -> LoadedConfig: ...
def try_load_config(
    path: _Path, *, overrides: Sequence[str] = ..., environ: Mapping[str, str] | None = None
) -> LoadedConfig: ...
def override_texts(overrides: Mapping[str, Any]) -> list[str]: ...
def load_run_config(run_dir: _Path) -> LoadedConfig: ...
def plan_run(config: LoadedConfig, *, splits: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]: ...
def check_run(config: LoadedConfig, *, codex_runtime: str | None = None) -> dict[str, Any]: ...
def start_run(config: LoadedConfig, *, codex_runtime: str | None = None) -> NativeRun: ...
def run_status(run_dir: _Path) -> dict[str, Any]: ...
def run_summary(run_dir: _Path) -> dict[str, Any]:
    """Return the summary of a run from its log: `overview`, `candidates`, `frontier`, gains and configuration."""

def run_result(run_dir: _Path) -> dict[str, Any]: ...
def run_best(run_dir: _Path) -> dict[str, Any] | None: ...
def run_candidates(run_dir: _Path) -> list[dict[str, Any]]: ...
def run_lineage(run_dir: _Path) -> dict[str, Any]: ...
def run_rows(run_dir: _Path, query: dict[str, Any]) -> dict[str, Any]: ...
def run_turns(run_dir: _Path, *, limit: int | None = None, cursor: str | None = None) -> dict[str, Any]: ...
def run_turn(run_dir: _Path, turn: str) -> dict[str, Any]: ...
def run_report(run_dir: _Path) -> str: ...
def run_notebook_view(run_dir: _Path) -> str: ...
def run_compare(
    run_dir: _Path,
    other_run_dir: _Path,
    *,
    candidate_id: str | None = None,
    other_candidate_id: str | None = None,
) -> dict[str, Any]: ...
def ask_run(run_dir: _Path, kind: str, reason: str) -> dict[str, Any]:
    """Send a control request (`interrupt`, `stop` or `cancel`) to the process that executes a run.

    Return `acknowledgement` (`accepted` or `noop`), the run's `state` and the `reason`.
    """

def workspace_status(path: _Path) -> dict[str, Any]:
    """Return the status of a `workspace.sqlite`: counts, freshness of projections, invariants with repair hints."""

def workspace_rebuild(path: _Path, *, check: bool) -> dict[str, Any]:
    """Rebuild the projections of a workspace from its log; with `check`, only compare them."""

def workspace_vacuum(path: _Path) -> dict[str, int]:
    """Reclaim unused space of a workspace that no process uses; return `bytes_before` and `bytes_after`."""

def serve(db_path: str, settings: str, on_listening: Callable[[str], None]) -> None: ...
def serve_page(path: _Path, *, bind_addr: str, on_listening: Callable[[str], None]) -> None: ...
def service_defaults() -> dict[str, Any]: ...
def service_openapi() -> dict[str, Any]: ...
def gepa_service_run_next(
    db_path: str, *, worker_id: str, lease_seconds: float, codex_runtime: str | None
) -> dict[str, Any]: ...
def workspace_submit_run_request(db_path: _Path, config_path: _Path, priority: int = 0) -> dict[str, Any]:
    """Submit a run with the current content of its configuration; higher priorities are claimed first."""

def workspace_claim_next_run_request(
    db_path: _Path, lease_id: str, worker_id: str | None = None, lease_seconds: float = 3600.0
) -> dict[str, Any] | None:
    """Claim the next run request whose container and cache are free; return `None` if there is none."""

def workspace_start_run_request(db_path: _Path, request_id: str, *, lease_id: str | None = None) -> dict[str, Any]:
    """Mark a run request as running; with `lease_id`, only if that lease still holds it."""

def workspace_heartbeat_run_request(
    db_path: _Path, request_id: str, lease_id: str, lease_seconds: float = 3600.0
) -> dict[str, Any] | None:
    """Renew a lease; return `None` if the lease no longer holds the run request and the worker must stop."""

def workspace_complete_run_request(db_path: _Path, request_id: str, *, lease_id: str | None = None) -> dict[str, Any]:
    """Mark a run request as completed; its result is read from the run directory."""

def workspace_fail_run_request(
    db_path: _Path, request_id: str, error_message: str, reason_code: str | None = None, *, lease_id: str | None = None
) -> dict[str, Any]:
    """Mark a run request as failed, with the reason."""

def workspace_cancel_run_request(
    db_path: _Path, request_id: str, reason: str = "cancelled", *, lease_id: str | None = None
) -> dict[str, Any]:
    """Cancel a run request; an active run stops at its next check. With `lease_id`, only if that lease holds it."""

def workspace_recover_expired_run_requests(db_path: _Path) -> list[dict[str, Any]]:
    """Return run requests with an expired lease to the queue, and list them."""

def events_replay(path: _Path) -> str:
    """Return the feed of a run (`events.jsonl`) as readable text."""

def events_compare(left: _Path, right: _Path) -> bool:
    """Return `True` if two feeds describe the same search; else raise `EventCompareError` with the first difference."""

def event_catalogue() -> dict[str, Any]: ...
def config_findings() -> list[dict[str, Any]]: ...
def config_overrides() -> list[dict[str, str]]: ...
def error_table() -> list[dict[str, Any]]:
    """Return the error table: code, exception class, exit code, HTTP status and general hint of every error."""

class SynthOptimizerError(RuntimeError):
    """The base class of all errors of this package.

    The message consists of the code, a colon and the description.
    """

    error_code: ClassVar[str]
    """The stable code to match on."""
    detail: str | None
    """Additional information: an excerpt, an inner message, or a location."""
    hint: str
    """What to do."""
    findings: tuple[Finding, ...]
    """Every finding, if the configuration is invalid."""

class ConfigError(SynthOptimizerError):
    """The configuration is invalid; `findings` lists every problem."""

class ContainerContractError(SynthOptimizerError):
    """The container is unreachable or violates the contract."""

class ProposerError(SynthOptimizerError):
    """The proposer failed or returned no valid proposal."""

class CacheMissError(SynthOptimizerError):
    """A readonly run needs an answer that the cache does not hold."""

class CacheFullError(SynthOptimizerError):
    """The cache has reached its size limit."""

class CacheCorruptError(SynthOptimizerError):
    """An entry of the cache is damaged."""

class BudgetExceededError(SynthOptimizerError):
    """The requested work exceeds a limit."""

class CancelledError(SynthOptimizerError):
    """The run was cancelled."""

class EventCompareError(SynthOptimizerError):
    """Two event feeds differ."""

class RunFailedError(SynthOptimizerError):
    """The run failed for an unspecified cause."""

class InvariantError(SynthOptimizerError):
    """An internal invariant was violated: a bug."""

class StateTransitionError(SynthOptimizerError):
    """The operation is not allowed in the current state."""

class OptimizerIoError(SynthOptimizerError):
    """A file could not be read or written."""

class OptimizerDiskBudgetError(SynthOptimizerError):
    """The disk budget is exhausted."""

class StorageFullError(SynthOptimizerError):
    """The disk is full."""

class OptimizerJsonError(SynthOptimizerError):
    """A document is not valid JSON or has the wrong shape."""

class OptimizerTomlDecodeError(SynthOptimizerError):
    """A file is not valid TOML."""

class OptimizerHttpError(SynthOptimizerError):
    """An HTTP exchange failed."""

class OptimizerSqliteError(SynthOptimizerError):
    """The database could not be used."""

"""The extension module of synth-optimizers: the Rust core as Python sees it."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Literal, TypedDict, final, type_check_only

from synth_optimizers.findings import Finding

__version__: str
LOGGERS: tuple[str, ...]
"""The names of the loggers that get records of the library."""

@type_check_only
class _ErrorRow(TypedDict):
    error_code: str
    exception: str
    exit_code: int
    http_status: int
    hint: str

@type_check_only
class _EventType(TypedDict):
    type: str
    about: str
    volatile: list[str]
    aside: bool
    fields: dict[str, Any]

_EventCatalogue = TypedDict("_EventCatalogue", {"events": list[_EventType], "$defs": dict[str, dict[str, Any]]})

@type_check_only
class _FindingCode(TypedDict):
    code: str
    severity: str | None
    about: str

@type_check_only
class _Override(TypedDict):
    variable: str
    field: str
    about: str

@type_check_only
class _Ended(TypedDict):
    run_id: str
    run_dir: str
    status: str

@final
class LoadedConfig:
    """A configuration that has passed every check; `GepaConfig` is the comfortable way to it."""

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What is used in another way than written."""
    def to_dict(self) -> dict[str, Any]:
        """Return the whole configuration in effect, secrets hidden."""
    def values(self) -> list[tuple[str, Any, str]]:
        """Return every value in effect: dotted path, value, origin."""

@final
class RunFold:
    """The fold of a run's events: views and trackers ask it for every number."""

    def __new__(cls) -> RunFold:
        """Begin with no event."""
    def apply(
        self, sequence_number: int, ts: str, event_type: str, fields: dict[str, Any], message: str
    ) -> list[tuple[Literal["minor", "detail", "plain", "good", "warning", "bad"], str]]:
        """Take in the next event and return its lines, each with how much it weighs."""
    def totals(self) -> dict[str, Any]:
        """Return state, counts, times and `usage`."""
    def shown(self) -> dict[str, Any]:
        """Return scores, the last decision, and what is under way."""

@final
class NativeRun:
    """A run in a thread of its own; `RunHandle` is the comfortable way to it."""

    @property
    def run_id(self) -> str:
        """The name of the run."""
    @property
    def run_dir(self) -> str:
        """Its directory."""
    @property
    def is_over(self) -> bool:
        """Whether the run has ended or was let go."""
    def wait(self, timeout: float | None = None) -> _Ended | None:
        """Wait for the end; `None` when the time is over before. Raises the exception of the run's cause."""
    def wait_for_event(self, after: int, timeout: float | None = None) -> bool:
        """Wait until an event after this one is in the feed, or the run is over; whether it is so."""
    def signal(self, kind: str, reason: str) -> bool:
        """Ask for `interrupt`, `stop` or `cancel`; whether the run was still there to hear it."""

def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file.

    Editors that know JSON Schema complete and check `gepa.toml` with it.
    """

def load_config(
    path_or_mapping: str | PathLike[str] | Mapping[str, Any],
    *,
    overrides: Sequence[str] = ...,
    environ: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Load a configuration from a TOML file or a mapping; `GepaConfig` is the comfortable way to it.

    Raises `ConfigError` with every problem at once, `OptimizerTomlDecodeError` when the file is not TOML in UTF-8,
    and `OptimizerIoError` when it cannot be read.
    """

def try_load_config(
    path: str | PathLike[str],
    *,
    overrides: Sequence[str] = ...,
    environ: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Load a TOML file as far as it can be understood, to be checked and for nothing else; see `check_toml`."""

def load_run_config(run_dir: str | PathLike[str]) -> LoadedConfig:
    """Load the configuration that a run was begun with, to go on with it where its directory is now."""

def plan_run(config: LoadedConfig) -> dict[str, Any]:
    """Return the arithmetic of a run; `GepaRun.plan` is the comfortable way to it."""

def check_run(config: LoadedConfig, *, codex_runtime: str | None = None) -> dict[str, Any]:
    """Return everything that stands in the way of a run; `GepaRun.check` is the comfortable way to it."""

def start_run(config: LoadedConfig, *, codex_runtime: str | None = None) -> NativeRun:
    """Carry out a run, or go on with one, in the background."""

def run_status(run_dir: str | PathLike[str]) -> dict[str, Any]:
    """Return where a run is and what it has used, from a few rows; `RunStatus.read` is the comfortable way to it."""

def run_summary(run_dir: str | PathLike[str]) -> dict[str, Any]:
    """Return everything about a run from its log: `overview`, `candidates`, `frontier`, gains and configuration."""

def run_best(run_dir: str | PathLike[str]) -> dict[str, Any] | None:
    """Return the best candidate of a run so far, with its texts and scores."""

def ask_run(run_dir: str | PathLike[str], kind: str, reason: str) -> dict[str, Any]:
    """Ask for `interrupt`, `stop` or `cancel` of the process that carries out a run.

    The answer has `acknowledgement` (`accepted` or `noop`), the run's `state` and the `reason`.
    """

def workspace_status(path: str | PathLike[str]) -> dict[str, Any]:
    """Return everything about a `workspace.sqlite`: counts, freshness of projections, invariants with repair hints."""

def workspace_rebuild(path: str | PathLike[str], *, check: bool) -> dict[str, Any]:
    """Compute the projections of a workspace from its log again and replace them; with `check`, only compare."""

def workspace_vacuum(path: str | PathLike[str]) -> dict[str, int]:
    """Give back the space of a workspace that nobody works on: `bytes_before` and `bytes_after`."""

def serve(db_path: str, settings: Mapping[str, object], on_listening: Callable[[str], None]) -> None:
    """Serve the queue over HTTP until a signal; `gepa_serve` is the comfortable way to it and names the settings."""

def service_defaults() -> dict[str, Any]:
    """Return the settings that a service has when nothing else is said, by the names that `gepa_serve` has for them."""

def service_openapi() -> dict[str, Any]:
    """Return the OpenAPI document of the service, as `GET /openapi.json` gives it."""

def gepa_service_run_next(
    db_path: str, *, worker_id: str, lease_seconds: float, codex_runtime: str | None
) -> dict[str, Any]:
    """Claim the next request and carry its run out: `request`, `result` and `message`."""

def workspace_submit_run_request(
    db_path: str | PathLike[str], config_path: str | PathLike[str], priority: int = 0
) -> dict[str, Any]:
    """Put a run into the queue with the configuration as it is now; higher priorities are claimed first."""

def workspace_claim_next_run_request(
    db_path: str | PathLike[str], lease_id: str, worker_id: str | None = None, lease_seconds: float = 3600.0
) -> dict[str, Any] | None:
    """Claim the next request whose container and cache nobody uses; `None` when there is none."""

def workspace_start_run_request(
    db_path: str | PathLike[str], request_id: str, *, lease_id: str | None = None
) -> dict[str, Any]:
    """Say that the run of a request begins; with `lease_id` only while it is held under it."""

def workspace_heartbeat_run_request(
    db_path: str | PathLike[str], request_id: str, lease_id: str, lease_seconds: float = 3600.0
) -> dict[str, Any] | None:
    """Keep a claim; `None`: the request is no longer held under this lease, and its worker must stop."""

def workspace_complete_run_request(
    db_path: str | PathLike[str], request_id: str, *, lease_id: str | None = None
) -> dict[str, Any]:
    """Say that the run of a request has ended well; its result is read from the run directory."""

def workspace_fail_run_request(
    db_path: str | PathLike[str],
    request_id: str,
    error_message: str,
    reason_code: str | None = None,
    *,
    lease_id: str | None = None,
) -> dict[str, Any]:
    """Say that the run of a request has failed, and why."""

def workspace_cancel_run_request(
    db_path: str | PathLike[str], request_id: str, reason: str = "cancelled", *, lease_id: str | None = None
) -> dict[str, Any]:
    """End a request for good; a run under way stops at its next check. With `lease_id` only while it is held."""

def workspace_recover_expired_run_requests(db_path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Give requests whose lease has run out back to the queue and return them."""

def events_replay(path: str | PathLike[str]) -> str:
    """Return the feed of a run (`events.jsonl`) as a readable story."""

def events_compare(left: str | PathLike[str], right: str | PathLike[str]) -> bool:
    """Return `True` when two feeds tell of the same search.

    Raises `EventCompareError` otherwise, which names the first difference and shows both lines.
    """

def event_catalogue() -> _EventCatalogue:
    """Return every type of event with a reference to the JSON Schema of its fields, and these schemas under `$defs`."""

def config_findings() -> list[_FindingCode]:
    """Return every finding about a configuration; the severity is `None` where it depends on the case."""

def config_overrides() -> list[_Override]:
    """Return every environment variable that changes a field of the configuration."""

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

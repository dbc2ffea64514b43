"""The exceptions: the published classes and codes, and the attributes of an instance."""

import pickle

import pytest

import synth_optimizers
from synth_optimizers import errors

PUBLISHED = {
    "SynthOptimizerError": "synth_optimizer_error",
    "ConfigError": "synth_optimizer_config_error",
    "ContainerContractError": "synth_optimizer_container_error",
    "ProposerError": "synth_optimizer_proposer_error",
    "CacheMissError": "synth_optimizer_cache_miss",
    "CacheFullError": "synth_optimizer_cache_full",
    "CacheCorruptError": "synth_optimizer_cache_corrupt",
    "BudgetExceededError": "synth_optimizer_budget_exceeded",
    "CancelledError": "synth_optimizer_cancelled",
    "EventCompareError": "synth_optimizer_event_compare_failed",
    "RunFailedError": "synth_optimizer_failed",
    "InvariantError": "synth_optimizer_invariant_error",
    "StateTransitionError": "synth_optimizer_state_transition_error",
    "OptimizerIoError": "synth_optimizer_io_error",
    "OptimizerDiskBudgetError": "synth_optimizer_disk_budget_exceeded",
    "StorageFullError": "synth_optimizer_storage_full",
    "OptimizerJsonError": "synth_optimizer_json_error",
    "OptimizerTomlDecodeError": "synth_optimizer_toml_decode_error",
    "OptimizerHttpError": "synth_optimizer_http_error",
    "OptimizerSqliteError": "synth_optimizer_sqlite_error",
}


def test_the_table_holds_exactly_the_published_errors() -> None:
    assert {row["exception"]: row["error_code"] for row in errors.error_table()} == PUBLISHED


@pytest.mark.parametrize("row", errors.error_table(), ids=lambda row: row["exception"])
def test_each_class_matches_its_row_of_the_table(row: dict[str, object]) -> None:
    name = str(row["exception"])
    cls = getattr(errors, name)
    assert issubclass(cls, errors.SynthOptimizerError)
    assert issubclass(cls, RuntimeError)
    assert cls.error_code == row["error_code"]
    assert cls.hint == row["hint"]
    assert cls is getattr(synth_optimizers, name)
    assert (cls.__module__, cls.__qualname__) == ("synth_optimizers.errors", name)


def test_only_the_base_class_has_subclasses() -> None:
    classes = [getattr(errors, name) for name in PUBLISHED]
    assert {cls.__bases__ for cls in classes} == {(RuntimeError,), (errors.SynthOptimizerError,)}


def test_every_row_has_an_exit_code_and_an_http_status() -> None:
    for row in errors.error_table():
        assert 1 <= row["exit_code"] <= 143
        assert 400 <= row["http_status"] <= 599
        assert row["hint"].endswith(".")


def test_an_error_created_in_python_has_all_attributes() -> None:
    error = errors.CacheMissError("synth_optimizer_cache_miss: no entry")
    assert error.detail is None
    assert error.hint == errors.CacheMissError.hint
    assert error.findings == ()


def test_an_error_can_be_pickled() -> None:
    error = errors.ConfigError("synth_optimizer_config_error: x")
    error.hint = "Do y."
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - the bytes are our own
    assert (type(copy), str(copy), copy.hint) == (errors.ConfigError, str(error), "Do y.")

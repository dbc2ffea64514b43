"""Configuration through Python: loading, validation and errors."""

import contextlib
import dataclasses
import os
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth_optimizers import (
    ConfigError,
    EffectiveValue,
    Finding,
    GepaConfig,
    OptimizerIoError,
    OptimizerTomlDecodeError,
    config_schema,
)

SMALLEST = """\
[run]
run_id = "toy-1"
output_dir = "out"

[container]
url = "http://127.0.0.1:9100"

[dataset]
train_seeds = [0, 1, 2, 3, 4, 5]
heldout_seeds = [100, 101, 102]

[candidate]
target_modules = ["instructions"]

[seed_candidate]
instructions = "Reply with one label."
"""


def smallest_mapping() -> dict[str, Any]:
    """Return a minimal configuration as a mapping."""
    return {
        "run": {"run_id": "toy-1", "output_dir": "out"},
        "container": {"url": "http://127.0.0.1:9100"},
        "dataset": {"train_seeds": [0, 1, 2, 3, 4, 5], "heldout_seeds": [100, 101, 102]},
        "candidate": {"target_modules": ["instructions"]},
        "seed_candidate": {"instructions": "Reply with one label."},
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gepa.toml"
    path.write_text(SMALLEST)
    return path


def origins(config: GepaConfig) -> dict[str, str]:
    """Return the origin of every value by path."""
    return {value.path: value.origin for value in config.explain()}


def test_a_file_loads_with_its_defaults(file: Path) -> None:
    config = GepaConfig.from_toml(file, environ={})
    loaded = config.to_dict()
    assert loaded["run"]["run_id"] == "toy-1"
    assert loaded["dataset"]["train_seeds"] == [0, 1, 2, 3, 4, 5]
    assert loaded["gepa"]["carry_failures"] == 3
    assert config.warnings == ()


def test_relative_paths_are_resolved_against_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = str(file.parent / "out")
    assert GepaConfig.from_toml(file, environ={}).to_dict()["run"]["output_dir"] == expected
    monkeypatch.chdir(file.parent)
    assert GepaConfig.from_toml("gepa.toml", environ={}).to_dict()["run"]["output_dir"] == expected


def test_relative_paths_of_a_mapping_are_resolved_against_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mapping = smallest_mapping()
    mapping["run"]["output_dir"] = Path("out")
    assert GepaConfig.from_mapping(mapping, environ={}).to_dict()["run"]["output_dir"] == str(tmp_path / "out")


def test_a_mapping_and_a_file_give_the_same_configuration(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    mapping = GepaConfig.from_mapping(smallest_mapping(), environ={})
    assert mapping.to_dict() == GepaConfig.from_toml(file, environ={}).to_dict()


def test_a_loaded_configuration_loads_again(file: Path) -> None:
    first = GepaConfig.from_toml(file, environ={}).to_dict()
    assert GepaConfig.from_mapping(first, environ={}).to_dict() == first


def test_every_value_has_an_origin(file: Path) -> None:
    config = GepaConfig.from_toml(
        file, overrides=["gepa.minibatch_size=2"], environ={"SYNTH_OPTIMIZERS_CACHE_MODE": "off"}
    )
    found = origins(config)
    assert found["run.run_id"] == "file:2:10"
    assert found["run.seed"] == "default"
    assert found["cache.mode"] == "environment:SYNTH_OPTIMIZERS_CACHE_MODE"
    assert found["gepa.minibatch_size"] == "set"
    assert EffectiveValue("gepa.minibatch_size", 2, "set") in config.explain()
    assert origins(GepaConfig.from_mapping(smallest_mapping(), environ={}))["run.run_id"] == "mapping"


def test_the_environment_is_read_from_os_environ(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTH_OPTIMIZERS_RUN_ID", "from-outside")
    assert GepaConfig.from_toml(file).to_dict()["run"]["run_id"] == "from-outside"
    assert GepaConfig.from_toml(file, environ={}).to_dict()["run"]["run_id"] == "toy-1"


def test_an_unrelated_variable_that_is_not_utf8_is_ignored(file: Path) -> None:
    environ = {"FOREIGN": os.fsdecode(b"\xff\xfe")}
    assert GepaConfig.from_toml(file, environ=environ).to_dict()["run"]["run_id"] == "toy-1"


def test_to_dict_returns_a_copy(file: Path) -> None:
    config = GepaConfig.from_toml(file, environ={})
    config.to_dict()["run"]["run_id"] = "changed"
    config.explain().clear()
    assert config.to_dict()["run"]["run_id"] == "toy-1"
    assert config.explain()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.warnings = ()  # type: ignore[misc]


def test_a_config_error_lists_every_problem(file: Path) -> None:
    file.write_text(SMALLEST.replace("url =", "urll =") + "\n[gepa]\nminibatch_size = 0\n")
    with pytest.raises(ConfigError) as caught:
        GepaConfig.from_toml(file, environ={})
    error = caught.value
    assert str(error).startswith("synth_optimizer_config_error: ")
    assert {"container.urll", "gepa.minibatch_size"} <= {finding.field for finding in error.findings}
    unknown = next(finding for finding in error.findings if finding.field == "container.urll")
    assert (unknown.severity, unknown.code) == ("error", "unknown_key")
    assert (unknown.source, unknown.line, unknown.column) == (str(file), 6, 1)
    assert "`url`" in unknown.hint
    assert unknown.excerpt is not None
    assert error.hint
    assert error.detail is not None
    assert all(finding.message in error.detail for finding in error.findings)


def test_a_config_error_can_be_pickled() -> None:
    with pytest.raises(ConfigError) as caught:
        GepaConfig.from_mapping({}, environ={})
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - the bytes are our own
    assert copy.findings == caught.value.findings
    assert (copy.detail, copy.hint) == (caught.value.detail, caught.value.hint)


def test_a_config_error_shows_no_internals(file: Path) -> None:
    file.write_text("[gepa]\nminibatch_size = 'four'\n")
    with pytest.raises(ConfigError) as caught:
        GepaConfig.from_toml(file, environ={})
    error = caught.value
    shown = f"{error}\n{error.detail}\n{error.hint}"
    for foreign in ("Traceback", "panicked", ".rs:", "Some(", "Err("):
        assert foreign not in shown
    assert error.__cause__ is None
    assert error.__context__ is None
    assert traceback.format_exception_only(error)[0].startswith("synth_optimizers.errors.ConfigError: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.toml"
    with pytest.raises(OptimizerIoError) as caught:
        GepaConfig.from_toml(path)
    assert str(path) in str(caught.value)
    assert "os error" not in str(caught.value)
    assert "TOML file" in caught.value.hint


@pytest.mark.parametrize("name", [os.fsdecode(b"caf\xe9.toml"), "nul\0.toml", ""])
def test_an_invalid_path_is_an_error_with_a_hint(name: str) -> None:
    with pytest.raises(OptimizerIoError) as caught:
        GepaConfig.from_toml(name)
    assert caught.value.hint


def test_a_directory_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptimizerIoError, match="directory"):
        GepaConfig.from_toml(tmp_path)


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b"[run]\nrun_id = 'caf\xe9'\n")
    with pytest.raises(OptimizerTomlDecodeError, match="line 2") as caught:
        GepaConfig.from_toml(path)
    assert "UTF-8" in caught.value.hint


def test_a_file_that_is_not_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[run]\nrun_id = \n")
    with pytest.raises(OptimizerTomlDecodeError, match="line 2") as caught:
        GepaConfig.from_toml(path)
    assert caught.value.findings[0].line == 2


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (2**64, "64 bits"),
        (object(), "of type object"),
        ({1: 2}, "key must be text"),
        ("\ud800", "not Unicode text"),
    ],
)
def test_a_value_without_json_equivalent_is_refused_with_its_path(value: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        GepaConfig.from_mapping({"gepa": {"minibatch_size": [value]}}, environ={})
    assert "gepa.minibatch_size[0]" in str(caught.value)


def test_a_recursive_mapping_is_refused() -> None:
    mapping: dict[str, Any] = {}
    mapping["gepa"] = mapping
    with pytest.raises(ConfigError, match="nested deeper"):
        GepaConfig.from_mapping(mapping, environ={})


@pytest.mark.parametrize("argument", [3, None, ["gepa.toml"]])
def test_an_argument_that_is_not_a_path_is_a_type_error(argument: str) -> None:
    with pytest.raises(TypeError):
        GepaConfig.from_toml(argument)


def test_a_finding_has_the_fields_of_the_core() -> None:
    with pytest.raises(ConfigError) as caught:
        GepaConfig.from_mapping({}, environ={})
    assert all(isinstance(finding, Finding) for finding in caught.value.findings)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
sections = st.sampled_from(sorted(config_schema()["properties"]))


@given(st.dictionaries(sections | st.text(), json_values, max_size=4), st.lists(st.text(), max_size=2))
def test_any_mapping_loads_or_is_refused(mapping: dict[str, Any], overrides: list[str]) -> None:
    # Any other exception fails the test.
    with contextlib.suppress(ConfigError):
        GepaConfig.from_mapping(smallest_mapping() | mapping, overrides, environ={})


@given(st.binary())
def test_any_bytes_load_or_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    with pytest.raises((ConfigError, OptimizerTomlDecodeError)):
        GepaConfig.from_toml(path, environ={})


def test_the_schema_is_a_json_schema_of_the_file(file: Path) -> None:
    schema = config_schema()
    assert schema["$schema"].endswith("/schema")
    assert schema["type"] == "object"
    assert GepaConfig.from_toml(file, environ={}).to_dict().keys() <= schema["properties"].keys()
    for reference in references(schema):
        assert reference.removeprefix("#/$defs/") in schema["$defs"]


def references(node: object) -> list[str]:
    """Return every `$ref` below a node of the schema."""
    if isinstance(node, dict):
        own = [value for key, value in node.items() if key == "$ref" and isinstance(value, str)]
        return own + [reference for value in node.values() for reference in references(value)]
    if isinstance(node, list):
        return [reference for value in node for reference in references(value)]
    return []


def test_overrides_may_be_a_mapping(file: Path) -> None:
    overrides = {
        "gepa.minibatch_size": 3,
        "run.run_id": "007",
        "gepa.objective_keys": ["accuracy", 'with "quotes"\x7f'],
        "gepa": {"max_cost_usd": 1.5, "rollout_estimated_cost_usd": 0.1, "proposer_estimated_cost_usd": 0.1},
        "gepa.skip_perfect_score": False,
        "cache.path": file.parent / "cache.sqlite",
    }
    for config in (
        GepaConfig.from_toml(file, overrides=overrides, environ={}),
        GepaConfig.from_mapping(smallest_mapping(), overrides=overrides, environ={}),
    ):
        loaded = config.to_dict()
        assert (loaded["gepa"]["minibatch_size"], loaded["run"]["run_id"]) == (3, "007")
        assert loaded["gepa"]["objective_keys"] == ["accuracy", 'with "quotes"\x7f']
        assert (loaded["gepa"]["max_cost_usd"], loaded["gepa"]["skip_perfect_score"]) == (1.5, False)
        assert loaded["cache"]["path"] == str(file.parent / "cache.sqlite")
        assert origins(config)["gepa.minibatch_size"] == "set"
    texts = GepaConfig.from_toml(file, overrides=["gepa.minibatch_size=3"], environ={})
    assert GepaConfig.from_toml(file, overrides={"gepa.minibatch_size": 3}, environ={}) == texts


def test_a_bad_override_is_reported(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        GepaConfig.from_toml(file, overrides={"gepa.minibatch_size": "3", "gepa.minibatch_sise": 3}, environ={})
    assert {finding.code for finding in caught.value.findings} == {"wrong_type", "unknown_key"}
    assert all(finding.message in str(caught.value) for finding in caught.value.findings)
    with pytest.raises(ConfigError, match=r'"gepa\.minibatch_size" has no value'):
        GepaConfig.from_toml(file, overrides={"gepa.minibatch_size": None}, environ={})
    with pytest.raises(TypeError, match="not one text"):
        GepaConfig.from_toml(file, overrides="gepa.minibatch_size=3", environ={})


def test_the_text_of_an_error_lists_every_problem(file: Path) -> None:
    file.write_text(SMALLEST.replace("[dataset]", "[dataste]").replace("url =", "ulr ="))
    with pytest.raises(ConfigError) as caught:
        GepaConfig.from_toml(file, environ={})
    errors = [finding for finding in caught.value.findings if finding.severity == "error"]
    assert len(errors) == 2
    first, *others = str(caught.value).splitlines()
    assert first == f"synth_optimizer_config_error: {file} has {len(errors)} problems:"
    assert all(line.strip().startswith(found.message) for line, found in zip(others, errors, strict=True))


def test_limits_that_are_too_small_for_the_search_are_warnings(file: Path) -> None:
    def warned(**limits: object) -> dict[str, str]:
        overrides = {f"gepa.{name}": value for name, value in limits.items()}
        return {found.code: found.message for found in GepaConfig.from_toml(file, overrides, environ={}).warnings}

    # 6 train rows, twice 3 held-out rows, and 6 rollouts for each proposal of a generation.
    reference = {"search": "reference"}
    assert warned(**reference, max_total_rollouts=18, proposals_per_generation=1) == {}
    assert warned(**reference, max_total_rollouts=24, proposals_per_generation=2) == {}
    [(code, message)] = warned(**reference, max_total_rollouts=23, proposals_per_generation=2).items()
    assert code == "heldout_partial"
    assert message.endswith("held-out rows requires up to 24")
    # Sprints: rows of the initial candidate and their repeats, a proposal with its glance and check, held-out rows.
    assert warned(max_total_rollouts=28) == {}
    [(code, message)] = warned(max_total_rollouts=27).items()
    assert code == "heldout_partial"
    assert message.endswith("held-out rows requires up to 28")
    assert warned(max_total_rollouts=12)["no_proposal"].endswith("screening one proposal requires up to 14")
    assert list(warned(minibatch_size=7)) == ["minibatch_too_large"]
    assert warned(minibatch_size=6) == {}

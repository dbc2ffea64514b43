"""A loaded configuration, with the origin of every value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, TypeAlias

from synth_optimizers._synth_optimizers import LoadedConfig, load_config, load_run_config, override_texts
from synth_optimizers.findings import Finding

Overrides: TypeAlias = Sequence[str] | Mapping[str, Any]
"""Values that replace those of a configuration: `key=value` texts, or values by dotted path."""


def override_list(overrides: Overrides) -> list[str]:
    """Return overrides as `key=value` texts."""
    if isinstance(overrides, str):
        raise TypeError("overrides is a mapping or a list of texts such as 'gepa.max_generations=3', not one text")
    return override_texts(overrides) if isinstance(overrides, Mapping) else list(overrides)


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One effective value and its origin."""

    path: str
    """The dotted path, such as `gepa.minibatch_size`."""
    value: Any
    """The effective value; secrets are hidden."""
    origin: str
    """The source of the value: `default`, `file:LINE:COLUMN`, `mapping`, `environment:VARIABLE`, `set`, or `run` for a
    resumed run."""


@dataclass(frozen=True, slots=True)
class GepaConfig:
    """A validated configuration.

    >>> config = GepaConfig.from_toml("gepa.toml", overrides={"gepa.minibatch_size": 4})
    >>> config.to_dict()["gepa"]["minibatch_size"]
    4
    """

    _native: LoadedConfig = field(repr=False, compare=False)
    """The configuration as an object of the Rust core."""
    _values: tuple[EffectiveValue, ...] = field(repr=False)
    warnings: tuple[Finding, ...]
    """Settings that take effect differently from how they are written, and limits that are too small for the search."""

    @classmethod
    def from_toml(
        cls, path: str | PathLike[str], overrides: Overrides = (), environ: Mapping[str, str] | None = None
    ) -> GepaConfig:
        """Load a TOML file.

        `overrides` are `key=value` texts as for `--set`, or a mapping such as `{"gepa.minibatch_size": 4}`. They take
        precedence over the environment, which takes precedence over the file. `environ` replaces `os.environ`. An
        invalid configuration raises `ConfigError`, whose `findings` list every problem.
        """
        return cls._of(load_config(path, overrides=override_list(overrides), environ=environ))

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, Any], overrides: Overrides = (), environ: Mapping[str, str] | None = None
    ) -> GepaConfig:
        """Load a mapping of the same shape as the file; relative paths are resolved against the working directory."""
        return cls._of(load_config(mapping, overrides=override_list(overrides), environ=environ))

    @classmethod
    def from_run_dir(cls, run_dir: str | PathLike[str]) -> GepaConfig:
        """Load the configuration of an existing run, to resume it."""
        return cls._of(load_run_config(run_dir))

    @classmethod
    def _of(cls, native: LoadedConfig) -> GepaConfig:
        values = tuple(EffectiveValue(*value) for value in native.values())
        return cls(_native=native, _values=values, warnings=native.warnings)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole effective configuration as plain objects, with defaults and with secrets hidden."""
        return self._native.to_dict()

    def explain(self) -> list[EffectiveValue]:
        """Return every effective value with its origin."""
        return list(self._values)

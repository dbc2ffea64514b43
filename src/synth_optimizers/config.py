"""A loaded configuration, with the origin of every value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from synth_optimizers._synth_optimizers import LoadedConfig, load_config, load_run_config
from synth_optimizers.findings import Finding


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One value in effect and where it came from."""

    path: str
    """The dotted path, such as `gepa.minibatch_size`."""
    value: Any
    """The value in effect; a secret is hidden."""
    origin: str
    """Where it came from: `default`, `file:LINE:COLUMN`, `mapping`, `environment:VARIABLE`, `set`, or `run` for a run
    that goes on."""


@dataclass(frozen=True, slots=True)
class GepaConfig:
    """A configuration that has passed every check.

    >>> config = GepaConfig.from_toml("gepa.toml", overrides=["gepa.minibatch_size=4"])
    >>> config.to_dict()["gepa"]["minibatch_size"]
    4
    """

    _native: LoadedConfig = field(repr=False, compare=False)
    """The same for the core."""
    _values: tuple[EffectiveValue, ...] = field(repr=False)
    warnings: tuple[Finding, ...]
    """What is used in another way than written."""

    @classmethod
    def from_toml(
        cls, path: str | PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> GepaConfig:
        """Load a TOML file.

        `overrides` are `key=value` texts as for `--set`; they win over the environment, which wins over the file.
        `environ` stands in for `os.environ`. A configuration with problems raises `ConfigError` whose `findings`
        name every one of them.
        """
        return cls._of(load_config(path, overrides=overrides, environ=environ))

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, Any], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> GepaConfig:
        """Load a mapping of the same shape as the file; relative paths start at the working directory."""
        return cls._of(load_config(mapping, overrides=overrides, environ=environ))

    @classmethod
    def from_run_dir(cls, run_dir: str | PathLike[str]) -> GepaConfig:
        """Load the configuration that a run was begun with, to go on with it."""
        return cls._of(load_run_config(run_dir))

    @classmethod
    def _of(cls, native: LoadedConfig) -> GepaConfig:
        values = tuple(EffectiveValue(*value) for value in native.values())
        return cls(_native=native, _values=values, warnings=native.warnings)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole configuration in effect, defaults included and secrets hidden, as plain objects."""
        return self._native.to_dict()

    def explain(self) -> list[EffectiveValue]:
        """Return every value in effect with its origin."""
        return list(self._values)

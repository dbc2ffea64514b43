"""Renders the public names of the package with their signatures; run as a script, it rewrites the snapshot."""

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

SNAPSHOT = Path(__file__).parent / "public_api.txt"
MODULES = [
    "synth_optimizers",
    "synth_optimizers.client",
    "synth_optimizers.bridge",
    "synth_optimizers.errors",
    "synth_optimizers.tracking",
]


def render() -> str:
    """Return one line per public name, member and base class."""
    return "\n".join(line for module in MODULES for line in _module(module)) + "\n"


def _module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    for public in sorted(module.__all__):
        value = getattr(module, public)
        place = f"{name}.{public}"
        if not inspect.isclass(value):
            yield f"{place}{inspect.signature(value)}" if callable(value) else f"{place}: {type(value).__name__}"
            continue
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        code = getattr(value, "error_code", None)
        yield f"class {place}({bases})" + (f" error_code={code}" if code else "")
        # A class is described in full once, in its main module.
        if name in MODULES[:2] and not issubclass(value, RuntimeError):
            yield from (f"    {place}.{member}" for member in _members(value))


def _members(cls: type) -> Iterator[str]:
    names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    yield from (name for name in names if not name.startswith("_"))
    for name, value in sorted(vars(cls).items()):
        if name.startswith("_") or name in names:
            continue
        method = value.__func__ if isinstance(value, classmethod) else value
        yield f"{name}{inspect.signature(method)}" if callable(method) else f"{name}: {type(value).__name__}"


if __name__ == "__main__":
    SNAPSHOT.write_text(render())
    print(f"wrote {SNAPSHOT.name}")

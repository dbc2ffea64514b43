"""The public API matches its snapshot; `python tests/public_api.py` rewrites the snapshot."""

import importlib.util
from pathlib import Path

import synth_optimizers


def test_the_public_api_matches_the_snapshot() -> None:
    path = Path(__file__).parent / "public_api.py"
    spec = importlib.util.spec_from_file_location("public_api", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.render() == module.SNAPSHOT.read_text()


def test_every_name_of_the_extension_has_a_docstring() -> None:
    extension = synth_optimizers._synth_optimizers
    names = [name for name in dir(extension) if not name.startswith("__")]
    assert [name for name in names if not getattr(extension, name).__doc__] == []

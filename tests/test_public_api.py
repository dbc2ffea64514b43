"""The public names change only on purpose: `python tests/public_api.py` rewrites the snapshot."""

import importlib.util
from pathlib import Path

import synth_optimizers
import synth_optimizers.errors


def test_the_public_names_are_those_of_the_snapshot() -> None:
    path = Path(__file__).parent / "public_api.py"
    spec = importlib.util.spec_from_file_location("public_api", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.render() == module.SNAPSHOT.read_text()


def test_the_extension_offers_nothing_undocumented() -> None:
    documented = set(synth_optimizers.__all__) | set(synth_optimizers.errors.__all__)
    extension = synth_optimizers._synth_optimizers
    assert {name for name in dir(extension) if not name.startswith("__")} <= documented | {"load_config"}
    assert all(getattr(extension, name).__doc__ for name in documented & set(dir(extension)))

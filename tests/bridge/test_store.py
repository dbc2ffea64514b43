"""The memory of rollout ids."""

from pathlib import Path

import pytest

from synth_optimizers.bridge import BridgeError
from synth_optimizers.bridge.record import stored_record
from synth_optimizers.bridge.store import DROPPED, ENDED, LOST, RUNNING, Store


def state(store: Store, rollout_id: str) -> str | None:
    found = store.find(rollout_id)
    return found.state if found else None


def test_states_survive_the_end_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    store = Store(path)
    store.begin("r-1", b"d", "row")
    store.begin("r-2", b"d", "row")
    long_record = b'{"x":"' + b"x" * 10_000 + b'"}'
    store.end("r-2", b"d", "row", long_record)
    store.end("r-3", b"d", "row", b"{}")
    assert (state(store, "r-1"), state(store, "r-2"), state(store, "r-4")) == (RUNNING, ENDED, None)
    store.close()
    assert path.stat().st_size < 50_000
    again = Store(path)
    assert (state(again, "r-1"), state(again, "r-2")) == (LOST, ENDED)
    found = again.find("r-2")
    assert found is not None
    assert found.record == long_record
    assert again.counts() == {LOST: 1, ENDED: 2}
    again.close()


def test_old_records_are_dropped_and_their_ids_stay(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.sqlite", max_record_bytes=1000)
    for number in range(30):
        store.end(f"r-{number}", b"d", "row", b"{" + b" " * 98 + b"}")
    counts = store.counts()
    assert counts[ENDED] <= 10
    assert counts[ENDED] + counts[DROPPED] == 30
    assert (state(store, "r-0"), state(store, "r-29")) == (DROPPED, ENDED)
    found = store.find("r-0")
    assert found is not None
    assert b"its record was dropped" in stored_record("r-0", found)
    store.close()


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.write_text("This is not a database, and it is long enough to be one." * 100)
    with pytest.raises(BridgeError, match="cannot be used: file is not a database"):
        Store(path)
    with pytest.raises(BridgeError, match="cannot be used: unable to open"):
        Store(tmp_path / "missing" / "state.sqlite")

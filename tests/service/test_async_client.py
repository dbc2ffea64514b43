"""`AsyncClient` against the real service: the same calls and answers, concurrently."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from support.example import Example
from support.http_server import free_port
from support.polling import wait_until
from support.service import Service, run_service

from service.short_runs import TINY, config_file, events, has_event, sections
from synth_optimizers.client import AsyncClient, Client, ServiceErrorDetails
from synth_optimizers.errors import CancelledError, ConfigError, StateTransitionError, SynthOptimizerError

T = TypeVar("T")


def talk(service: Service, conversation: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Run a coroutine with a client of the service in an event loop."""

    async def whole() -> T:
        async with AsyncClient(service.url) as client:
            return await conversation(client)

    return asyncio.run(whole())


def test_a_run_from_its_submission_to_its_result(service: Service, slow: Example, tmp_path: Path) -> None:
    async def conversation(client: AsyncClient) -> list[dict[str, object]]:
        run_id = (await client.submit(config_file(tmp_path, slow))).run_id

        async def watch() -> list[dict[str, object]]:
            return [event.to_dict() | {"version": 1} async for event in client.watch(run_id)]

        async def newest() -> int:
            sequence = -1
            for _ in range(3):
                found = await client.best(run_id, wait_newer_than=sequence, timeout=30)
                assert found is not None
                assert found.sequence > sequence
                sequence = found.sequence
            return sequence

        # All of them wait concurrently, in one thread.
        one, two, _, detail = await asyncio.gather(watch(), watch(), newest(), client.wait(run_id))
        assert one == two
        assert detail.status == "completed"
        assert [event.sequence_number async for event in client.events(run_id, page_size=50)] == list(range(len(one)))
        return one

    assert talk(service, conversation) == events(service, "router")


def test_both_clients_return_the_same_answers(done: Service, tmp_path: Path) -> None:
    async def conversation(client: AsyncClient) -> dict[str, object]:
        best = await client.best("router")
        assert best is not None
        path = await client.download("router", "frontier.json", tmp_path / "async.json")
        return {
            "best": best,
            "candidates": [known async for known in client.candidates("router", page_size=3)],
            "candidate": await client.candidate("router", best.candidate_id),
            "rollouts": [known async for known in client.rollouts("router", stage="heldout", page_size=3)],
            "rollout": await client.rollout("router", 0, trace=True),
            "frontier": await client.frontier("router"),
            "scores": [known async for known in client.scores("router", page_size=2)],
            "series": await client.score_series("router"),
            "artifacts": await client.artifacts("router"),
            "artifact": await client.artifact("router", "manifest.json"),
            "file": path.read_bytes(),
            "runs": [known async for known in client.runs(page_size=3)],
            "run": await client.run("router"),
            "health": await client.health(),
            "ready": await client.ready(),
            "prune": await client.prune(),
            "workspace": (await client.workspace())["runs"],
            "status": (await client.status())["run_requests"],
        }

    found = talk(done, conversation)
    with Client(done.url) as client:
        best = client.best("router")
        assert best is not None
        assert found == {
            "best": best,
            "candidates": list(client.candidates("router")),
            "candidate": client.candidate("router", best.candidate_id),
            "rollouts": list(client.rollouts("router", stage="heldout")),
            "rollout": client.rollout("router", 0, trace=True),
            "frontier": client.frontier("router"),
            "scores": list(client.scores("router")),
            "series": client.score_series("router"),
            "artifacts": client.artifacts("router"),
            "artifact": client.artifact("router", "manifest.json"),
            "file": client.artifact("router", "frontier.json"),
            "runs": list(client.runs()),
            "run": client.run("router"),
            "health": client.health(),
            "ready": client.ready(),
            "prune": client.prune(),
            "workspace": client.workspace()["runs"],
            "status": client.status()["run_requests"],
        }


def test_control_requests_and_errors_of_the_async_client(service: Service, slow: Example, tmp_path: Path) -> None:
    async def conversation(client: AsyncClient) -> None:
        run_id = (await client.submit(config_file(tmp_path, slow), auto_start=False)).run_id
        assert (await client.pause(run_id, timeout_seconds=60)).status == "paused"
        assert (await client.resume(run_id)).status == "queued"
        assert (await client.stop(run_id, reason="not needed")).status == "cancelled"
        with pytest.raises(CancelledError, match="not needed"):
            await client.wait(run_id)
        with pytest.raises(StateTransitionError) as caught:
            await client.resume(run_id)
        assert isinstance(caught.value, ServiceErrorDetails)
        assert caught.value.state == "cancelled"
        await client.delete(run_id)
        with pytest.raises(SynthOptimizerError, match="router"):
            await client.run(run_id)
        report = await client.preflight(config_file(tmp_path, slow), overrides=["gepa.minibatch_size=0"])
        assert [found.field for found in report.blockers] == ["gepa.minibatch_size"]
        with pytest.raises(ConfigError) as refused:
            await client.submit(config_file(tmp_path, slow), overrides=["gepa.minibatch_size=0"])
        assert isinstance(refused.value, ServiceErrorDetails)
        assert refused.value.field_errors == report.blockers

    talk(service, conversation)


def test_the_queue_is_processed_by_worker_calls(service: Service, example: Example, tmp_path: Path) -> None:
    config = sections(tmp_path, example, run__run_id=None, **TINY)

    async def conversation(client: AsyncClient) -> None:
        stepped = (await client.submit(config=config, manual_step=True)).run_id
        while not (await client.step(stepped)).terminal:
            pass
        next_one = (await client.submit(config=config, auto_start=False)).run_id
        done = await client.run_next()
        assert done.request is not None
        assert done.request.run_id == next_one
        assert (await client.tick()).action == {"action": "noop"}
        assert await client.recover() == ()
        assert set((await client.prune(dry_run=False)).run_ids) == {stepped, next_one}

    talk(service, conversation)


def test_a_watch_continues_after_a_restart_of_the_service(slow: Example, tmp_path: Path) -> None:
    bind = ("--bind", f"127.0.0.1:{free_port()}")

    async def watch(url: str, run_id: str) -> list[int]:
        async with AsyncClient(url) as client:
            return [event.sequence_number async for event in client.watch(run_id, retries=20)]

    async def conversation() -> None:
        with run_service(tmp_path, *bind) as service:
            run_id = service.run_id(config_file(tmp_path, slow))
            watching = asyncio.create_task(watch(service.url, run_id))
            await asyncio.to_thread(wait_until, "a generation", has_event(service, run_id, "generation.started"))
            await asyncio.to_thread(service.end, signal.SIGKILL)
        with run_service(tmp_path, *bind) as service:
            found = await watching
            assert found == list(range(len(events(service, run_id))))
            assert service.request(run_id)["status"] == "completed"

    asyncio.run(conversation())

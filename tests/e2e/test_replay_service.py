"""A trace through the real service, and what its decision log says afterwards."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from placewise_service.background import cancel_and_wait
from placewise_service.bench.processes import service_process
from placewise_service.cli import invoke
from placewise_service.declog.export import export
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.embedded import embedded_url
from placewise_service.state.redis.redis_store import RedisStore

pytestmark = pytest.mark.e2e


async def call(*args: object) -> int:
    return await asyncio.to_thread(invoke, [str(arg) for arg in args])


async def test_a_replayed_trace_is_whole_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Eight single-GPU jobs fill half of each of two nodes when spread, so that a whole-node job finds none free.
    lines = [f"small-{n},{n},1000,1" for n in range(8)] + ["large,100,50,8", "huge,200,50,999"]
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_time_s,duration_s,num_gpus\n" + "\n".join(lines) + "\n")
    state = tmp_path / "state"
    async with service_process({"PLACEWISE_STATE_DIR": str(state)}) as service:
        options = ("--nodes", 2, "--gpus-per-node", 8, "--plot", tmp_path / "p.png", "--target", service.target)
        policies = ("--policy", "consolidate", "--policy", "load-balance")
        async with exports(state, tmp_path / "log"):
            assert await call("replay", "--trace", trace, *policies, *options, "--keep", "--json") == 0
        answer = json.loads(capsys.readouterr().out)
        consolidate, balance = answer["policies"]
        assert (consolidate["jobs_started"], consolidate["never_fits"]) == (9, 1)
        assert (balance["jobs_started"], balance["never_fits"]) == (9, 1)
        assert consolidate["avg_queue_s"] == 0
        assert balance["avg_queue_s"] > 0  # the large job waits for a node of its own
        assert (tmp_path / "p.png").stat().st_size > 10_000
        monkeypatch.setenv("PLACEWISE_STATE_DIR", str(state))
        async with asyncio.timeout(60):  # the log is written behind the answers: the last events may not be there yet
            placed = await exported(tmp_path / "log")
            while len(placed) < 18 or any(row["status"] == "OPEN" for row in placed):
                placed = await exported(tmp_path / "log")
    capsys.readouterr()
    assert len(placed) == 18
    assert {(row["status"], row["end"], row["is_overridden"]) for row in placed} == {("OBSERVED", "FINISHED", False)}
    assert {round(row["end_time_s"] - row["start_time_s"]) for row in placed} == {1000, 50}


async def test_a_log_without_its_unchanged_refusals_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The large job waits at the head of the queue while small ones before it end one after another.
    lines = [f"small-{n},{n},{1000 + 50 * n},1" for n in range(6)] + ["large,100,50,8"]
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_time_s,duration_s,num_gpus\n" + "\n".join(lines) + "\n")
    state, log = tmp_path / "state", tmp_path / "log"
    monkeypatch.setenv("PLACEWISE_STATE_DIR", str(state))
    async with service_process({"PLACEWISE_STATE_DIR": str(state)}) as service:
        options = ("--nodes", 1, "--gpus-per-node", 8, "--admit", "fifo", "--policy", "consolidate", "--json")
        options += ("--plot", tmp_path / "p.png", "--target", service.target)
        code = await call("replay", "--trace", trace, *options, "--log", log)
    assert code == 0, capsys.readouterr().err
    (run,) = json.loads(capsys.readouterr().out)["policies"]
    assert await call("log", "stats", log, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["refusals_left_out"] > 0
    logged = sum(found["decisions"].values()) + found["refusals_left_out"]
    assert logged == run["admit_calls"] + run["place_calls"]


async def test_a_malformed_trace_reaches_no_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_time_s,duration_s,num_gpus\na,0,ten,1\n")
    assert await call("replay", "--trace", trace, "--target", "127.0.0.1:1") == 6
    assert "t.csv:2:5: duration_s" in capsys.readouterr().err


@asynccontextmanager
async def exports(state: Path, folder: Path) -> AsyncIterator[None]:
    """Export after export while the block runs, so that they fall between decisions and what becomes of them."""
    store = RedisStore(RedisOptions(embedded_url(state), timeout_s=30.0))
    done = 0

    async def again_and_again() -> None:
        nonlocal done
        while True:
            await export(store, folder)
            done += 1
            await asyncio.sleep(0.01)

    task = asyncio.create_task(again_and_again())
    yield
    assert not task.done(), "an export failed"
    await cancel_and_wait([task])
    await store.close()
    assert done > 1, "the replay was over before it could be looked at in between"


async def exported(folder: Path) -> list[dict[str, Any]]:
    """The rows of placed jobs after one more export."""
    assert await call("log", "export", folder, "--json") == 0
    return await asyncio.to_thread(placed_rows, folder)


def placed_rows(folder: Path) -> list[dict[str, Any]]:
    joined = [row for path in folder.glob("joined/*/*.parquet") for row in pq.read_table(path).to_pylist()]
    return [row for row in joined if row["outcome"] == "PLACED"]

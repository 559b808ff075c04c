"""The decision log through the API: the export of a direct reader, page by page, for the scope `log` alone."""

from pathlib import Path

import pytest
from tests.fakes.callers.identity import by_tokens
from tests.fakes.cluster import make_job
from tests.fakes.declog import NOON_S, FakeRing, decision, files, job_rows, outcome, run
from tests.fakes.engine import CLUSTER, ask_place, logged, place, running_engine
from tests.fakes.servers.listening import listening

from placewise.v1.bundle_pb2 import ReadLogRequest
from placewise_client.aio import AsyncClient
from placewise_client.errors import InvalidRequestError, NotFoundError, PermissionDeniedError
from placewise_client.target import Target
from placewise_core.domain.commands import JobEventKind
from placewise_core.domain.errors import NotFoundError as UnknownClusterError
from placewise_log.logs import Log, LogState
from placewise_log.manifest import LogManifest
from placewise_service.api.identity.auth import AccessScope
from placewise_service.api.identity.token_changes import create_token
from placewise_service.commands.remote.log_ring import ApiRing
from placewise_service.declog.export import export


async def test_an_export_through_the_api_is_that_of_a_direct_reader(tmp_path: Path) -> None:
    entries = [each for n in range(1, 8) for each in (decision(n), outcome(n, JobEventKind.FINISHED, NOON_S + n))]
    ring = FakeRing(*entries)
    await run(ring, tmp_path / "direct")
    token = create_token(tmp_path / "tokens.yaml", "exporter", [AccessScope.LOG], ["prod"])
    async with listening(by_tokens(tmp_path / "tokens.yaml")) as at:
        at.engine.log, at.engine.dropped, at.engine.host_time_s = ring.entries, 4, 90.25
        async with AsyncClient(Target((f"127.0.0.1:{at.grpc_port}",), token=token)) as client:
            report = await export(ApiRing(client, ("prod",)), tmp_path / "api", clusters=("prod",), batch=3)
        assert at.engine.exported == ring.entries[-1][0]
    manifest = LogManifest.read(tmp_path / "api")
    assert manifest.dropped == {"prod": {"decisions": 4, "views": 0}}
    assert manifest.host_times_s == {"prod": 90.25}
    assert (report.written["decisions"], report.written["outcomes"]) == (7, 7)
    assert len(files(tmp_path / "api", "decisions/*/*.parquet")) > 1
    by_job = [
        {row["job_id"]: {**row, "cluster": ""} for row in job_rows(tmp_path / folder)} for folder in ("direct", "api")
    ]
    assert by_job[0].keys() == by_job[1].keys()
    assert {job: row["end_time_s"] for job, row in by_job[0].items()} == {
        job: row["end_time_s"] for job, row in by_job[1].items()
    }


@pytest.mark.parametrize("scopes", [[AccessScope.DECIDE], [AccessScope.READ, AccessScope.REPORT, AccessScope.ADMIN]])
async def test_no_other_scope_reads_the_log(tmp_path: Path, scopes: list[AccessScope]) -> None:
    token = create_token(tmp_path / "t", "other", scopes)
    async with listening(by_tokens(tmp_path / "t")) as at:
        target = Target((f"127.0.0.1:{at.grpc_port}",), token=token)
        async with AsyncClient(target) as client:
            with pytest.raises(PermissionDeniedError, match="log"):
                await client.read_log(ReadLogRequest(cluster="prod"))
        assert at.engine.exported == ""


async def test_the_log_of_another_cluster_is_refused(tmp_path: Path) -> None:
    token = create_token(tmp_path / "t", "exporter", [AccessScope.LOG], ["other"])
    async with listening(by_tokens(tmp_path / "t")) as at:
        async with AsyncClient(Target((f"127.0.0.1:{at.grpc_port}",), token=token)) as client:
            with pytest.raises(PermissionDeniedError):
                await client.read_log(ReadLogRequest(cluster="prod", exported="9-0"))
        assert at.engine.exported == ""


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"page_size": 1001}, InvalidRequestError),
        ({"page_size": -1}, InvalidRequestError),
        ({"after": "yesterday"}, InvalidRequestError),
        ({"exported": "1-"}, InvalidRequestError),
        ({"cluster": "nowhere"}, NotFoundError),
    ],
)
async def test_a_page_that_makes_no_sense_is_refused(wrong: dict[str, object], error: type[Exception]) -> None:
    async with listening() as at, AsyncClient(Target((f"127.0.0.1:{at.grpc_port}",))) as client:
        with pytest.raises(error):
            await client.read_log(ReadLogRequest(**{"cluster": "prod", **wrong}))  # type: ignore[arg-type]


async def test_a_page_of_large_entries_is_cut_but_never_empty() -> None:
    async with listening() as at:
        at.engine.log = [(f"{n}-0", bytes(600_000)) for n in range(1, 4)] + [("4-0", bytes(2_000_000))]
        async with AsyncClient(Target((f"127.0.0.1:{at.grpc_port}",))) as client:
            sizes, after = [], ""
            while page := (await client.read_log(ReadLogRequest(cluster="prod", after=after))).entries:
                sizes.append(len(page))
                after = page[-1].position
    assert sizes == [1, 1, 1, 1]


async def test_a_page_reads_little_more_of_the_log_than_it_gives() -> None:
    async with listening() as at:
        at.engine.log = [(f"{n}-0", bytes(300_000)) for n in range(100, 200)]
        async with AsyncClient(Target((f"127.0.0.1:{at.grpc_port}",))) as client:
            page = await client.read_log(ReadLogRequest(cluster="prod", page_size=1000))
            assert (len(page.entries), at.engine.log_read) == (3, 4)
            at.engine.log = [(f"{n}-0", b"small") for n in range(100, 900)]
            page = await client.read_log(ReadLogRequest(cluster="prod", page_size=700))
            assert [entry.position for entry in page.entries] == [f"{n}-0" for n in range(100, 800)]


@pytest.mark.parametrize("log", Log)
async def test_the_engine_gives_its_logs_and_notes_how_far_they_are_exported(log: Log) -> None:
    async with running_engine(nodes=1) as engine:
        await ask_place(engine, place(make_job("a")))
        assert await logged(engine)
        await engine._parts.store.append_decisions(CLUSTER, [b"a view"], Log.VIEWS)
        found, state = await engine.read_log(CLUSTER, log, "", 100, "")
        assert (len(found) > 0, state) == (True, LogState())
        last = found[-1][0]
        assert await engine.read_log(CLUSTER, log, last, 100, last) == ([], LogState(last))
        with pytest.raises(UnknownClusterError):
            await engine.read_log("nowhere", log, "", 100, "")

"""From answers and reports of a running service to what `placewise log` says: overrides seen, dangling ones counted."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from placewise.v1.cluster_pb2 import Assignment, JobEvent, Node, ReportJobEventsRequest, ReportNodesRequest
from placewise.v1.decision_pb2 import Outcome, PlaceRequest
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client.aio import AsyncClient
from placewise_client.target import Target
from placewise_log.reading import ExportedLog
from placewise_service.api.identity.auth import AccessScope
from placewise_service.api.identity.token_changes import create_token
from placewise_service.bench.processes import redis_process, service_process
from placewise_service.cli import invoke
from placewise_service.commands.exits import Exit

pytestmark = pytest.mark.e2e

CLUSTER = "c"


async def decided(client: AsyncClient, job_id: str) -> tuple[str, Assignment]:
    """Decision id and placement of a job of one GPU."""
    group = TaskGroup(role=TaskGroup.WORKER, count=1, demand=Resources(gpus=1))
    answer = await client.place(PlaceRequest(cluster=CLUSTER, jobs=[Job(id=job_id, groups=[group])]))
    assert answer.decisions[0].outcome == Outcome.PLACED
    return answer.meta.decision_id, answer.decisions[0].assignments[0]


async def reported(client: AsyncClient, job_id: str, *placement: Assignment) -> None:
    """The job starts, here or as planned, and ends. The host names no decision."""
    for kind in (JobEvent.STARTED, JobEvent.FINISHED):
        event = JobEvent(job_id=job_id, kind=kind, placement=placement if kind == JobEvent.STARTED else ())
        await client.report_job_events(ReportJobEventsRequest(cluster=CLUSTER, events=[event]))


async def command(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    assert await asyncio.to_thread(invoke, ["log", *(str(arg) for arg in args), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_what_became_of_each_decision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACEWISE_STATE_DIR", str(tmp_path / "state"))
    async with (
        service_process(
            {"PLACEWISE_STATE_DIR": str(tmp_path / "state"), "PLACEWISE_DECLOG__ALTERNATIVES_SHARE": "0"}
        ) as service,
        AsyncClient(service.target) as client,
    ):
        nodes = [Node(id=f"n{n}", capacity=Resources(cpu_cores=8, gpus=4, memory_gib=64)) for n in range(2)]
        await client.report_nodes(ReportNodesRequest(cluster=CLUSTER, nodes=nodes))
        decisions = {job_id: await decided(client, job_id) for job_id in ("as-planned", "elsewhere", "forgotten")}
        await decided(client, "as-planned")  # a repeat: the answer is its placement
        await reported(client, "as-planned")
        other = "n1" if decisions["elsewhere"][1].node == "n0" else "n0"
        await reported(client, "elsewhere", Assignment(task="worker-0", role=TaskGroup.WORKER, node=other))
        await asyncio.sleep(0.5)  # ten flush intervals of the log
        report = (await command(capsys, "export", tmp_path / "log", "--dangling-after", 0))[0]
        assert report["joined"] == {"OBSERVED": 2, "DANGLING": 1, "NOT_HELD": 1, "OVERRIDDEN": 1, "WAITING": 2}
        (path,) = (tmp_path / "log").glob("joined/*/joined.parquet")
        joined = await asyncio.to_thread(lambda: pq.read_table(path).to_pylist())
        rows = {row["job_id"]: row for row in joined if row["status"] != "NOT_HELD"}
        fates = {job: (row["status"], row["is_overridden"], row["end"]) for job, row in rows.items()}
        assert fates == {
            "as-planned": ("OBSERVED", False, "FINISHED"),
            "elsewhere": ("OBSERVED", True, "FINISHED"),
            "forgotten": ("DANGLING", False, ""),
        }
        assert rows["elsewhere"]["actual"][0].startswith(other)
        assert {row["decision_id"] for row in rows.values()} == {decision_id for decision_id, _ in decisions.values()}
        assert {row["propensity"] for row in rows.values()} == {1.0}
        latest = await command(capsys, "tail", "-c", CLUSTER)
        assert [line["kind"] for line in latest].count("outcome") == 4
        asked = decisions["elsewhere"][0]
        (shown,) = await command(capsys, "show", asked, "-c", CLUSTER, "--target", service.target)
        assert (shown["decisionId"], shown["place"]["decisions"][0]["jobId"]) == (asked, "elsewhere")
        (tmp_path / "file").touch()
        refused = await asyncio.to_thread(invoke, ["log", "export", str(tmp_path / "file" / "log")])
        assert (refused, "Not a directory. Run the export again" in capsys.readouterr().err) == (1, True)


async def test_an_export_through_the_api_has_the_views_of_its_decisions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = tmp_path / "tokens.yaml"
    everything = create_token(
        tokens, "host", [AccessScope.DECIDE, AccessScope.REPORT, AccessScope.READ, AccessScope.ADMIN]
    )
    reader = create_token(tokens, "export", [AccessScope.LOG], [CLUSTER])
    elsewhere = create_token(tokens, "elsewhere", [AccessScope.LOG], ["other"])
    with redis_process() as redis:
        environment = {"PLACEWISE_REDIS_URL": redis.url, "PLACEWISE_AUTH__TOKENS_FILE": str(tokens)}
        async with (
            service_process(environment) as service,
            AsyncClient(Target((service.target,), token=everything)) as client,
        ):
            nodes = [Node(id=f"n{n}", capacity=Resources(cpu_cores=8, gpus=4, memory_gib=64)) for n in range(4)]
            await client.report_nodes(ReportNodesRequest(cluster=CLUSTER, nodes=nodes))
            placed = await asyncio.gather(*(decided(client, f"j{n}") for n in range(8)))
            await reported(client, "j0")
            await asyncio.sleep(0.5)  # ten flush intervals of the log
            source = ("--target", service.target, "--cluster", CLUSTER)
            copy = ("--store", (tmp_path / "copy").as_uri())
            for token in (everything, elsewhere):
                args = ["log", "export", str(tmp_path / "refused"), *source, "--token", token]
                assert await asyncio.to_thread(invoke, args) == Exit.REFUSED
                assert ("scope log" if token == everything else CLUSTER) in capsys.readouterr().err
            assert not list((tmp_path / "refused").glob("decisions/*/*"))
            report = (await command(capsys, "export", tmp_path / "log", *source, *copy, "--token", reader))[0]
            assert (report["written"]["decisions"], report["written"]["outcomes"]) == (8, 2)
            again = (await command(capsys, "export", tmp_path / "log", *source, "--token", reader))[0]
            assert again["written"].get("decisions", 0) == 0
    for folder in ("log", "copy"):
        log = ExportedLog(tmp_path / folder)
        assert {record.decision_id for record in log.records()} == {decision_id for decision_id, _ in placed}
        for record in log.records():
            (read,) = record.reads
            assert log.view_at(record).version == read.version

"""The REST version is agreed on with slurmrestd, and paths that it does not serve are not asked for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.fakes.schedulers.slurmrestd import FakeSlurm

from placewise_client.adapter.native import HostUnreachableError
from placewise_slurm import config
from placewise_slurm.http import JsonHttp, TransportError
from placewise_slurm.main import EXIT_CONFIG, check, main, run_bridge
from placewise_slurm.rest import NoVersionError, SlurmRest
from placewise_slurm.scheduler import SlurmScheduler
from placewise_slurm.versions import VERSIONS


@pytest.fixture
async def slurm(tmp_path: Path) -> AsyncIterator[FakeSlurm]:
    started = await FakeSlurm(tmp_path / "rest.sock", "v0.0.42").start()
    yield started
    await started.stop()


def asking(slurm: FakeSlurm, wanted: str = "") -> SlurmRest:
    return SlurmRest(JsonHttp(f"unix:{slurm.socket}"), wanted=wanted)


@pytest.mark.parametrize(
    ("served", "spoken"),
    [
        (["v0.0.36", "v0.0.38"], "v0.0.38"),
        (["v0.0.40", "v0.0.41", "v0.0.42"], "v0.0.42"),
        (["v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45"], "v0.0.45"),
        (["v0.0.45", "v0.0.46"], "v0.0.45"),
    ],
)
async def test_the_newest_version_that_both_know_is_spoken(slurm: FakeSlurm, served: list[str], spoken: str) -> None:
    slurm.served = served
    rest = asking(slurm)
    await rest.agree()
    assert rest.version is VERSIONS[spoken]
    await rest.http.close()


@pytest.mark.parametrize(
    ("served", "wanted", "reported"),
    [
        (["v0.0.46", "v0.0.47"], "", r"serves v0\.0\.46, v0\.0\.47; the bridge speaks v0\.0\.38, .*v0\.0\.45"),
        (["v0.0.42"], "v0.0.38", r"serves v0\.0\.42; the bridge speaks v0\.0\.38: .*slurm\.version"),
        (["v0.0.39"], "", r"serves v0\.0\.39; the bridge speaks v0\.0\.38, v0\.0\.40, .*: load another plugin"),
        ([], "", "serves no version of /slurm"),
    ],
)
async def test_where_none_fits_both_sides_are_named(
    slurm: FakeSlurm, served: list[str], wanted: str, reported: str
) -> None:
    slurm.served = served
    rest = asking(slurm, wanted)
    with pytest.raises(NoVersionError, match=reported):
        await rest.agree()
    await rest.http.close()


async def test_a_wanted_version_is_spoken_where_nothing_is_listed(slurm: FakeSlurm) -> None:
    """A proxy that lets only the paths of slurmctld through."""
    slurm.served = []
    rest = asking(slurm, "v0.0.42")
    await rest.agree()
    assert rest.version is VERSIONS["v0.0.42"]
    assert await rest.jobs() == []
    await rest.http.close()


async def test_a_refused_question_is_no_missing_version(slurm: FakeSlurm) -> None:
    slurm.refuse_all = True
    rest = asking(slurm)
    with pytest.raises(TransportError, match="Authentication failure") as raised:
        await rest.agree()
    assert not isinstance(raised.value, NoVersionError)
    await rest.http.close()


async def test_a_slurmrestd_that_was_replaced_is_asked_again(slurm: FakeSlurm) -> None:
    native = SlurmScheduler(asking(slurm), slurm.pokes)
    await native.observe(True)
    slurm.version = "v0.0.45"
    with pytest.raises(HostUnreachableError):
        await native.observe(True)
    await native.observe(True)
    assert native.rest.version.name == "v0.0.45"
    await native.rest.http.close()


async def test_check_names_the_versions(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.served = ["v0.0.46"]
    section = {"rest": f"unix:{slurm.socket}"}
    raw = {"adapter": {"cluster": "c"}, "slurm": section, "service": {"address": "http://127.0.0.1:9"}}
    problems = await check(config.parse(raw))
    assert any("serves v0.0.46; the bridge speaks v0.0.38" in problem for problem in problems)


async def test_the_bridge_does_not_listen_before_a_version_is_agreed_on(slurm: FakeSlurm) -> None:
    """If it did, the submit hook would hold jobs that nobody can release."""
    slurm.served = ["v0.0.46"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        hooks = {"listen_port": taken.getsockname()[1], "shares_dir": ""}
        raw = {"adapter": {"cluster": "c"}, "slurm": {"rest": f"unix:{slurm.socket}"}, "hooks": hooks}
        with pytest.raises(NoVersionError):
            await run_bridge(config.parse(raw))


async def ends_of(slurm: FakeSlurm, happens: Callable[[], Awaitable[object]]) -> None:
    """Runs a bridge with the slurmrestd, has something happen, and returns as the bridge ends."""
    raw = {
        "adapter": {"cluster": "c", "resync_s": 0.1, "retry_s": 0.1},
        "slurm": {"rest": f"unix:{slurm.socket}"},
        "hooks": {"listen_port": 0, "shares_dir": ""},
        "metrics": {"port": 0},
    }
    bridge = asyncio.ensure_future(run_bridge(config.parse(raw)))
    await asyncio.sleep(0.3)
    assert not bridge.done(), "it bridges, or waits for slurmrestd"
    await happens()
    async with asyncio.timeout(5):
        await bridge


async def test_a_slurmrestd_that_comes_late_with_no_version_that_fits_ends_the_bridge(slurm: FakeSlurm) -> None:
    await slurm.stop()
    slurm.version = "v0.0.46"
    with pytest.raises(NoVersionError, match=r"serves v0\.0\.46"):
        await ends_of(slurm, slurm.start)


async def test_a_slurmrestd_that_is_replaced_by_one_whose_version_does_not_fit_ends_the_bridge(
    slurm: FakeSlurm,
) -> None:
    async def replaced() -> None:
        slurm.version = "v0.0.46"

    with pytest.raises(NoVersionError, match=r"serves v0\.0\.46"):
        await ends_of(slurm, replaced)


@pytest.mark.parametrize(("status", "is_away"), [(502, True), (404, False)])
async def test_a_proxy_whose_slurmrestd_is_away_is_no_missing_version(
    tmp_path: Path, status: int, is_away: bool
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} Proxy\r\nContent-Length: 6\r\n\r\n<html>".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "proxy.sock"):
        rest = SlurmRest(JsonHttp(f"unix:{tmp_path / 'proxy.sock'}"))
        with pytest.raises(TransportError) as raised:
            await rest.agree()
        await rest.http.close()
    assert isinstance(raised.value, NoVersionError) is not is_away


def test_a_missing_version_ends_the_bridge_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(_: object) -> None:
        raise NoVersionError("slurmrestd serves v0.0.46")

    monkeypatch.setattr("placewise_slurm.main.run_bridge", refused)
    path = tmp_path / "slurm.toml"
    path.write_text('[adapter]\ncluster = "c"\n')
    assert main(["--config", str(path), "run"]) == EXIT_CONFIG
    assert capsys.readouterr().err.splitlines() == ["placewise-slurm: slurmrestd serves v0.0.46"]


@pytest.mark.parametrize(("takes_flags", "query"), [(True, "?flags=ALL&flags=DETAIL&flags=LOCAL"), (False, "")])
async def test_a_job_is_read_without_a_question_about_federations_if_slurmrestd_lets_us_say_so(
    slurm: FakeSlurm, takes_flags: bool, query: str
) -> None:
    """Else slurmrestd asks slurmctld first whether the cluster is in a federation, at each reading of a job."""
    slurm.takes_flags = takes_flags
    await slurm.submit(tasks=1, gpus=2)
    rest = asking(slurm)
    await rest.agree()
    job = await rest.job(1)
    assert job is not None
    assert job.id == 1
    assert slurm.requests[-1][:2] == ("GET", f"/slurm/v0.0.42/job/1{query}")
    await rest.http.close()

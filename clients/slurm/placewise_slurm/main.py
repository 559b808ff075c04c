"""`placewise-slurm`: runs the bridge, checks its configuration, writes the hooks for Slurm."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import uvloop

from placewise.v1.cluster_pb2 import GetClusterRequest
from placewise_client.adapter.lease import LeaseLostError
from placewise_client.adapter.loop import AdapterLoop
from placewise_client.adapter.metrics import AdapterMetrics, serve_metrics
from placewise_client.adapter.process import settle_garbage_collector, take_short_turns
from placewise_client.aio import AsyncClient
from placewise_client.errors import NotFoundError, PlacewiseError
from placewise_client.target import TargetError
from placewise_slurm.config import BridgeConfig, load
from placewise_slurm.hooks import script_values, write_hooks
from placewise_slurm.http import JsonHttp, TransportError
from placewise_slurm.lease import FileLease
from placewise_slurm.pokes import PokeListener
from placewise_slurm.rest import NoVersionError, SlurmAccounting, SlurmRest
from placewise_slurm.scheduler import SlurmScheduler
from placewise_slurm.shares import JobShares
from placewise_slurm.steps import HELP, StepLookups

log = logging.getLogger("placewise_slurm")

DEFAULT_CONFIG = Path("/etc/placewise/slurm.toml")
EXIT_CONFIG = 2
EXIT_UNREACHABLE = 3
EXIT_LEASE_LOST = 4
# The highest number that Slurm gives a job: asked for only to see whether accounting answers.
_NO_JOB = 67_043_328


def _rest(config: BridgeConfig) -> SlurmRest:
    """Raises TargetError."""
    slurm, target = config.slurm, config.slurm.target()
    http = JsonHttp(target.hosts()[0], slurm.headers, target.tls_context(), slurm.timeout_s, slurm.at_once)
    return SlurmRest(http, wanted=slurm.version)


def _accounting(rest: SlurmRest) -> SlurmAccounting:
    """With connections of its own: its slow answers must not hold up a decision."""
    return SlurmAccounting(replace(rest.http, at_once=1), rest)


async def run_bridge(config: BridgeConfig) -> None:
    """Bridges until it is cancelled; with a lease, only while it holds it. Raises LeaseLostError."""
    if not config.lease.dir:
        await _bridge(config)
        return
    # Without the lease the bridge does not listen to this host's submit hook, which then leaves jobs to Slurm.
    identity = f"{socket.gethostname()}:{os.getpid()}"
    lease = FileLease(Path(config.lease.dir), f"{config.adapter.cluster}.lease", identity)
    await lease.acquire()
    try:
        await lease.lead(_bridge(config))
    finally:
        await lease.release()


async def _bridge(config: BridgeConfig) -> None:
    metrics = AdapterMetrics()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(config.service.target()))
        rest = _rest(config)
        stack.push_async_callback(rest.http.close)
        await _agree(rest)
        pokes = PokeListener()
        await pokes.open(config.hooks.listen_host, config.hooks.listen_port)
        stack.callback(pokes.close)
        native = SlurmScheduler(rest, pokes, config.site)
        if config.hooks.shares_dir:
            shares = JobShares(client, config.adapter, Path(config.hooks.shares_dir), metrics=metrics, wake=pokes.wake)
            native.preparation, pokes.on_task = shares, shares.hear
            if config.hooks.share_steps == "accounting":
                await stack.enter_async_context(_looking_up(shares, _accounting(rest)))
        if config.metrics.port:
            await stack.enter_async_context(serve_metrics(metrics, config.metrics.host, config.metrics.port))
        log.info("bridging cluster %s, dry run: %s", config.adapter.cluster, config.adapter.is_dry_run)
        await AdapterLoop(native, client, config.adapter, metrics).run()


async def _agree(rest: SlurmRest) -> None:
    """Before the bridge listens: while it does not, the submit hook holds no job. Raises NoVersionError."""
    try:
        await rest.agree()
    except NoVersionError:
        raise
    except TransportError as error:
        log.warning("the REST version is asked for again: %s", error)
    else:
        log.info("slurmrestd speaks %s", rest.version.name)


@asynccontextmanager
async def _looking_up(shares: JobShares, accounting: SlurmAccounting) -> AsyncIterator[None]:
    """Steps are asked for beside the loop, as long as this lasts."""
    shares.lookups = StepLookups(accounting.steps)
    task = asyncio.create_task(shares.lookups.run(shares.learn))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await accounting.http.close()


async def _run_until_signal(config: BridgeConfig) -> None:
    settle_garbage_collector()
    task = asyncio.ensure_future(run_bridge(config))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def check(config: BridgeConfig) -> list[str]:
    """The problems of the surroundings, in words; empty if the bridge could start."""
    problems = []
    try:
        script_values(config)
    except ValueError as error:
        problems.append(f"hooks: {error}")
    shares = config.hooks.shares_dir
    if shares and not Path(shares).is_dir():  # noqa: ASYNC240 - before anything else runs in this loop
        problems.append(f"hooks.shares_dir: {shares} is not a directory")
    if config.lease.dir and not os.access(config.lease.dir, os.W_OK | os.X_OK):
        problems.append(f"lease.dir: {config.lease.dir} is not a writable directory")
    problems += await _check_slurmrestd(config)
    try:
        connected = AsyncClient(config.service.target())
    except TargetError as error:
        return [*problems, f"placewise: {error}"]
    async with connected as client:
        try:
            request = GetClusterRequest(cluster=config.adapter.cluster)
            cluster = await client.get_cluster(request, timeout_s=2.0, retry=None)
            print(f"placewise: cluster {config.adapter.cluster} has {cluster.node_count} nodes")
        except NotFoundError:
            print(f"placewise: the service answers; cluster {config.adapter.cluster} is new to it")
        except PlacewiseError as error:
            problems.append(f"placewise: {error}")
    return problems


async def _check_slurmrestd(config: BridgeConfig) -> list[str]:
    try:
        rest = _rest(config)
    except TargetError as error:
        return [f"slurmrestd: {error}"]
    try:
        await rest.agree()
        print(f"slurmrestd: {rest.version.name}, {len(await rest.nodes())} nodes, {len(await rest.jobs())} jobs")
        if config.hooks.shares_dir:
            print(f"shares: {await _about_shares(config, rest)}")
    except TransportError as error:
        return [f"slurmrestd: {error}"]
    finally:
        await rest.http.close()
    return []


async def _about_shares(config: BridgeConfig, rest: SlurmRest) -> str:
    """Whether the times of shares count. Without them the shares work all the same: that is no problem."""
    if config.hooks.share_steps == "job":
        return 'their times count while the job runs, from any sender (hooks.share_steps = "job")'
    accounting = _accounting(rest)
    try:
        await accounting.steps(_NO_JOB)
    except TransportError as error:
        return f"their times are not reported: {error}. {HELP}"
    finally:
        await accounting.http.close()
    return "their times count for steps that slurmrestd shows"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="placewise-slurm", description=__doc__)
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="TOML file (default: %(default)s)")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="run the bridge in the foreground")
    commands.add_parser("check", help="check the configuration, slurmrestd and the service")
    hooks = commands.add_parser("hooks", help="write job_submit.lua and the reporting scripts")
    hooks.add_argument("--output", type=Path, required=True, help="folder, usually that of slurm.conf")
    return parser


def _hooks(config: BridgeConfig, output: Path) -> int:
    try:
        for path in write_hooks(config, output):
            print(path)
    except (OSError, ValueError) as error:
        print(f"placewise-slurm: {error}", file=sys.stderr)
        return EXIT_CONFIG
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: done; 2: the configuration is wrong; 3: something cannot be reached; 4: another bridge decides."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=options.log_level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        config = load(options.config)
        config.service.target().check()
    except ValueError as error:
        print(f"placewise-slurm: {error}", file=sys.stderr)
        return EXIT_CONFIG
    if options.command == "hooks":
        return _hooks(config, options.output)
    if options.command == "check":
        problems = asyncio.run(check(config))
        for problem in problems:
            print(f"placewise-slurm: {problem}", file=sys.stderr)
        return EXIT_UNREACHABLE if problems else 0
    take_short_turns()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run_until_signal(config))
    except (TargetError, NoVersionError) as error:
        print(f"placewise-slurm: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except OSError as error:  # a port is taken: most likely by another bridge
        print(f"placewise-slurm: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE
    except LeaseLostError as error:
        print(f"placewise-slurm: {error}", file=sys.stderr)
        return EXIT_LEASE_LOST
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

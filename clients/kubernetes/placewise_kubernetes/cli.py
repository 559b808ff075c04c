"""`placewise-kubernetes`: runs the adapter until it is stopped.

`placewise-kubernetes release` takes our gates off the pods that wait, and ends. `placewise-kubernetes doctor` tries
the adapter's rights, nodes, certificates and service, changes nothing, and ends.

Exit codes: 0 stopped, 1 some pods were not released, or a check failed, 2 cannot start, 3 another replica decides now:
start it again, and it waits for its turn.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from placewise_client.adapter.lease import LeaseLostError
from placewise_client.adapter.process import settle_garbage_collector, take_short_turns
from placewise_client.adapter.sections import ConfigError
from placewise_client.target import TargetError
from placewise_kubernetes.app import running, service_target
from placewise_kubernetes.config import KubernetesConfig, load_config
from placewise_kubernetes.doctor import examine
from placewise_kubernetes.kube.client import (
    KubeAccess,
    KubeError,
    KubeUnreachableError,
    in_cluster_access,
    kubeconfig_access,
)
from placewise_kubernetes.release import release

NOT_ALL_RELEASED = CHECK_FAILED = 1
CANNOT_START = 2
LEASE_LOST = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = load_config(Path(options.config))
        service_target(config.service).check()
        if options.check:
            sys.stdout.write(f"configuration of cluster {config.cluster!r} is good\n")
            return 0
        access = _access(options.kubeconfig)
        if options.command == "release":
            return _release(config, access, options.job)
        if options.command == "doctor":
            return asyncio.run(_examine(config, access))
        if options.dry_run:
            config = dataclasses.replace(config, settings=dataclasses.replace(config.settings, is_dry_run=True))
        take_short_turns()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(config, access))
    except (ConfigError, TargetError, ValueError, OSError) as error:
        sys.stderr.write(f"placewise-kubernetes: {error}\n")
        return CANNOT_START
    except ExceptionGroup as group:
        lost, others = group.split(LeaseLostError)
        if lost is None or others is not None:
            raise
        sys.stderr.write(f"placewise-kubernetes: {lost.exceptions[0]}\n")
        return LEASE_LOST
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="placewise-kubernetes", description=__doc__)
    parser.add_argument(
        "command",
        nargs="?",
        default="run",
        choices=("run", "release", "doctor"),
        help="release: take our gates off waiting pods; doctor: try its rights, nodes and service",
    )
    parser.add_argument("--job", default="", metavar="NAMESPACE/NAME", help="release the pods of this job alone")
    parser.add_argument("--config", required=True, help="configuration file (YAML)")
    parser.add_argument("--kubeconfig", default="", help="kubeconfig of the cluster, if the adapter runs outside of it")
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument("--dry-run", action="store_true", help="decide and log, and leave every pod to its scheduler")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


def _release(config: KubernetesConfig, access: KubeAccess, job: str) -> int:
    try:
        released, refused = asyncio.run(release(access, config.rules, job))
    except (KubeError, KubeUnreachableError) as error:
        sys.stderr.write(f"placewise-kubernetes: {error}\n")
        return CANNOT_START
    sys.stdout.write(f"{released} pods released, {refused} refused\n")
    return NOT_ALL_RELEASED if refused else 0


async def _examine(config: KubernetesConfig, access: KubeAccess) -> int:
    code = 0
    async for finding in examine(config, access):
        sys.stdout.write(f"{finding}\n")
        code = code if finding.is_good else CHECK_FAILED
    return code


def _access(kubeconfig: str) -> KubeAccess:
    return kubeconfig_access(Path(kubeconfig)) if kubeconfig else in_cluster_access(os.environ)


async def _run(config: KubernetesConfig, access: KubeAccess) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(config, access) as adapter:
        sys.stdout.write(f"ready on port {adapter.port}\n")
        sys.stdout.flush()
        settle_garbage_collector()
        await stop.wait()


def run() -> None:
    """Console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()

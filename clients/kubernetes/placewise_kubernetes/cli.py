"""`placewise-kubernetes`: runs the adapter until it is stopped.

Exit codes: 0 stopped, 2 cannot start, 3 another replica decides now: start it again, and it waits for its turn.
"""

from __future__ import annotations

import argparse
import asyncio
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
from placewise_kubernetes.kube.client import KubeAccess, in_cluster_access, kubeconfig_access

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
    parser.add_argument("--config", required=True, help="configuration file (YAML)")
    parser.add_argument("--kubeconfig", default="", help="kubeconfig of the cluster, if the adapter runs outside of it")
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


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

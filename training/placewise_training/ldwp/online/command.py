"""`placewise train ldwp --method dqn --online`: one process that learns from a running service until it is stopped."""

import fcntl
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from placewise.v1.cluster_pb2 import GetClusterRequest
from placewise_client.errors import PlacewiseError
from placewise_client.sync import Client
from placewise_client.target import Target, TargetError, Tls
from placewise_core.inputs.ldwp_paper import columns
from placewise_training.ldwp.agent import TYPES, PaperDqn
from placewise_training.ldwp.online.following import Following
from placewise_training.ldwp.online.publishing import Publisher
from placewise_training.ldwp.printed.train import CHECKPOINT, REPORT, SCHEMA, load_net, save_net

_LOCK = ".dqn-learner.lock"
_shown = Console(stderr=True)


@dataclass(slots=True)
class Learner:
    """Looks every `poll_s`, publishes at most every `every_s`. `stop` ends it after the look under way."""

    following: Following
    publisher: Publisher
    client: Client
    cluster: str
    seed: int
    poll_s: float
    every_s: float
    stop: threading.Event
    show: Callable[[str], None]
    _published: tuple[int, tuple[str, ...]] | None = None  # decisions and nodes of the net published last

    def run(self) -> None:
        """Until it is stopped. A service that cannot be reached, or that refuses a bundle, is asked again."""
        last_s = self.publisher.last_s()
        while not self.stop.is_set():
            try:
                asked = GetClusterRequest(cluster=self.cluster, full=True)
                self.following.look(self.client.get_cluster(asked), time.time())
                if time.time() - last_s >= self.every_s and self._is_new():
                    try:
                        self._publish()
                    finally:
                        last_s = time.time()  # a bundle takes seconds; after a failure the next try waits as long
            except PlacewiseError as error:
                self.show(f"{error}; trying again")
            self.stop.wait(self.poll_s)
        if self.following.agent.net is not None:
            self._save()

    def _is_new(self) -> bool:
        net = self.following.agent.net
        return net is not None and self._published != (self.following.decisions, net.nodes)

    def _publish(self) -> None:
        self._save()
        name = self.publisher.publish(self.seed, self.following.decisions)
        net = self.following.agent.net
        assert net is not None
        self._published = (self.following.decisions, net.nodes)
        self.show(f"{name}: {self.following.decisions} decisions learned from, {len(net.nodes)} nodes")

    def _save(self) -> None:
        net, run = self.following.agent.net, self.publisher.run
        assert net is not None
        save_net(net, run / CHECKPOINT)
        report = {
            "schema": SCHEMA,
            "columns": list(columns(TYPES, net.nodes)),
            "seed": self.seed,
            "args": {"nodes": len(net.nodes)},
            "decisions": self.following.decisions,
            "parameters": sum(p.numel() for p in net.parameters()),
        }
        (run / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def learn_online(
    target: Annotated[str, typer.Option(envvar="PLACEWISE_CLIENT_TARGET", help="Service, HOST:PORT[,…] (gRPC).")],
    bundles: Annotated[Path, typer.Option(help="Folder of bundles that all replicas read.", file_okay=False)],
    cluster: Annotated[str, typer.Option(help="Cluster to follow.")],
    start: Annotated[Path | None, typer.Option(help="Folder of a `train ldwp-paper` run to begin with.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the learner's own state.")] = Path("var/train/ldwp-online"),
    every_min: Annotated[float, typer.Option(min=0, help="Minutes between two bundles, at least.")] = 10.0,
    poll_s: Annotated[float, typer.Option(min=0.01, help="Seconds between two looks at the cluster.")] = 1.0,
    keep: Annotated[int, typer.Option(min=2, help="Newest bundles of the learner that are kept.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the batches drawn.")] = 0,
    key: Annotated[Path | None, typer.Option(help="Private key to sign the bundles with.", dir_okay=False)] = None,
    token: Annotated[str, typer.Option(envvar="PLACEWISE_CLIENT_TOKEN", help="Bearer token.", show_default=False)] = "",
    tls_ca: Annotated[Path | None, typer.Option(envvar="PLACEWISE_CLIENT_TLS_CA", help="CA (PEM): TLS.")] = None,
) -> None:
    """Let LDWP's DQN learn from a running service, and publish it in new bundles until stopped."""
    first = out if (out / CHECKPOINT).is_file() else start
    if first is None:
        raise typer.BadParameter(
            f"{out} has no net yet: give --start, the folder of a `placewise train ldwp-paper` run"
        )
    if not bundles.is_dir():
        raise typer.BadParameter(f"--bundles: there is no folder {bundles}")
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # a net this small has no work for two
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        client = Client(Target(tuple(target.split(",")), Tls(root=tls_ca) if tls_ca else None, token or None))
        net = load_net(first / CHECKPOINT)
    except (TargetError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    with client, _alone(bundles / _LOCK):
        following = Following(PaperDqn(net=net, seed=seed))
        publisher = Publisher(client, bundles, out, keep, key)
        Learner(following, publisher, client, cluster, seed, poll_s, 60.0 * every_min, stop, _shown.print).run()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Raises typer.BadParameter if another learner publishes into the folder."""
    with path.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise typer.BadParameter(f"another learner publishes into {path.parent}") from None
        yield

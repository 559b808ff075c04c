"""The log and the incumbent of a running service, round by round; the canary of a bundle that passed.

The gate judges on a log of one bundle. After answers of another bundle, or of a canary, a new export begins behind
them, in a folder of its own: LOG/CLUSTER/from-POSITION.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import pyarrow.compute as pc

from placewise.v1.bundle_pb2 import ListBundlesRequest, SetCanaryRequest
from placewise.v1.cluster_pb2 import ListClustersRequest
from placewise_client.errors import PlacewiseError
from placewise_client.sync import Client
from placewise_client.target import Target, TargetError, Tls
from placewise_log.store import LogStore
from placewise_models.bundle import MANIFEST
from placewise_models.folder import bundle_folder, shipped_bundles
from placewise_models.public_key import SIGNATURES
from placewise_models.signing import read_private, signed
from placewise_training.retrain.retrain import RetrainArgs, manifest_digest
from placewise_training.retrain.rounds import NoRoundError

# The export belongs to the service, which training does not import: the command is its interface.
_COMMAND: Final = Path(sys.executable).with_name("placewise")
_FOLDER: Final = "from-"
_START: Final = "0"
_CANARY_S: Final = 60.0
_TRUE: Final = "true"
PLAINTEXT: Final = "PLACEWISE_CLIENT_ALLOW_PLAINTEXT_TOKEN"


class Answering(NamedTuple):
    """The bundle of the last decision in a log, and whether a canary was on then; the position of the last decision
    that was another's or of a canary, "" for none."""

    bundle: str
    digest: str
    canary: str
    others_until: str


@dataclass(frozen=True, slots=True)
class ServedCluster:
    """A service, and the cluster whose log it is ("" for its only one). `logs` gets the exports. A `share` above 0
    makes a bundle that passed a canary. `key` signs it: a service that knows keys takes no other."""

    target: str
    logs: Path
    cluster: str = ""
    token_file: Path | None = None
    tls_ca: Path | None = None
    share: float = 0.0
    key: Path | None = None

    def next(self, args: RetrainArgs) -> RetrainArgs:
        """Exports. The log begins behind the last decision of another bundle. Raises NoRoundError, LogError."""
        cluster = self.cluster or self._only_cluster()
        log = self._exported(cluster)
        found = answering(log, cluster)
        if found.others_until and not found.canary:
            log = log.with_name(f"{_FOLDER}{found.others_until}")
            self._export(log, cluster)
            found = answering(log, cluster)
        if found.canary:
            raise NoRoundError(f"{found.canary} is a canary there: promote it or end it, and learning goes on")
        return replace(args, log=log, cluster=cluster, start=self._folder(found, args.out.parent))

    def passed(self, args: RetrainArgs) -> str:
        """Signs the bundle, and makes it a canary if that is wanted and the bundle that it was compared with still
        answers every job."""
        name = args.out.name
        if self.key is not None:
            text, _ = signed((args.out / MANIFEST).read_bytes(), read_private(self.key))
            (args.out / SIGNATURES).write_text(text, "ascii")
        command = f"placewise bundle canary {name} --share {self.share or 0.05:g} --cluster {args.cluster}"
        if not self.share:
            return f"no canary was asked for: {command} makes it one"
        try:
            self._export(args.log, args.cluster)
            now = answering(args.log, args.cluster)
            if now.canary or now.digest != manifest_digest(args.start):
                by_now = now.canary or now.bundle
                return f"no canary: {by_now} answers by now, and {name} was compared with {args.start.name}"
            with self._client() as client:
                canaries = client.list_bundles(ListBundlesRequest()).canaries
                other = next((each.bundle for each in canaries if each.cluster in ("", args.cluster)), "")
                if other:
                    return f"no canary: {other} is one already"
                request = SetCanaryRequest(name=name, cluster=args.cluster, share=self.share)
                client.set_canary(request, timeout_s=_CANARY_S)
        except (NoRoundError, PlacewiseError) as error:
            return f"no canary: {error}. {command} tries again"
        return f"{name} is the canary of {100 * self.share:g} % of the jobs of {args.cluster}"

    def keep_up(self) -> None:
        """Exports the newest records, before the service's ring drops them. Raises NoRoundError."""
        self._exported(self.cluster or self._only_cluster())

    def _exported(self, cluster: str) -> Path:
        """The newest export, continued."""
        folder = self.logs / quote(cluster, safe="")
        known = (path.name.removeprefix(_FOLDER) for path in folder.glob(f"{_FOLDER}*"))
        log = folder / f"{_FOLDER}{max(known, key=_ordinal, default=_START)}"
        self._export(log, cluster)
        return log

    def _export(self, log: Path, cluster: str) -> None:
        """Raises NoRoundError with the last line of the command."""
        options = {"--target": self.target, "--cluster": cluster, "--after": log.name.removeprefix(_FOLDER)}
        if self.tls_ca is not None:
            options["--tls-ca"] = str(self.tls_ca)
        words = [str(_COMMAND), "log", "export", str(log), *(word for option in options.items() for word in option)]
        environment = os.environ | ({"PLACEWISE_CLIENT_TOKEN": self._token()} if self.token_file else {})
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        sys.stderr.write(done.stderr)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise NoRoundError(f"the log was not exported: {last.removeprefix('placewise: ')}")

    def _only_cluster(self) -> str:
        try:
            with self._client() as client:
                clusters = client.list_clusters(ListClustersRequest()).clusters
        except PlacewiseError as error:
            raise NoRoundError(str(error)) from error
        if len(clusters) != 1:
            raise NoRoundError(f"the service has the clusters {', '.join(clusters) or '(none)'}: name one (--cluster)")
        return clusters[0]

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """Raises NoRoundError for a target that cannot be used now: the names of containers are known once they run."""
        is_plaintext = os.environ.get(PLAINTEXT) == _TRUE
        tls = Tls(root=self.tls_ca) if self.tls_ca else None
        token = self._token if self.token_file else None
        try:
            client = Client(Target(tuple(self.target.split(",")), tls, token, is_plaintext))
        except TargetError as error:
            raise NoRoundError(str(error)) from error
        with client:
            yield client

    def _token(self) -> str:
        """Read again for each call: a rotated one counts at once. Raises NoRoundError."""
        assert self.token_file is not None
        try:
            return self.token_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NoRoundError(f"the token cannot be read: {error}") from error

    @staticmethod
    def _folder(found: Answering, bundles: Path) -> Path:
        """That of the bundle that answers: beside the retrained ones, or shipped. Raises NoRoundError."""
        for root in (bundles, shipped_bundles()):
            folder = bundle_folder(root, found.bundle)
            if (folder / MANIFEST).is_file() and manifest_digest(folder) == found.digest:
                return folder
        raise NoRoundError(
            f"the bundle {found.bundle}, digest {found.digest[:12]}, answers, and neither {bundles} nor this release "
            "has it: copy it there"
        )


def answering(log: Path, cluster: str) -> Answering:
    """Who answers Place by an exported log. Raises NoRoundError if nothing tells, LogError."""
    store, latest = LogStore(log), dict[tuple[str, str, str], str]()
    wanted = (pc.field("rpc") == "Place") & (pc.field("cluster") == cluster) & pc.field("shadow_of").is_null()
    columns = ("bundle", "bundle_digest", "canary_bundle", "position")
    for batch in store.batches("decisions", columns, wanted) if store.has("decisions") else ():
        for bundle, digest, canary, position in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            key = (bundle or "", digest or "", canary or "")
            latest[key] = max(latest.get(key, _START), position, key=_ordinal)
    ordered = sorted(latest, key=lambda key: _ordinal(latest[key]))
    if not ordered or not ordered[-1][1]:
        raise NoRoundError(f"{log} has no decision of Place that names its bundle yet")
    return Answering(*ordered[-1], latest[ordered[-2]] if len(ordered) > 1 else "")


def _ordinal(position: str) -> tuple[int, int]:
    """Positions in their order: "milliseconds-number"."""
    milliseconds, _, number = position.partition("-")
    return int(milliseconds), int(number or 0)

"""Publishes LDWP's DQN as new bundles: each is written whole, never altered, and then activated for all replicas.

A bundle is the active one with this net in place of its own. Only the newest ones of the learner are kept.
"""

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from placewise.v1.bundle_pb2 import ActivateBundleRequest, Bundle, ListBundlesRequest
from placewise_client.sync import Client
from placewise_log.auditing import audited
from placewise_models.bundle import MANIFEST, Manifest, write_manifest
from placewise_models.folder import bundle_folder, shipped_bundle
from placewise_models.printed.ldwp_paper import LDWP_PAPER_MODEL, LDWP_PAPER_REPORT
from placewise_models.public_key import SIGNATURES
from placewise_models.signing import read_private, signed
from placewise_training.lab.export import OPSET
from placewise_training.lab.origin import origin
from placewise_training.ldwp.printed.export import export_ldwp_paper

_MADE = "-dqn-"  # between the name of the bundle that it began with and its number
_ACTIVATION_S = 60.0


@dataclass(slots=True)
class Publisher:
    """`folder` holds the bundles that the replicas find; `run` the checkpoint and the report of the learner."""

    client: Client
    folder: Path
    run: Path
    keep: int
    key: Path | None = None

    def publish(self, seed: int, decisions: int) -> str:
        """Exports the net, makes a bundle and activates it; its name. Raises ParityError, OSError and PlacewiseError:
        nothing was activated then."""
        bundles = self.client.list_bundles(ListBundlesRequest()).bundles
        active = next((bundle.name for bundle in bundles if bundle.state == Bundle.State.ACTIVE), "")
        name = self._next_name(active)
        with audited("train ldwp-online", name):
            partial = self.folder / f".{name}"
            shutil.rmtree(partial, ignore_errors=True)
            files = self._copied(self._base(active), partial)
            export_ldwp_paper(self.run, partial)
            write_manifest(partial, self._manifest(files, name, seed, decisions))
            if self.key is not None:
                line, _ = signed((partial / MANIFEST).read_bytes(), read_private(self.key), "")
                (partial / SIGNATURES).write_text(line, "ascii")
            partial.rename(self.folder / name)
            self.client.activate_bundle(ActivateBundleRequest(name=name), timeout_s=_ACTIVATION_S)
            self._prune({name, active, *(b.name for b in bundles if b.state == Bundle.State.SHADOW)})
        return name

    def last_s(self) -> float:
        """When the newest bundle of a learner was made, in Unix time; 0 if there is none."""
        return max((_manifest_of(path)[1] for path in self._made()), default=0.0)

    def _made(self) -> list[Path]:
        """The learner's bundles, oldest first."""
        found = [path for path in self.folder.glob(f"[!.]*{_MADE}*") if (path / MANIFEST).is_file()]
        return sorted(found, key=lambda path: _number(path.name))

    def _next_name(self, active: str) -> str:
        number = 1 + max((_number(path.name) for path in self._made()), default=0)
        return f"{active.partition(_MADE)[0]}{_MADE}{number:06d}"

    def _base(self, active: str) -> Path:
        """The folder of the active bundle: among the others, or the shipped one."""
        found = bundle_folder(self.folder, active)
        return found if (found / MANIFEST).is_file() else shipped_bundle()

    @staticmethod
    def _copied(base: Path, into: Path) -> Manifest:
        into.mkdir(parents=True)
        manifest, _ = _manifest_of(base)
        for file in manifest.files:
            shutil.copyfile(base / file, into / file)
        return manifest

    @staticmethod
    def _manifest(base: Manifest, name: str, seed: int, decisions: int) -> Manifest:
        files = {**base.files, LDWP_PAPER_MODEL: "", LDWP_PAPER_REPORT: ""}
        made = {f"ldwp_paper/{key}": value for key, value in origin().items()}
        return msgspec.structs.replace(
            base,
            name=name,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            files=files,
            opsets={**base.opsets, "ldwp_paper": OPSET},
            seeds={**base.seeds, "ldwp_paper": seed},
            data_sha256={**base.data_sha256, **made},
            metrics={**base.metrics, "ldwp_paper/decisions": float(decisions)},
        )

    def _prune(self, needed: set[str]) -> None:
        for path in self._made()[: -self.keep]:
            if path.name not in needed:
                shutil.rmtree(path)


def _number(name: str) -> int:
    digits = name.rpartition(_MADE)[2]
    return int(digits) if digits.isdigit() else 0


def _manifest_of(folder: Path) -> tuple[Manifest, float]:
    """The manifest, and when it was made in Unix time."""
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    made = datetime.strptime(manifest.created, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return manifest, made.timestamp()

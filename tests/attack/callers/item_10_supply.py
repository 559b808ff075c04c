"""Forged manifests, unsigned bundles, and replicas that hold different bundles of one name."""

import contextlib
import hashlib
import json
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source
from tests.fakes.servers.redis_server import RedisServer

TITLE = "10. Supply"
_PATIENCE_S = 10.0


def _copied(source: Source, folder: Path) -> Path:
    """A copy of the bundle that the tree ships, under the folder's name."""
    shipped = next((source.root / "service").glob("*/bundles/*/manifest.json")).parent
    shutil.copytree(shipped, folder)
    return _rewritten(folder, name=folder.name)


def _rewritten(folder: Path, **changes: object) -> Path:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def _load(source: Source, folder: Path) -> bool:
    """Whether the tree's own command takes the bundle."""
    return source.run(["-m", "placewise_service.cli", "bundle", "verify", str(folder)]).returncode == 0


def _forged(source: Source) -> Figures:
    with tempfile.TemporaryDirectory() as root:
        secret = Path(root) / "x.txt"
        secret.write_text("a file of somebody else")
        digest = hashlib.sha256(secret.read_bytes()).hexdigest()
        taken = []
        for index, name in enumerate(("../x.txt", "a/b.txt", str(secret), "link.txt")):
            folder = _copied(source, Path(root) / f"bundle-{index}")
            (folder / "a").mkdir()
            shutil.copy(secret, folder / "a" / "b.txt")
            (folder / "link.txt").symlink_to(secret)
            files = json.loads((folder / "manifest.json").read_text())["files"]
            _rewritten(folder, files={**files, name: digest})
            taken.append(_load(source, folder))
        return {
            "genuine_taken": int(_load(source, _copied(source, Path(root) / "genuine"))),
            "forged_taken": sum(taken),
        }


@contextlib.contextmanager
def _answer(service: Service, path: str, body: object | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"{service.url}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            yield answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        yield error.code, json.load(error)


def _differing(source: Source) -> Figures:
    """One bundle name with two contents: the second replica must neither serve its own nor say that it is ready."""
    redis = RedisServer().start()
    try:
        with tempfile.TemporaryDirectory() as root:
            roots = [Path(root) / name for name in ("one", "two")]
            for index, folder in enumerate(roots):
                _copied(source, folder / "default")
                _rewritten(_copied(source, folder / "next"), git_commit=str(index))
            settings = [{"PLACEWISE_REDIS_URL": redis.url, "PLACEWISE_BUNDLE_DIR": str(folder)} for folder in roots]
            with source.service(settings[0]) as one, source.service(settings[1]) as two:
                with _answer(one, "/v1/bundles/next:activate", {}) as (status, _):
                    activated = int(status == 200)
                deadline_s = time.monotonic() + _PATIENCE_S
                ready, served = 1, "default"
                while time.monotonic() < deadline_s and ready and served == "default":
                    time.sleep(0.1)
                    with _answer(two, "/readyz") as (status, _):
                        ready = int(status == 200)
                    with _answer(two, "/v1/bundles") as (_, answer):
                        served = next(b["name"] for b in answer["bundles"] if b.get("state") == "ACTIVE")
                return {"activated": activated, "second_ready": ready, "second_serves": served}
    finally:
        redis.stop()


def _unsigned(source: Source) -> Figures:
    """A key is configured: activation of a signed bundle, of an unsigned one, and of a signed one that was altered."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        cli = ["-m", "placewise_service.cli", "bundle"]
        source.run([*cli, "keygen", str(root / "site")])
        for name in ("default", "signed", "altered", "unsigned"):
            _copied(source, root / "bundles" / name)
            if name != "unsigned":
                source.run([*cli, "sign", str(root / "bundles" / name), "--key", str(root / "site.key")])
        _rewritten(root / "bundles" / "altered", git_commit="0")
        settings = {
            "PLACEWISE_BUNDLE_DIR": str(root / "bundles"),
            "PLACEWISE_BUNDLES__PUBLIC_KEYS": json.dumps([str(root / "site.pub")]),
        }
        taken = {}
        with source.service(settings) as service:
            for name in ("signed", "altered", "unsigned"):
                with _answer(service, f"/v1/bundles/{name}:activate", {}) as (status, _):
                    taken[f"{name}_activated"] = int(status == 200)
        return taken


ATTACKS = [
    Attack(
        name="forged manifests",
        promise="A manifest that names `../x`, `a/b`, an absolute path or a link is refused.",
        test="tests/unit/models/test_bundle_signing.py::test_a_manifest_that_names_a_path_is_refused",
        measure=_forged,
        holds=lambda f: f["genuine_taken"] == 1 and f["forged_taken"] == 0,
    ),
    Attack(
        name="two contents of one bundle",
        promise="A replica whose bundle has another digest than the chosen one keeps its own and is not ready.",
        test="tests/unit/engine/bundles/test_bundles_shared.py::test_a_replica_with_other_contents_keeps_its_bundle_and_is_not_ready",
        measure=_differing,
        holds=lambda f: f["activated"] == 1 and f["second_ready"] == 0 and f["second_serves"] == "default",
    ),
    Attack(
        name="unsigned bundles",
        promise="If a key is configured, only bundles that it signed are activated.",
        test="tests/unit/models/test_bundle_signing.py::test_where_a_key_is_configured_a_bundle_must_be_signed_by_one_of_them",
        measure=_unsigned,
        holds=lambda f: f["signed_activated"] == 1 and not f["altered_activated"] and not f["unsigned_activated"],
        needs="setting PLACEWISE_BUNDLES__PUBLIC_KEYS",
    ),
]

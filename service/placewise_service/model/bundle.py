"""One bundle on disk: a directory with a manifest that names every file and its SHA-256. Reads; never writes."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from placewise_core.features import feature_schema
from placewise_service.model.runtime import REWARD_MODEL, REWARD_REPORT, ModelError, RewardRuntime
from placewise_service.model.stdm import STDM_MODEL, STDM_REPORT, StdmError, StdmRuntime

MANIFEST = "manifest.json"
# Which model's tables each net reads (feature_tables.MODEL_TABLES).
_READERS = {REWARD_MODEL: "reward"}


class BundleError(ValueError):
    """The bundle cannot be used; the message says which file and why."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What manifest.json says. `files` maps names to SHA-256; the rest is provenance."""

    name: str
    created: str
    files: dict[str, str]
    feature_schema: str = ""
    opset: int = 0
    git_commit: str = ""
    seed: int = 0
    data_sha256: dict[str, str] = {}
    metrics: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified bundle: its manifest, its JSON documents by file name, and its nets, ready to run."""

    manifest: Manifest
    directory: Path
    documents: Mapping[str, Mapping[str, Any]]
    reward: RewardRuntime | None = None
    stdm: StdmRuntime | None = None

    @property
    def name(self) -> str:
        return self.manifest.name

    def document(self, file: str) -> Mapping[str, Any]:
        """A JSON document of the bundle. Raises BundleError if it has none of that name."""
        try:
            return self.documents[file]
        except KeyError:
            raise BundleError(f"bundle {self.name!r} has no {file}") from None


def load(directory: Path) -> Bundle:
    """Reads and verifies a bundle, and runs its nets once. Raises BundleError for anything missing, torn, unlisted or
    altered, for nets that read other features than this version encodes, and for nets that do not answer right."""
    manifest = _manifest(directory)
    contents = {file: _verified(directory / file, sha256) for file, sha256 in manifest.files.items()}
    documents = {
        file: _document(directory / file, content) for file, content in contents.items() if file.endswith(".json")
    }
    if manifest.feature_schema != schema_of(contents):
        raise BundleError(f"{directory.name}: its nets read other features than this version encodes")
    return Bundle(
        manifest,
        directory,
        documents,
        _reward(directory.name, contents, documents),
        _stdm(directory.name, contents, documents),
    )


def schema_of(files: Iterable[str]) -> str:
    """Hash of the feature tables that the nets among these files read, as this version encodes them; "" for none.

    The completion of subtask metrics reads no tokens: it names its columns itself."""
    models = sorted({_READERS[file] for file in files if file in _READERS})
    return str(feature_schema(*models)["hash"]) if models else ""


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes the manifest of a bundle, with the checksums of the files it names."""
    files = {file: hashlib.sha256((directory / file).read_bytes()).hexdigest() for file in manifest.files}
    body = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)), indent=2)
    (directory / MANIFEST).write_bytes(body + b"\n")


def _reward(
    name: str, contents: Mapping[str, bytes], documents: Mapping[str, Mapping[str, Any]]
) -> RewardRuntime | None:
    if REWARD_MODEL not in contents:
        return None
    if REWARD_REPORT not in documents:
        raise BundleError(f"{name}: {REWARD_MODEL} has no {REWARD_REPORT} beside it")
    try:
        return RewardRuntime.load(contents[REWARD_MODEL], documents[REWARD_REPORT])
    except ModelError as error:
        raise BundleError(f"{name}: {error}") from error


def _stdm(name: str, contents: Mapping[str, bytes], documents: Mapping[str, Mapping[str, Any]]) -> StdmRuntime | None:
    if STDM_MODEL not in contents:
        return None
    if STDM_REPORT not in documents:
        raise BundleError(f"{name}: {STDM_MODEL} has no {STDM_REPORT} beside it")
    try:
        return StdmRuntime.load(contents[STDM_MODEL], documents[STDM_REPORT])
    except StdmError as error:
        raise BundleError(f"{name}: {error}") from error


def _manifest(directory: Path) -> Manifest:
    try:
        return msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Manifest)
    except OSError as error:
        raise BundleError(f"{directory.name}: cannot read {MANIFEST}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise BundleError(f"{directory.name}: {MANIFEST} is not a manifest: {error}") from error


def _verified(path: Path, sha256: str) -> bytes:
    if path.name != str(path.relative_to(path.parent)) or not path.is_file():
        raise BundleError(f"{path.parent.name}: {path.name} is missing")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BundleError(f"{path.parent.name}: {path.name} is not the file the manifest names (checksum differs)")
    return content


def _document(path: Path, content: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise BundleError(f"{path.parent.name}: {path.name} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BundleError(f"{path.parent.name}: {path.name} must be a JSON object")
    return document

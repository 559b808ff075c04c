"""One bundle on disk: a directory with a manifest that names every file and its SHA-256. Reads; never writes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

MANIFEST = "manifest.json"


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
    """A verified bundle: its manifest and its JSON documents by file name."""

    manifest: Manifest
    directory: Path
    documents: Mapping[str, Mapping[str, Any]]

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
    """Reads and verifies a bundle. Raises BundleError for anything missing, torn, unlisted or altered."""
    manifest = _manifest(directory)
    documents = {}
    for file, sha256 in manifest.files.items():
        content = _verified(directory / file, sha256)
        if file.endswith(".json"):
            documents[file] = _document(directory / file, content)
    return Bundle(manifest, directory, documents)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes the manifest of a bundle, with the checksums of the files it names."""
    files = {file: hashlib.sha256((directory / file).read_bytes()).hexdigest() for file in manifest.files}
    body = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)), indent=2)
    (directory / MANIFEST).write_bytes(body + b"\n")


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

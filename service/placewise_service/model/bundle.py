"""One bundle on disk: a directory with a manifest that names every file and its SHA-256. Reads; never writes."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from placewise_core.features import feature_schema
from placewise_core.frozen import frozen
from placewise_service.model.ldwp import LDWP_MODEL, LDWP_REPORT, LdwpRuntime
from placewise_service.model.policy import POLICY_GRAPHS, POLICY_REPORT, PolicyRuntime
from placewise_service.model.reward import REWARD_MODEL, REWARD_REPORT, RewardRuntime
from placewise_service.model.session import ModelError
from placewise_service.model.sharing import SHARING_MODEL, SHARING_REPORT, SharingRuntime
from placewise_service.model.stdm import STDM_MODEL, STDM_REPORT, StdmRuntime

Net = TypeVar("Net")

MANIFEST = "manifest.json"
# Which model's tables each net reads (feature_tables.MODEL_TABLES).
_READERS = {REWARD_MODEL: "reward"} | dict.fromkeys(POLICY_GRAPHS, "policy")


class BundleError(ValueError):
    """The bundle cannot be used; the message says which file and why."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What manifest.json says. `files` maps names to SHA-256; the rest is provenance: the commit it was put together
    at, and by model opsets, seeds, what it was trained or fitted on, how it was judged."""

    name: str
    created: str
    files: dict[str, str]
    feature_schema: str = ""
    opsets: dict[str, int] = {}
    git_commit: str = ""
    seeds: dict[str, int] = {}
    data_sha256: dict[str, str] = {}
    metrics: dict[str, float] = {}


@frozen
class Bundle:
    """A verified bundle: its manifest, its JSON documents by file name, and its nets, ready to run."""

    manifest: Manifest
    directory: Path
    documents: Mapping[str, Mapping[str, Any]]
    reward: RewardRuntime | None = None
    policy: PolicyRuntime | None = None
    stdm: StdmRuntime | None = None
    ldwp: LdwpRuntime | None = None
    sharing: SharingRuntime | None = None

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
    nets = _Nets(directory.name, contents, documents)
    return Bundle(
        manifest,
        directory,
        documents,
        reward=nets.load(RewardRuntime.load, REWARD_REPORT, REWARD_MODEL),
        policy=nets.load(PolicyRuntime.load, POLICY_REPORT, *POLICY_GRAPHS),
        stdm=nets.load(StdmRuntime.load, STDM_REPORT, STDM_MODEL),
        ldwp=nets.load(LdwpRuntime.load, LDWP_REPORT, LDWP_MODEL),
        sharing=nets.load(SharingRuntime.load, SHARING_REPORT, SHARING_MODEL),
    )


def schema_of(files: Iterable[str]) -> str:
    """Hash of the feature tables that the nets among these files read, as this version encodes them; "" for none.

    The completions and LDWP's net read no tokens: they name their columns themselves."""
    models = sorted({_READERS[file] for file in files if file in _READERS})
    return str(feature_schema(*models)["hash"]) if models else ""


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes the manifest of a bundle, with the checksums of the files it names."""
    files = {file: hashlib.sha256((directory / file).read_bytes()).hexdigest() for file in manifest.files}
    body = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)), indent=2)
    (directory / MANIFEST).write_bytes(body + b"\n")


@frozen
class _Nets:
    """The files of one bundle, from which its nets are made."""

    bundle: str
    contents: Mapping[str, bytes]
    documents: Mapping[str, Mapping[str, Any]]

    def load(self, load: Callable[..., Net], report: str, *files: str) -> Net | None:
        """`load(*bytes of files, report)`, or None where the bundle has none of the files. Raises BundleError where it
        has some and not the others, or where the net is refused."""
        found = [file for file in files if file in self.contents]
        if not found:
            return None
        missing = [file for file in (*files, report) if file not in self.contents]
        if missing:
            raise BundleError(f"{self.bundle}: {found[0]} has no {missing[0]} beside it")
        try:
            return load(*(self.contents[file] for file in files), self.documents[report])
        except ModelError as error:
            raise BundleError(f"{self.bundle}: {error}") from error


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

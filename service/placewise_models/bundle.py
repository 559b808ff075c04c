"""One bundle on disk: a directory with a manifest that names every file and its SHA-256. Reads; writes manifests only.

A bundle never changes: its name is its directory's, and its digest, the SHA-256 of the manifest, covers all it holds.
"""

import functools
import hashlib
import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from placewise_core.basics.frozen import frozen
from placewise_core.inputs.cluster import earlier_schemas, feature_schema
from placewise_models.folder import BUNDLE_NAME
from placewise_models.ldwp import LDWP_MODEL, LDWP_REPORT, LdwpRuntime
from placewise_models.ncf import NCF_MODEL, NCF_REPORT, NcfMatrix
from placewise_models.policy import POLICY_GRAPHS, POLICY_REPORT, PolicyRuntime
from placewise_models.printed.harmony_paper import HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT, HarmonyPaperRuntime
from placewise_models.printed.ldwp_paper import LDWP_PAPER_MODEL, LDWP_PAPER_REPORT, LdwpPaperRuntime
from placewise_models.public_key import SIGNATURES, PublicKey
from placewise_models.reward import REWARD_MODEL, REWARD_REPORT, RewardRuntime
from placewise_models.session import ModelError, open_session, schema_of_net
from placewise_models.sharing import SHARING_MODEL, SHARING_REPORT, SharingRuntime
from placewise_models.shipped import SHIPPED
from placewise_models.stdm import STDM_MODEL, STDM_REPORT, StdmRuntime

Net = TypeVar("Net")

MANIFEST = "manifest.json"
THROUGHPUT, CAPABILITY = "throughput.json", "capability.json"
# Who vouches for a bundle that comes with a release.
RELEASE = "release"
_OPENED = (
    THROUGHPUT,
    CAPABILITY,
    REWARD_MODEL,
    *POLICY_GRAPHS,
    STDM_MODEL,
    LDWP_MODEL,
    SHARING_MODEL,
    HARMONY_PAPER_MODEL,
    LDWP_PAPER_MODEL,
)
# Which model's tables each net reads (MODEL_TABLES).
_READERS = {REWARD_MODEL: "reward"} | dict.fromkeys(POLICY_GRAPHS, "policy")


class BundleError(ValueError):
    """The bundle cannot be used; the message says which file and why."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of manifest.json. `files` maps names to SHA-256; the rest is provenance: the commit of the build,
    and by model opsets, seeds, training data with the commit and the command of the training, and evaluation. Of a
    retrained bundle also name and digest of its `parent`, digests of the `logs` that it learnt from, by folder, and
    verdict, cluster and policy of the `gate`, whose report is gate.json."""

    name: str
    created: str
    files: dict[str, str]
    feature_schema: str = ""
    opsets: dict[str, int] = {}
    git_commit: str = ""
    seeds: dict[str, int] = {}
    data_sha256: dict[str, str] = {}
    metrics: dict[str, float] = {}
    parent: dict[str, str] = {}
    logs: dict[str, str] = {}
    gate: dict[str, str] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A bundle: its manifest, its JSON documents by file name, and its nets, ready to run. `signed_by` is the id of the
    key that signed it, RELEASE, or "" if no key is configured. One that was only `opened` has an empty manifest.

    Compares by identity, as its nets do. Pickled, it is its path: another process opens it there, once."""

    manifest: Manifest
    directory: Path
    digest: str
    signed_by: str
    documents: Mapping[str, Mapping[str, Any]]
    reward: RewardRuntime | None = None
    policy: PolicyRuntime | None = None
    stdm: StdmRuntime | None = None
    ldwp: LdwpRuntime | None = None
    sharing: SharingRuntime | None = None
    ncf: NcfMatrix | None = None
    harmony_paper: HarmonyPaperRuntime | None = None
    ldwp_paper: LdwpPaperRuntime | None = None

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def created_s(self) -> float | None:
        """When it was made, seconds since 1970; None if its manifest does not say."""
        try:
            return datetime.fromisoformat(self.manifest.created).timestamp()
        except ValueError:
            return None

    def __reduce__(self) -> tuple[Callable[..., "Bundle"], tuple[Path, str, str]]:
        return _opened_again, (self.directory.resolve(), self.digest, self.signed_by)

    def document(self, file: str) -> Mapping[str, Any]:
        """A JSON document of the bundle. Raises BundleError if it has none of that name."""
        try:
            return self.documents[file]
        except KeyError:
            raise BundleError(f"bundle {self.name!r} has no {file}") from None


def load(directory: Path, keys: Sequence[PublicKey] = ()) -> Bundle:
    """Reads and verifies a bundle, and runs its nets once. Raises BundleError for anything missing, torn, unlisted or
    altered, for a link or a path where a file's name belongs, for another name than the directory's, for nets that
    read other features than this version encodes, and for nets that fail their samples; with `keys`, also
    for a bundle that none of them signed and that came with no release."""
    directory = directory.resolve()
    written = _read(directory, MANIFEST)
    digest = hashlib.sha256(written).hexdigest()
    signed_by = _signer(directory, written, digest, keys) if keys else ""
    manifest = _manifest(directory, written)
    contents = {file: _verified(directory, file, sha256) for file, sha256 in manifest.files.items()}
    documents = {
        file: _document(directory / file, content) for file, content in contents.items() if file.endswith(".json")
    }
    if manifest.feature_schema not in (schema_of(contents), *_earlier_schemas_of(contents)):
        raise BundleError(f"{directory.name}: its nets read other features than this version encodes: train them again")
    nets = _Nets(directory.name, contents, documents)
    return Bundle(
        manifest,
        directory,
        digest,
        signed_by,
        documents,
        reward=nets.load(RewardRuntime.load, REWARD_REPORT, REWARD_MODEL),
        policy=nets.load(PolicyRuntime.load, POLICY_REPORT, *POLICY_GRAPHS),
        stdm=nets.load(StdmRuntime.load, STDM_REPORT, STDM_MODEL),
        ldwp=nets.load(LdwpRuntime.load, LDWP_REPORT, LDWP_MODEL),
        sharing=nets.load(SharingRuntime.load, SHARING_REPORT, SHARING_MODEL),
        ncf=nets.load(NcfMatrix.load, NCF_REPORT, NCF_MODEL),
        harmony_paper=nets.load(HarmonyPaperRuntime.load, HARMONY_PAPER_REPORT, HARMONY_PAPER_MODEL),
        ldwp_paper=nets.load(LdwpPaperRuntime.load, LDWP_PAPER_REPORT, LDWP_PAPER_MODEL),
    )


def opened(directory: Path) -> Bundle:
    """The content of a folder, for a simulation: a bundle, or nets just exported. Checks no manifest, checksum,
    signature or sample; never serve from it. Raises ModelError for a net of other features than this version encodes,
    BundleError for a document that is torn."""
    held = {file: (directory / file).read_bytes() for file in _OPENED if (directory / file).is_file()}

    def net(open_net: Callable[..., Net], *files: str) -> Net | None:
        return open_net(*(held[file] for file in files)) if all(file in held for file in files) else None

    return Bundle(
        Manifest(directory.name, created="", files={}),
        directory,
        digest="",
        signed_by="",
        documents={file: _document(directory / file, held[file]) for file in (THROUGHPUT, CAPABILITY) if file in held},
        reward=net(lambda _: RewardRuntime.from_file(directory / REWARD_MODEL), REWARD_MODEL),
        policy=net(PolicyRuntime.opened, *POLICY_GRAPHS),
        stdm=net(StdmRuntime.opened, STDM_MODEL),
        ldwp=net(LdwpRuntime.opened, LDWP_MODEL),
        sharing=net(SharingRuntime.opened, SHARING_MODEL),
        harmony_paper=net(HarmonyPaperRuntime.opened, HARMONY_PAPER_MODEL),
        ldwp_paper=net(LdwpPaperRuntime.opened, LDWP_PAPER_MODEL),
    )


@functools.cache
def _opened_again(directory: Path, digest: str, signed_by: str) -> Bundle:
    """The bundle in another process. Raises BundleError if it is another one by now."""
    if not digest:
        return opened(directory)
    found = load(directory)
    if found.digest != digest:
        raise BundleError(f"{directory.name}: the bundle changed while it was worked with")
    return replace(found, signed_by=signed_by)


def schema_of(files: Iterable[str]) -> str:
    """Hash of the feature tables that the nets among these files read, as this version encodes them; "" for none.

    The completions and LDWP's net read no tokens: they name their columns themselves."""
    models = _readers_of(files)
    return str(feature_schema(*models)["hash"]) if models else ""


def schema_in(directory: Path, files: Collection[str]) -> str:
    """As `schema_of`, for a manifest of this folder: that of the earlier release which the bundle's reward model is of,
    if it is of one, so that replicas of that release load the bundle as well."""
    if REWARD_MODEL not in files:
        return schema_of(files)
    try:
        written = schema_of_net(open_session((directory / REWARD_MODEL).read_bytes(), REWARD_MODEL))
    except ModelError:  # which load reports
        return schema_of(files)
    earlier = dict(zip(earlier_schemas("reward"), _earlier_schemas_of(files), strict=True))
    return earlier.get(written, schema_of(files))


def _earlier_schemas_of(files: Iterable[str]) -> list[str]:
    models = _readers_of(files)
    return earlier_schemas(*models) if models else []


def _readers_of(files: Iterable[str]) -> list[str]:
    return sorted({_READERS[file] for file in files if file in _READERS})


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
        """`load(*bytes of files, report)`, or None if the bundle has none of the files. Raises BundleError if it
        has only some of them, or if the net is refused."""
        found = [file for file in files if file in self.contents]
        if not found:
            return None
        missing = [file for file in (*files, report) if file not in self.contents]
        if missing:
            raise BundleError(f"{self.bundle}: has {found[0]}, but not {missing[0]}, which belongs to it")
        try:
            return load(*(self.contents[file] for file in files), self.documents[report])
        except ModelError as error:
            raise BundleError(f"{self.bundle}: {error}") from error


def _manifest(directory: Path, written: bytes) -> Manifest:
    try:
        manifest = msgspec.json.decode(written, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BundleError(f"{directory.name}: {MANIFEST} is not a manifest: {error}") from error
    if manifest.name != directory.name:
        raise BundleError(
            f"{directory.name}: {MANIFEST} names the bundle {manifest.name!r}. A bundle has its folder's name: "
            "rename the folder, or build the bundle again"
        )
    paths = [file for file in manifest.files if not BUNDLE_NAME.fullmatch(file)]
    if paths:
        raise BundleError(
            f"{directory.name}: {MANIFEST} lists the path {paths[0]!r}: list names of files in the bundle"
        )
    return manifest


def _signer(directory: Path, manifest: bytes, digest: str, keys: Sequence[PublicKey]) -> str:
    """Who vouches for the manifest. Raises BundleError if nobody does."""
    if digest in SHIPPED.values():
        return RELEASE
    signatures = _read(directory, SIGNATURES).decode("ascii", "replace") if (directory / SIGNATURES).exists() else ""
    from placewise_models.signing import signer  # noqa: PLC0415 - cryptography, for services with keys alone

    key_id = signer(manifest, signatures, keys)
    if not key_id:
        found = "was made by another key than those configured" if signatures else "is missing"
        raise BundleError(
            f"{directory.name}: the signature in {SIGNATURES} {found}. Sign the bundle with `placewise bundle sign`, "
            "or configure its public key"
        )
    return key_id


def _verified(directory: Path, file: str, sha256: str) -> bytes:
    content = _read(directory, file)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BundleError(f"{directory.name}: {file} differs from the manifest (checksum): copy or build it again")
    return content


def _read(directory: Path, file: str) -> bytes:
    """Content of a regular file of the bundle. Raises BundleError, for a link too: it leads out of the bundle."""
    try:
        with open(directory / file, "rb", opener=_open_no_link) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise BundleError(f"{directory.name}: {file} is no regular file")
            return opened.read()
    except FileNotFoundError as error:
        raise BundleError(f"{directory.name}: {file} is missing") from error
    except OSError as error:
        reason = "it is a link" if (directory / file).is_symlink() else error.strerror
        raise BundleError(f"{directory.name}: cannot read {file}: {reason}") from error


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # nor one that waits for a writer, as a FIFO does


def _document(path: Path, content: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise BundleError(f"{path.parent.name}: {path.name} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BundleError(f"{path.parent.name}: {path.name} must be a JSON object")
    return document

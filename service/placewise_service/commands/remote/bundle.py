"""`placewise bundle`: build, sign and verify model bundles; choose the bundle of a running service."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from placewise.v1.bundle_pb2 import (
    ActivateBundleRequest,
    Bundle,
    ListBundlesRequest,
    RollbackBundleRequest,
    SetShadowRequest,
)
from placewise_log.auditing import audited
from placewise_models.bundle import MANIFEST, BundleError, Manifest, load, schema_in, write_manifest
from placewise_models.folder import BUNDLE_NAME
from placewise_models.ldwp import LDWP_REPORT
from placewise_models.ncf import NCF_REPORT
from placewise_models.policy import POLICY_REPORT
from placewise_models.printed.harmony_paper import HARMONY_PAPER_REPORT
from placewise_models.printed.ldwp_paper import LDWP_PAPER_REPORT
from placewise_models.public_key import SIGNATURES
from placewise_models.reward import REWARD_REPORT
from placewise_models.sharing import SHARING_REPORT
from placewise_models.signing import BundleKeyError, generate, read_private, read_public, signed
from placewise_models.stdm import STDM_REPORT
from placewise_service.commands.commit import checked_out
from placewise_service.commands.connection import (
    DEFAULT_TARGET,
    CaOption,
    JsonOption,
    TargetOption,
    TokenOption,
    connect,
    to_dict,
)
from placewise_service.commands.console import console, print_json, print_table
from placewise_service.commands.exits import BadInputError, CommandError, Exit
from placewise_service.commands.remote import trials
from placewise_service.commands.remote.compare import compare

app = typer.Typer(
    help="Model bundles: build, sign, verify, shadow, compare, canary, promote, activate, roll back, history.",
    no_args_is_help=True,
)

for command in (compare, trials.canary, trials.promote, trials.kill, trials.history):
    app.command()(command)

_KEPT = (".onnx", ".json", ".md")
# Reports of training runs and documents of fits: the manifest takes their seeds, data and figures.
_REPORTS = (
    REWARD_REPORT,
    POLICY_REPORT,
    STDM_REPORT,
    SHARING_REPORT,
    LDWP_REPORT,
    NCF_REPORT,
    HARMONY_PAPER_REPORT,
    LDWP_PAPER_REPORT,
    "throughput.json",
    "capability.json",
)
DirectoryArgument = Annotated[Path, typer.Argument(help="Bundle directory.", file_okay=False)]


@app.command()
def build(
    directory: DirectoryArgument,
    sources: Annotated[
        list[Path], typer.Option("--from", help="Folder with *.onnx and *.json to take in; later ones win.")
    ],
    commit: Annotated[
        str, typer.Option(help="Commit for the manifest; else that of the repository this runs in, -dirty if changed.")
    ] = "",
    is_json: JsonOption = False,
) -> None:
    """Copy models and coefficients into a directory, write the manifest, and verify the result."""
    with audited("bundle build", directory.resolve().name):
        _build(directory, sources, commit, is_json=is_json)


def _build(directory: Path, sources: Sequence[Path], commit: str, *, is_json: bool) -> None:
    _check_new(directory.resolve())
    for source in sources:
        if not source.is_dir():
            raise BadInputError(str(source), "is not a directory: name a folder of *.onnx and *.json files")
    directory.mkdir(parents=True, exist_ok=True)
    commit = commit or checked_out()  # before anything is copied: a bundle in the repository would make itself dirty
    taken = _copy(sources, directory)
    if not taken:
        raise CommandError("the folders hold no model (*.onnx) and no coefficient file (*.json)", Exit.BAD_INPUT)
    write_manifest(directory, _described(directory, taken, commit))
    try:
        _verify(directory, (), is_json=is_json)
    except (CommandError, typer.Exit):
        (directory / MANIFEST).unlink()  # without it, the folder is no bundle and can be built again
        raise


@app.command()
def verify(
    directory: DirectoryArgument,
    public_keys: Annotated[
        list[Path] | None,
        typer.Option("--public-key", help="Require a signature by this key. With several keys, one of them is enough."),
    ] = None,
    is_json: JsonOption = False,
) -> None:
    """Check checksums, signature and feature schema, load the nets, and run their parity samples."""
    _verify(directory, public_keys or (), is_json=is_json)


@app.command()
def keygen(
    name: Annotated[Path, typer.Argument(help="NAME.key gets the private key, NAME.pub the public one.")],
    is_json: JsonOption = False,
) -> None:
    """Make a pair of keys to sign bundles with. Keep the private one away from the service."""
    private, public = name.with_name(f"{name.name}.key"), name.with_name(f"{name.name}.pub")
    try:
        key = generate(private, public)
    except OSError as error:
        raise CommandError(
            f"{error.filename}: {error.strerror}. Keys are never overwritten: choose another name", Exit.REFUSED
        ) from None
    if is_json:
        print_json({"key_id": key.id, "private": str(private), "public": str(public)})
        return
    console.print(f"key {key.id}: {private} signs (placewise bundle sign), {public} goes to the service")


@app.command()
def sign(
    directory: DirectoryArgument,
    key: Annotated[Path, typer.Option(help="Private key, as keygen makes it.", dir_okay=False)],
    is_json: JsonOption = False,
) -> None:
    """Verify a bundle and sign its manifest. A second key adds its signature to the first one's."""
    with audited("bundle sign", directory.resolve().name):
        _sign(directory, key, is_json=is_json)


def _sign(directory: Path, key: Path, *, is_json: bool) -> None:
    try:
        private = read_private(key)
        bundle = load(directory)
    except (BundleKeyError, BundleError) as error:
        raise CommandError(str(error), Exit.NEGATIVE) from None
    path = directory / SIGNATURES
    before = path.read_text("ascii") if path.is_file() else ""
    text, key_id = signed((directory / MANIFEST).read_bytes(), private, before)
    path.write_text(text, "ascii")
    if is_json:
        print_json({"name": bundle.name, "digest": bundle.digest, "key_id": key_id})
    else:
        console.print(f"bundle {bundle.name} is signed by key {key_id}")


@app.command(name="list")
def list_(
    target: TargetOption = DEFAULT_TARGET, token: TokenOption = "", tls_ca: CaOption = None, is_json: JsonOption = False
) -> None:
    """List the bundles of a running service."""
    with connect(target, token, tls_ca) as client:
        response = client.list_bundles(ListBundlesRequest())
    if is_json:
        print_json(to_dict(response))
        return
    rows = [
        (bundle.name, Bundle.State.Name(bundle.state), bundle.digest[:12], bundle.signed_by, bundle.refusal)
        for bundle in response.bundles
    ]
    print_table("bundles", ("name", "state", "digest", "signed by", "refused because"), rows)
    if response.own_bundles:
        own_bundles = [(own.cluster, own.bundle) for own in response.own_bundles]
        print_table("active in single clusters", ("cluster", "bundle"), own_bundles)
    if response.canaries:
        print_table("canaries", trials.CANARY_COLUMNS, [trials.canary_row(each) for each in response.canaries])
    if response.kill_switches:
        killed = [(each.cluster or "all others", each.policy) for each in response.kill_switches]
        print_table("kill switches", ("cluster", "heuristic that answers"), killed)
    if response.shadows:
        shadowed = [(each.cluster or "all others", each.bundle, each.policy) for each in response.shadows]
        print_table("shadows", ("cluster", "bundle", "policy"), shadowed)


@app.command()
def activate(
    name: Annotated[
        str,
        typer.Argument(help="Bundle name. Empty with --cluster: the cluster goes back to the bundle of all clusters."),
    ] = "",
    cluster: trials.ClusterOption = "",
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Verify a bundle in a running service and activate it. If the service refuses the bundle, nothing changes."""
    if not name and not cluster:
        raise CommandError("name a bundle, or a cluster that is to have none of its own", Exit.USAGE)
    with connect(target, token, tls_ca, timeout_s=60.0) as client:
        request = ActivateBundleRequest(name=name, cluster=cluster)
        trials.print_bundle(client.activate_bundle(request).bundle, is_json=is_json)


@app.command()
def rollback(
    cluster: trials.ClusterOption = "",
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Activate the previous bundle again."""
    with connect(target, token, tls_ca, timeout_s=60.0) as client:
        trials.print_bundle(client.rollback_bundle(RollbackBundleRequest(cluster=cluster)).bundle, is_json=is_json)


@app.command()
def shadow(
    name: Annotated[str, typer.Argument(help="Bundle name; empty with --policy: the bundle that answers.")] = "",
    policy: Annotated[
        str, typer.Option(help="Policy that decides; empty: the one that answered, if the bundle has nets for it.")
    ] = "",
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", help="Cluster; empty: all that have no shadow of their own.")
    ] = "",
    is_off: Annotated[bool, typer.Option("--off", help="End the shadow.")] = False,
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Let a bundle or a policy decide beside the answers: its decisions are logged, and never answered."""
    if is_off == bool(name or policy):
        raise CommandError("name a bundle or a --policy, or end the shadow with --off", Exit.USAGE)
    with connect(target, token, tls_ca, timeout_s=60.0) as client:
        response = client.set_shadow(SetShadowRequest(name=name, policy=policy, cluster=cluster))
    if is_json:
        print_json(to_dict(response))
        return
    where = f"cluster {cluster}" if cluster else "all clusters without a shadow of their own"
    who = " of ".join(filter(None, (policy and f"policy {policy}", name and f"bundle {name}"))) or "nobody"
    console.print(f"{who} decides in the shadow of {where}")


def _check_new(directory: Path) -> None:
    """Raises CommandError if the folder holds a bundle already, or its name cannot be the name of a bundle."""
    if (directory / MANIFEST).exists():
        raise CommandError(
            f"{directory} holds a bundle already, and bundles are never altered: build the new one in another folder",
            Exit.REFUSED,
        )
    if not BUNDLE_NAME.fullmatch(directory.name):
        raise BadInputError(str(directory), "name the folder with letters, digits, '.', '_' or '-'")


def _copy(sources: Sequence[Path], directory: Path) -> list[str]:
    """Names of the files that belong to the bundle, those already there included when the directory is a source."""
    names: dict[str, None] = {}
    for source in sources:
        for path in sorted(source.iterdir()):
            if path.suffix not in _KEPT or path.name == MANIFEST or not path.is_file():
                continue
            if path.resolve() != (directory / path.name).resolve():
                shutil.copyfile(path, directory / path.name)
            if path.suffix != ".md":
                names[path.name] = None
    return list(names)


def _described(directory: Path, files: Sequence[str], commit: str) -> Manifest:
    """The manifest, with the training facts from the nets' reports."""
    reports = {file.removesuffix(".json"): _report(directory / file) for file in _REPORTS if file in files}
    return Manifest(
        name=directory.resolve().name,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        files=dict.fromkeys(files, ""),
        feature_schema=schema_in(directory, files),
        opsets={model: int(report["opset"]) for model, report in reports.items() if "opset" in report},
        git_commit=commit,
        seeds={model: int(report["seed"]) for model, report in reports.items() if "seed" in report},
        data_sha256={
            f"{model}/{name}": value for model, report in reports.items() for name, value in _data(report).items()
        },
        metrics={
            f"{model}/{name}": value
            for model, report in reports.items()
            for name, value in _numbers(report.get("metrics", report.get("held_out", {})))
        },
    )


def _data(report: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of a net's training data, or of the tables behind fitted coefficients; commit and command of the run."""
    fitted = report.get("provenance", {}).get("sha256", {})
    hashes = fitted if isinstance(fitted, Mapping) else {report["provenance"].get("data", "data"): fitted}
    return {
        name: str(value) for name, value in {**report.get("data", {}), **hashes, **report.get("origin", {})}.items()
    }


def _report(path: Path) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise BadInputError(str(path), str(error)) from None


def _numbers(tree: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number of a nested report with its path."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{rest}", number) for rest, number in _numbers(value))
        elif isinstance(value, int | float):
            yield name, float(value)


def _verify(directory: Path, public_keys: Sequence[Path], *, is_json: bool) -> None:
    try:
        bundle = load(directory, [read_public(path) for path in public_keys])
    except BundleKeyError as error:
        raise CommandError(str(error), Exit.BAD_INPUT) from None
    except BundleError as error:
        if is_json:
            print_json({"name": directory.resolve().name, "is_valid": False, "refusal": str(error)})
            raise typer.Exit(Exit.NEGATIVE) from None
        raise CommandError(str(error), Exit.NEGATIVE) from None
    if is_json:
        facts = {"digest": bundle.digest, "signed_by": bundle.signed_by, **msgspec.to_builtins(bundle.manifest)}
        print_json({"name": bundle.name, "is_valid": True, **facts})
        return
    rows = [(file, sha256[:16]) for file, sha256 in sorted(bundle.manifest.files.items())]
    by = f", signed by {bundle.signed_by}" if bundle.signed_by else ""
    print_table(f"bundle {bundle.name} is whole, digest {bundle.digest[:16]}{by}", ("file", "SHA-256"), rows)

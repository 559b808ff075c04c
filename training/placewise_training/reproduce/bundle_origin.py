"""Which bundle a reproduction ran with: its digest, and the seed and the command of each net's training. Runs nothing.

A folder of `--bundle` is a bundle with a manifest, or the folder of a training run, whose reports tell the same.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from placewise_models.bundle import MANIFEST, Manifest

# What an origin says of the bundle; `nets` by model.
BundleOrigin = Mapping[str, Any]


def bundle_origin(folder: Path) -> BundleOrigin:
    """`name`; `digest`: the bundle's, or, without a manifest, the SHA-256 of the sums of its nets and reports; `nets`:
    by model the seed, and the command and the commit of its training if they were recorded. Raises ValueError for a
    manifest or a report that is torn."""
    folder = folder.resolve()
    manifest = folder / MANIFEST
    try:
        if manifest.is_file():
            written = manifest.read_bytes()
            nets = _of_manifest(msgspec.json.decode(written, type=Manifest))
            return {"name": folder.name, "digest": hashlib.sha256(written).hexdigest(), "nets": nets}
        nets = dict(_of_reports(folder))
    except msgspec.MsgspecError as error:
        raise ValueError(f"{manifest}: {error}") from error
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.suffix in (".onnx", ".json") and path.is_file()
    )
    return {"name": folder.name, "digest": hashlib.sha256(sums.encode()).hexdigest(), "nets": nets}


def _of_manifest(manifest: Manifest) -> dict[str, Mapping[str, Any]]:
    made = manifest.data_sha256
    return {
        model: {"seed": seed, **{key: made[f"{model}/{key}"] for key in _MADE_BY if f"{model}/{key}" in made}}
        for model, seed in manifest.seeds.items()
    }


_MADE_BY = ("command", "commit")


def _of_reports(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted(folder.glob("*.json")):
        try:
            report = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if isinstance(report, dict) and "seed" in report:
            made = report.get("origin", {})
            yield path.stem, {"seed": report["seed"], **{key: made[key] for key in _MADE_BY if key in made}}


def in_words(bundle: BundleOrigin) -> str:
    """ "bundle printed, digest 0123456789ab: harmony_paper of seed 0 by `placewise train …`"."""
    nets = (
        f"{model} of seed {net['seed']}" + (f" by `{net['command']}`" if "command" in net else "")
        for model, net in bundle["nets"].items()
    )
    return f"bundle {bundle['name']}, digest {bundle['digest'][:12]}: {'; '.join(nets) or 'no net'}"

"""The gate's verdict as JSON, as lines for a terminal, as an HTML page, and in the bundle. Computes nothing."""

import html
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from placewise_models.bundle import BundleError, load, write_manifest
from placewise_training.drift.compare import as_json as drift_json
from placewise_training.drift.compare import summary
from placewise_training.evaluate.report import as_json as evaluation_json
from placewise_training.evaluate.report import body, document
from placewise_training.gate.checks import Check
from placewise_training.gate.gate import GateVerdict

SCHEMA: Final = "placewise.gate/1"
REPORT: Final = "gate.json"
_PAGE: Final = "gate.html"


def as_json(found: GateVerdict) -> Mapping[str, Any]:
    """One object."""
    return {
        "schema": SCHEMA,
        "verdict": _verdict(found),
        "candidate": dict(found.candidate),
        "incumbent": dict(found.incumbent),
        "cluster": found.cluster,
        "policy": found.policy,
        "checks": [asdict(check) for check in found.checks],
        "evaluation": evaluation_json(found.evaluation) if found.evaluation is not None else None,
        "simulated": found.simulated,
        "drift": drift_json(found.drift) if found.drift is not None else None,
    }


def lines(found: GateVerdict) -> list[str]:
    """The verdict in words: the checks that failed first."""
    shown = [f"{found.candidate['name']} as {found.policy or '?'} against {found.incumbent['name']}:"]
    shown += [f"  {'passed' if check.has_passed else 'FAILED'}  {check.name}: {check.text}" for check in _sorted(found)]
    shown += [f"  {summary(found.drift)}"] if found.drift is not None else []
    return [*shown, "promoted: it may go to a canary" if found.is_promoted else "refused: the incumbent stays"]


def write(found: GateVerdict, folder: Path) -> None:
    """gate.json and gate.html. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT).write_text(_text(found), encoding="utf-8")
    (folder / _PAGE).write_text(page(found), encoding="utf-8")


def record(found: GateVerdict, bundle: Path, to: Path) -> None:
    """A new bundle `to`: the files of `bundle` without its signatures, gate.json, and the verdict in the manifest.
    `bundle` stays as it is. Raises BundleError if `to` exists, or if `bundle` is not whole; OSError."""
    if to.exists():
        raise BundleError(f"{to} exists, and a bundle never changes: choose another name")
    manifest = load(bundle).manifest
    outcome = {"verdict": _verdict(found), "cluster": found.cluster, "policy": found.policy}
    with TemporaryDirectory(prefix=".", dir=to.parent) as place:
        made = Path(place) / to.name
        made.mkdir()
        for file in manifest.files:
            shutil.copyfile(bundle / file, made / file)
        (made / REPORT).write_text(_text(found), encoding="utf-8")
        files = {**manifest.files, REPORT: ""}
        write_manifest(made, msgspec.structs.replace(manifest, name=to.name, files=files, gate=outcome))
        load(made)
        made.rename(to)


def page(found: GateVerdict) -> str:
    """A self-contained HTML page."""
    word = _verdict(found)
    rows = "".join(
        f"<tr><td>{'passed' if check.has_passed else '<b>failed</b>'}</td><td>{html.escape(check.name)}</td>"
        f"<td>{html.escape(check.text)}</td></tr>"
        for check in _sorted(found)
    )
    parts = [f"<p><b>{word}</b></p><table>{rows}</table>"]
    if found.drift is not None:
        parts.append(f"<p>{html.escape(summary(found.drift))}</p>")
    if found.evaluation is not None:
        parts.append(f"<h2>Estimates from the log</h2>{body(found.evaluation)}")
    if found.simulated is not None:
        shown = json.dumps(found.simulated, indent=1, ensure_ascii=False)
        parts.append(f"<h2>Paired simulation</h2><pre>{html.escape(shown)}</pre>")
    return document(f"Gate: {found.candidate['name']}", "\n".join(parts))


def _verdict(found: GateVerdict) -> str:
    return "promoted" if found.is_promoted else "refused"


def _text(found: GateVerdict) -> str:
    return json.dumps(as_json(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _sorted(found: GateVerdict) -> Sequence[Check]:
    return sorted(found.checks, key=lambda check: check.has_passed)

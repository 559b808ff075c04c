"""Fits the throughput model of every measured network and GPU model, and judges it on placements held back.

    python -m placewise_training.throughput.train --out var/train/throughput     (placewise train throughput)

Writes `throughput.json`: every form's coefficients per profile, its held-out errors beside the noise of the rows, and
as `form` the one that generalises best. Several splits of the placements, so that no luck of one of them decides.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placewise_training.data.site_rows import STEPS, read_site_rows
from placewise_training.throughput import judge as throughput_error
from placewise_training.throughput.data import TABLE, Array, Group, fingerprint, measured_groups, site_groups, with_own
from placewise_training.throughput.fit import FITS
from placewise_training.throughput.from_log import incumbent, judged, log_steps, steps_of, with_others
from placewise_training.throughput.judge import (
    clusters_of,
    held_out_logs,
    is_repeated,
    joined,
    relative,
    summary,
    with_known_level,
)
from placewise_training.throughput.left_out import gpu_left_out

SCHEMA = "placewise.throughput/1"
REPORT = "throughput.json"
# v of equation (4): none of the rows holds a start-up time, so this is a stated assumption, not a fit.
STARTUP_S = 30.0
# Sets progress: (title, done, total).
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Args:
    """What `placewise train throughput` takes; the string beside each becomes its help."""

    out: Path = field(default=Path("var/train/throughput"), metadata={"help": "Folder for throughput.json."})
    splits: int = field(default=3, metadata={"help": "Splits of the placements into five folds."})
    measured: Path | None = field(default=None, metadata={"help": "Folder with the site's own rows (steps.csv)."})
    log: str = field(default="", metadata={"help": "Folder or URL of an exported decision log, to learn from."})
    before_s: float = field(
        default=0.0, metadata={"help": "Learn from decisions before this time alone (seconds since 1970); 0: from all."}
    )
    only_log: bool = field(default=False, metadata={"help": "Learn from the log alone."})
    start: Path | None = field(
        default=None, metadata={"help": "Bundle whose profiles stay for networks and GPUs that no row is of."}
    )


def train(args: Args, show: Show = lambda title, done, total: None) -> dict[str, Any]:
    """Fits and judges; the document that is also written to `out`. Raises ValueError for a log that holds too little,
    LogError for one that cannot be read."""
    own = read_site_rows(args.measured)
    logged = log_steps(args.log, args.before_s) if args.log else None
    own_groups, left_out = site_groups((*own.steps, *(steps_of(logged.learn) if logged else ())))
    groups = _groups(args, own_groups)
    errors: dict[str, list[Array]] = {form: [] for form in FITS}
    corrected: dict[str, list[Array]] = {form: [] for form in FITS}
    profiles = []
    for done, group in enumerate(groups):
        show(f"{group.model} on {group.gpu_model}", done, len(groups))
        profile = _profile(group)
        for form, fitted in FITS.items():
            logs = [held_out_logs(group.rows, fitted.fit, fitted.predict, s) for s in range(args.splits)]
            errors[form].append(joined([relative(each) for each in logs]))
            corrected[form].append(joined([relative(with_known_level(each, group.rows.placement)) for each in logs]))
            profile[form] = {
                **fitted.fit(group.rows).as_dict(),
                **summary(errors[form][-1], group.rows.placement),
            }
        profiles.append(profile)
    show("done", len(groups), len(groups))
    report = _document(args, groups, _joined(errors), _joined(corrected), profiles)
    report["left_out"] = gpu_left_out(groups, report)
    if args.start:
        report["profiles"] = with_others(profiles, incumbent(args.start))
    if logged:
        report["log"] = logged.report(args.log, judged(logged.later, incumbent(args.start), report))
    if own.steps:
        report |= {
            "data": own.data(STEPS),
            "site_rows": {"used": sum(len(group.rows.gpus) for group in own_groups), "too_few": left_out},
        }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / REPORT).write_text(json.dumps(report, indent=1, sort_keys=True) + "\n", "utf-8")
    return report


def _groups(args: Args, own: Sequence[Group]) -> list[Group]:
    if not args.only_log:
        return with_own(own, measured_groups())
    if not args.log or not own:
        raise ValueError("--only-log needs a log (--log) with 12 steps of one network on one GPU model")
    return list(own)


def _profile(group: Group) -> dict[str, Any]:
    batches = group.rows.local_batch
    return {
        "model": group.model,
        "gpu_model": group.gpu_model,
        "source": group.source,
        "params_millions": group.params_millions,
        "rows": len(batches),
        "placements": len(np.unique(group.rows.placement)),
        "batch_min": float(batches.min()),
        "batch_max": float(batches.max()),
        "batch_median": float(np.median(batches)),
        "gpus_max": int(group.rows.gpus.max()),
        "noise": _noise([group]),
    }


def _joined(by_group: dict[str, list[Array]]) -> dict[str, Array]:
    return {form: np.concatenate(parts) for form, parts in by_group.items()}


def _document(
    args: Args,
    groups: Sequence[Group],
    errors: dict[str, Array],
    corrected: dict[str, Array],
    profiles: list[dict[str, Any]],
) -> dict[str, Any]:
    clusters, repeated = clusters_of(groups), is_repeated(groups)
    source = np.concatenate([np.full(len(group.rows.gpus), group.source) for group in groups])
    means = {form: float(found.mean()) for form, found in errors.items()}
    return {
        "schema": SCHEMA,
        "form": min(means, key=lambda form: means[form]),
        "startup_s": STARTUP_S,
        "held_out": {form: summary(found, clusters) for form, found in errors.items()},
        "held_out_by_source": {
            name: {form: summary(found[source == name], clusters[source == name]) for form, found in errors.items()}
            for name in sorted(set(source.tolist()))
        },
        # Repeated runs alone, as in `noise`: their spread is the error of a perfect form.
        "held_out_repeated": {
            form: summary(found[repeated], clusters[repeated]) for form, found in errors.items() if repeated.any()
        },
        "noise": _noise(groups),
        # How much of the error is one factor per placement, which nothing but a measurement there can tell.
        "held_out_level_told": {form: summary(found, clusters) for form, found in corrected.items()},
        "provenance": {
            "fitted_by": "placewise_training.throughput.train",
            "data": TABLE,
            "sha256": fingerprint(),
            "sources": sorted({group.source for group in groups}),
            "licence": "Apache-2.0",
            "split": f"{throughput_error.FOLDS} folds over placements within each (model, GPU type), "
            f"mean over shuffles with seeds 0 to {args.splits - 1}",
        },
        "profiles": profiles,
    }


def _noise(groups: Sequence[Group]) -> dict[str, float]:
    """Rounded; empty if no configuration was measured twice."""
    if not is_repeated(groups).any():
        return {}
    return {name: round(value, 4) for name, value in throughput_error.noise(groups).items()}

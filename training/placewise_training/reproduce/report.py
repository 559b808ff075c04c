"""A reproduction as one JSON object and back, and as tables on a terminal. All hold the same; computes nothing new."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from placewise_training.reproduce.claims import Claim, half_width, judged
from placewise_training.reproduce.design import Experiment, Metric, TrialOutcome
from placewise_training.reproduce.paper import Paper
from placewise_training.reproduce.results import Results

SCHEMA = "placewise.reproduction/1"
_CURVE_POINTS = 160  # as many as a plot can show

Json = dict[str, Any]


def as_json(paper: Paper, results: Results, *, is_quick: bool) -> Json:
    """Everything that was found: figures, ours and theirs, and the verdicts."""
    return {
        "schema": SCHEMA,
        "paper": paper.name,
        "title": paper.title,
        "mode": "quick" if is_quick else "full",
        "seeds": list(results.seeds),
        "partial": bool(results.stopped),
        "stopped": results.stopped,
        "wall_s": round(results.wall_s, 1),
        "sittings": results.sittings,
        "origins": [dict(origin) for origin in results.origins],
        "assumptions": list(paper.assumptions),
        "claims": [claim_as_json(claim, results) for claim in paper.claims],
        "experiments": [_experiment(experiment, results) for experiment in paper.experiments],
    }


def claim_as_json(claim: Claim, results: Results) -> Json:
    """The claim with its verdict on these results."""
    judgement = judged(claim, results)
    return {
        "key": claim.key,
        "text": claim.text,
        "paper": claim.paper,
        "ours": judgement.ours,
        "verdict": judgement.verdict.value,
        "why": judgement.why,
        "beyond_paper": claim.is_beyond,
    }


def _experiment(experiment: Experiment, results: Results) -> Json:
    return {
        "key": experiment.key,
        "title": experiment.title,
        "source": experiment.source,
        "axis": experiment.axis,
        "plot": experiment.plot,
        "log_x": experiment.is_log_x,
        "note": experiment.note,
        **({"first_seed": experiment.first_seed} if experiment.first_seed else {}),
        "curve_axes": list(experiment.curve_axes),
        "metrics": [_metric(metric) for metric in experiment.metrics],
        "settings": list(experiment.settings),
        "methods": list(experiment.methods),
        "rows": [_row(experiment, setting, method, results) for setting, method in experiment.trials()],
    }


def _metric(metric: Metric) -> Json:
    return {
        "name": metric.name,
        "title": metric.title,
        "unit": metric.unit,
        "lower_is_better": metric.is_lower_better,
        "plotted": metric.is_plotted,
        "log": metric.is_log,
    }


def _row(experiment: Experiment, setting: str, method: str, results: Results) -> Json:
    cell = (experiment.key, setting, method)
    row: Json = {"setting": setting, "method": method, "metrics": {}, "missing": results.missing.get(cell, "")}
    if not results.runs.get(cell):
        row["missing"] = row["missing"] or "not run"
        return row
    for metric in experiment.metrics:
        found = results.estimate(*cell, metric.name)
        row["metrics"][metric.name] = {
            "ours": _rounded(found.mean * metric.scale),
            "ci95": _rounded(found.half_width * metric.scale),
            "seeds": found.count,
            # Whole: --resume goes on from them, and claims are judged on them.
            "values": {str(s): v * metric.scale for s, v in results.values(*cell, metric.name).items()},
            "theirs": experiment.theirs.get((setting, method, metric.name)),
        }
    curves = results.curves(*cell)
    if curves:
        row["curves"] = {name: _thinned(x, y) for name, (x, y) in curves.items()}
    return row


def _thinned(x: Sequence[float], y: Sequence[float]) -> list[list[float]]:
    step = max(1, -(-len(x) // _CURVE_POINTS))
    return [[_rounded(float(v)) for v in list(x)[::step]], [_rounded(float(v)) for v in list(y)[::step]]]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def from_json(paper: Paper, found: Mapping[str, Any]) -> Results:
    """The results that such an object holds of the paper's experiments as they are now: every seed's numbers whole, its
    curves as thin as they were written. Rows on other seeds than today's experiment asks for are left out."""
    origins = tuple(found.get("origins", ()))
    results = Results(wall_s=float(found["wall_s"]), sittings=int(found.get("sittings", 1)), origins=origins)
    rows = {(e["key"], r["setting"], r["method"]): r for e in found["experiments"] for r in e["rows"]}
    others = on_other_seeds(paper, found)
    for experiment in paper.experiments:
        for setting, method in experiment.trials():
            row = rows.get((experiment.key, setting, method), {"metrics": {}})
            if str(row.get("missing", "")).startswith("needs a bundle"):
                results.missing[experiment.key, setting, method] = row["missing"]
            if experiment.key in others:
                continue
            for seed, outcome in _outcomes(experiment, row).items():
                results.add((experiment.key, setting, method), seed, outcome)
    return results if results.runs else Results(sittings=0)


def on_other_seeds(paper: Paper, found: Mapping[str, Any]) -> set[str]:
    """The experiments whose rows in such an object count their seeds from elsewhere than today."""
    first = {stored["key"]: stored.get("first_seed", 0) for stored in found["experiments"]}
    return {e.key for e in paper.experiments if first.get(e.key, e.first_seed) != e.first_seed}


def _outcomes(experiment: Experiment, row: Mapping[str, Any]) -> dict[int, TrialOutcome]:
    """By seed; none if the row lacks one of today's metrics, or the values of each seed."""
    scales = {metric.name: metric.scale for metric in experiment.metrics}
    if row["metrics"].keys() != scales.keys() or not all("values" in metric for metric in row["metrics"].values()):
        return {}
    values: dict[int, dict[str, float]] = {}
    for name, metric in row["metrics"].items():
        for seed, value in metric["values"].items():
            values.setdefault(int(seed), {})[name] = value / scales[name]
    curves = {name: (x, y) for name, (x, y) in row.get("curves", {}).items()}
    return {seed: TrialOutcome(found, curves) for seed, found in sorted(values.items())}


def print_tables(report: Mapping[str, Any], console: Console) -> None:
    """Claims first, then one table per experiment."""
    state = f" — PARTIAL ({report['stopped']})" if report["partial"] else ""
    console.print(f"[bold]{report['title']}[/bold] ({report['mode']}, seeds {report['seeds']}){state}")
    claims = Table(title="claims", title_justify="left", show_lines=True)
    for title in ("claim", "paper", "ours", "verdict", "why"):
        claims.add_column(title)
    for c in report["claims"]:
        text = f"(beyond the paper) {c['text']}" if c["beyond_paper"] else c["text"]
        claims.add_row(text, c["paper"], c["ours"], c["verdict"], c["why"])
    console.print(claims)
    for experiment in report["experiments"]:
        console.print(_table(experiment))


def _table(experiment: Mapping[str, Any]) -> Table:
    table = Table(title=f"{experiment['title']} [{experiment['source']}]", title_justify="left")
    table.add_column(experiment["axis"] or "setting")
    table.add_column("method")
    for metric in experiment["metrics"]:
        table.add_column(heading(metric), justify="right")
    for row in experiment["rows"]:
        cells = [cell_text(row, metric["name"]) for metric in experiment["metrics"]]
        table.add_row(row["setting"], row["method"], *cells)
    return table


def heading(metric: Mapping[str, Any]) -> str:
    """A metric's title with its unit."""
    return f"{metric['title']} ({metric['unit']})" if metric["unit"] else str(metric["title"])


def cell_text(row: Mapping[str, Any], metric: str) -> str:
    """Ours with its interval, theirs in brackets if the paper prints one; for a missing result, the reason."""
    if metric not in row["metrics"]:
        return str(row["missing"])
    found = row["metrics"][metric]
    text = short(found["ours"])
    if found["seeds"] > 1:
        text += f" ± {half_width(found['ci95'])}"
    return text if found["theirs"] is None else f"{text} [{short(found['theirs'])}]"


def short(value: float) -> str:
    """Three figures, thousands with a comma."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

"""An evaluation as JSON, as lines for a terminal, and as a short HTML page with a plot. Computes nothing."""

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from placewise_training.evaluate.intervals import Interval
from placewise_training.evaluate.judge import DECIDES, EstimatorRow, Judgement

ESTIMAND = "mean reward_h if one decision were the candidate's and all others the logging policy's"
CANNOT_SAY = (
    "JCT: it depends on all decisions at once, and no estimate of one decision holds it.",
    "How the cluster would look if the candidate made every decision: its own states are not in this log.",
    "Anything about placements that the log could not have held.",
)
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The judgements on one log. `log` describes it in names and numbers; `compared` were candidates of the choosing
    stretch; `tried` candidates have been judged on the judging stretch so far."""

    log: Json
    compared: tuple[str, ...]
    tried: int
    judgements: tuple[Judgement, ...]

    @property
    def is_refused(self) -> bool:
        return not any(found.rows for found in self.judgements)


def as_json(found: Evaluation) -> Json:
    """One object; an interval is [low, high]."""
    return {
        "estimand": ESTIMAND,
        "decides": DECIDES,
        "log": dict(found.log),
        "compared": list(found.compared),
        "tried": found.tried,
        "candidates": [_judgement(one) for one in found.judgements],
        "cannot_say": list(CANNOT_SAY),
    }


def _judgement(found: Judgement) -> Json:
    return {
        "candidate": found.candidate,
        "support": asdict(found.support),
        "refusals": [{"name": str(reason.name), "text": reason.text} for reason in found.refusals],
        "estimates": [asdict(row) for row in found.rows],
        "adjusted_p": found.adjusted_p,
        "detectable_gain": found.detectable_gain,
    }


def lines(found: Evaluation) -> list[str]:
    """The same in words and columns."""
    digest = found.log.get("digest")
    shown = [
        f"Log: {found.log['log']}, {f'digest {digest}' if digest else 'without a manifest'}",
        f"Estimated: {ESTIMAND}.",
    ]
    if "judgements_kept" in found.log:
        shown.append(f"Candidates judged on this stretch: {found.tried}, kept {found.log['judgements_kept']}.")
    if found.log.get("judged_before", "no") != "no":
        shown.append(f"This candidate was judged on it at {found.log['judged_before']}: the same test, counted once.")
    for one in found.judgements:
        support = one.support
        shown += [
            "",
            f"{one.candidate}: {support.decisions} decisions, {support.differing} on which the two differ "
            f"(without support {support.unsupported:.1%}, ESS {support.differing_ess:.1f}, "
            f"largest weight {support.largest_share:.1%} of the sum)",
        ]
        shown += [f"  refused, {reason.name}: {reason.text}" for reason in one.refusals]
        if one.rows:
            shown.append(f"  {'estimator':14} {'value':>10} {'gain':>10}  {'95 % interval of the gain':28} least gain")
            shown += [
                f"  {row.estimator:14} {row.value:10.5g} {row.gain:+10.4g}  {_ends(row.gain_interval):28} "
                f"{row.least_gain:+.4g}"
                for row in one.rows
            ]
            shown.append(
                f"  {DECIDES} decides: p {one.adjusted_p:.3g} after {found.tried} candidates; "
                f"smallest gain that this log could have shown {one.detectable_gain:.3g}"
            )
    return shown


def page(found: Evaluation) -> str:
    """A self-contained HTML page."""
    return document("Off-policy evaluation", body(found))


def document(title: str, content: str) -> str:
    """A self-contained HTML page of a body."""
    return _PAGE.format(title=html.escape(title), body=content)


def body(found: Evaluation) -> str:
    """The evaluation as HTML, with its plot."""
    parts = [f"<p>Estimated: {html.escape(ESTIMAND)}.</p>", _facts({**found.log, "candidates tried": found.tried})]
    for one in found.judgements:
        parts.append(f"<h2>{html.escape(one.candidate)}</h2>")
        parts += [f"<p><b>{reason.name}</b>: {html.escape(reason.text)}</p>" for reason in one.refusals]
        if one.rows:
            parts += [_plot(one), _table(one.rows)]
        facts = {**asdict(one.support), "detectable_gain": one.detectable_gain, "adjusted_p": one.adjusted_p}
        parts.append(_facts({name: value for name, value in facts.items() if value is not None}))
    limits = "".join(f"<li>{html.escape(line)}</li>" for line in CANNOT_SAY)
    return "\n".join([*parts, f"<h2>Outside this report</h2><ul>{limits}</ul>"])


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}}table{{border-collapse:collapse}}
td,th{{padding:.2em .8em;border-bottom:1px solid #ccc;text-align:right}}td:first-child,th:first-child{{text-align:left}}
svg{{max-width:100%;height:auto}}</style></head>
<body><h1>{title}</h1>
{body}
</body></html>
"""


def _facts(facts: Json) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(str(name).replace('_', ' '))}</td><td>{html.escape(_number(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table>{rows}</table>"


def _table(rows: Sequence[EstimatorRow]) -> str:
    head = ("estimator", "value", "95 %", "gain", "95 %", "least gain (one-sided 95 %)", "empirical Bernstein 95 %")
    body = [
        (
            row.estimator,
            f"{row.value:.5g}",
            _ends(row.value_interval),
            f"{row.gain:+.4g}",
            _ends(row.gain_interval),
            f"{row.least_gain:+.4g}",
            _ends(row.bernstein) if row.bernstein else "–",
        )
        for row in rows
    ]
    cells = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in body)
    return "<table><tr>" + "".join(f"<th>{cell}</th>" for cell in head) + f"</tr>{cells}</table>"


def _plot(found: Judgement) -> str:
    """SVG: the gain by each estimator with its interval, and the detectable gain."""
    import matplotlib as mpl  # noqa: PLC0415 (takes a second to import)

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": "placewise"}):
        figure, axis = plt.subplots(figsize=(7.0, 2.6), layout="constrained")
        gains = [row.gain for row in found.rows]
        below = [row.gain - row.gain_interval.low for row in found.rows]
        above = [row.gain_interval.high - row.gain for row in found.rows]
        axis.errorbar(gains, range(len(gains)), xerr=[below, above], fmt="o", capsize=3)
        axis.axvline(0.0, color="black", linewidth=0.8)
        if found.detectable_gain is not None:
            axis.axvline(found.detectable_gain, color="0.5", linestyle=":", label="detectable gain")
            axis.legend(fontsize=8)
        axis.set_yticks(range(len(gains)), [row.estimator for row in found.rows])
        axis.margins(y=0.15)
        axis.invert_yaxis()
        axis.set_xlabel("gain over the policy in force, reward_h")
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        plt.close(figure)
    drawing = drawn.getvalue()
    return drawing[drawing.index("<svg") :]  # without the prologue of a file of its own


def _ends(interval: Interval) -> str:
    return f"{interval.low:+.4g} … {interval.high:+.4g}"


def _number(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)

"""The part of docs/models/sharing.md about a site's own models. Measures nothing itself."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from placewise_training.sharing.own_models import CHOSEN_ON

_METHODS = {"today": "before", "mean": "mean of its own", "shift": "by name, shifted", "knn": "kNN"}
_CASES = {
    "references": "beside references",
    "alone": "own models, one has co-runs",
    "together": "own models, all have co-runs",
    "mixed": "known beside own models, asked beside references",
}
_TEXT = """
## A site's own models

Co-runs beside partners that are no references complete no row. They enter a normal model of the log-odds
(`core/speed/pair_effects.py`): a level of the site, and for each model an effect on its own speed and one on its
partner's, shrunk, in closed form. On a GPU model that is not in the table, it starts from equal shares. A decision
compares the limit with a speed that the true one exceeds with a probability of 0.7: then both jobs are within their
limits with ½. Where a completed row answers, it compares the forecast, as before: a rule that was added after a first
look at the V100, where the careful speed decided worse.

Each network in turn is no reference, and has k co-runs. The questions, the baselines and the criteria were committed
before the method and its results (`training/placewise_training/sharing/own_models.py`), its constants before any result
but K80's. **K80 chose the constants, of the baselines too; V100, H200 and CPU cores judge.** `GPU` says whether the
history has pairs on the GPU model. Errors are mean absolute errors of relative speeds; the difference is to the best of
the three baselines on that very row, with a 95 % interval by a bootstrap over networks. Decisions are shares of all
pairs that are wrongly put together or kept apart at a `max_slowdown` of 1.5 and of 2. Bold: not as demanded of one
co-run (no worse than the best baseline; no more wrong decisions than before).

    placewise train sharing --out var/train/sharing --card docs/models/sharing.md
"""


def own_models(judged: Mapping[str, Any]) -> str:
    """Text and table."""
    columns = [
        "set",
        "GPU",
        "case",
        "k",
        "pairs",
        *_METHODS.values(),
        "service",
        "above the best",
        "wrong at 1.5, before",
    ]
    columns += ["service", "wrong at 2, before", "service"]
    lines = [_TEXT, f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for hardware in sorted(judged, key=lambda name: (name != CHOSEN_ON, name != "V100", name)):
        lines += [f"| {' | '.join(row)} |" for row in _rows(hardware, judged[hardware])]
    return "\n".join([*lines, "", _summary(judged)]) + "\n"


def _summary(judged: Mapping[str, Any]) -> str:
    """The counts of rows that meet the demands of one co-run, of the sets that judge."""
    rows = [
        by_count["1"]
        for hardware, of_set in judged.items()
        if hardware != CHOSEN_ON
        for by_case in of_set.values()
        for by_count in by_case.values()
        if "1" in by_count
    ]
    errors = sum(row["above_best"][0] <= 0 for row in rows)
    gaps = [gap for row in rows for gap in row["wrong_above_today"].values()]
    kept = sum(gap[0] <= 0 for gap in gaps)
    return (
        f"With one co-run, the error is no worse than the best baseline in {errors} of the {len(rows)} rows that judge,"
        f"\nand wrong decisions are no more than before in {kept} of {len(gaps)}; of the others, "
        f"{sum(gap[1] > 0 for gap in gaps)} has an interval above 0."
    )


def _rows(hardware: str, of_set: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for is_known, by_case in of_set.items():
        for case, by_count in by_case.items():
            for count, found in by_count.items():
                yield (
                    hardware + (" (chose)" if hardware == CHOSEN_ON else ""),
                    "in the table" if is_known == "in" else "not",
                    _CASES[case],
                    count,
                    str(found["pairs"]),
                    *(f"{found['mae'][name]:.4f}" for name in _METHODS),
                    *_judged(found, is_demanded=count == "1" and hardware != CHOSEN_ON),
                )


def _judged(found: Mapping[str, Any], *, is_demanded: bool) -> Iterator[str]:
    gap, low, high = found["above_best"]
    yield _marked(f"{found['mae']['site']:.4f}", is_demanded and gap > 0)
    yield f"{gap:+.4f} ({low:+.3f} to {high:+.3f})"
    for limit in found["wrong_above_today"]:
        before, now = (found["wrong"][name][limit] for name in ("today", "site"))
        yield f"{before:.1%}"
        yield _marked(f"{now:.1%}", is_demanded and now > before)


def _marked(text: str, is_short: bool) -> str:
    return f"**{text}**" if is_short else text

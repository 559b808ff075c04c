"""`placewise bundle compare`: two sides on the jobs that one answered and the other decided about in its shadow."""

import asyncio
import datetime
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from placewise_log.logs import Log, LogState
from placewise_service.commands.connection import JsonOption
from placewise_service.commands.console import console, print_json, print_table
from placewise_service.commands.exits import BadInputError, CommandError, Exit
from placewise_service.commands.store import opened_store
from placewise_service.declog.export import ExportRing, export
from placewise_service.declog.shadows.comparison import compare as compared
from placewise_service.declog.shadows.pairs import Beside, Pair, beside, pairs

_Found = tuple[list[Pair], list[Beside]]


def compare(
    a: Annotated[str, typer.Argument(help="Who answered: a bundle, a policy, or bundle/policy.")],
    b: Annotated[str, typer.Argument(help="Who shadowed, likewise.")],
    log: Annotated[
        Path | None, typer.Option("--log", help="Exported log; else the ring of the state store in the settings.")
    ] = None,
    clusters: Annotated[list[str] | None, typer.Option("--cluster", "-c", help="These clusters; default: all.")] = None,
    block_s: Annotated[
        float, typer.Option("--block", min=0, help="Length of a block of time, seconds; 0: a twentieth of all.")
    ] = 0.0,
    is_json: JsonOption = False,
) -> None:
    """Compare who answered with who decided in its shadow: agreement, forecasts by both reward models, what was
    realised, latency. One step on the incumbent's states."""
    found, others = _read(log, clusters or ()) if log is not None else asyncio.run(_read_ring(clusters or ()))
    chosen = [pair for pair in found if pair.answer.is_called(a) and pair.shadow.is_called(b)]
    other_calls = [each for each in others if each.answer.is_called(a) and each.shadow.is_called(b)]
    if not chosen and not other_calls:
        raise CommandError(f"{b!r} decided in the shadow of no answer of {a!r}; {_known(found, others)}", Exit.NEGATIVE)
    figures = {"a": a, "b": b, **(compared(chosen, block_s) if chosen else {}), "other_calls": _by_call(other_calls)}
    if is_json:
        print_json(figures)
        return
    if chosen:
        _print(figures)
    if other_calls:
        rows = [(row["call"], row["jobs"], f"{row['same']:.1%}") for row in figures["other_calls"]]
        print_table("same answer in other calls, which have no reward models", ("call", "jobs or tasks", "share"), rows)
        for name, title in (("differences", "where they differ"), ("reasons", "why")):
            rows = [(row["call"], each["what"], each["jobs"]) for row in figures["other_calls"] for each in row[name]]
            if rows:
                print_table(f"other calls: {title}", ("call", "what", "jobs or tasks"), rows)


def _by_call(found: Sequence[Beside]) -> list[dict[str, Any]]:
    by_call: dict[str, list[Beside]] = {}
    for each in found:
        by_call.setdefault(each.call, []).append(each)
    return [
        {
            "call": call,
            "jobs": len(rows),
            "same": sum(each.is_same for each in rows) / len(rows),
            "differences": _counts(each.where for each in rows if not each.is_same),
            "reasons": _counts(each.why for each in rows if not each.is_same),
        }
        for call, rows in sorted(by_call.items())
    ]


def _counts(words: Iterable[str]) -> list[dict[str, Any]]:
    return [{"what": what, "jobs": jobs} for what, jobs in Counter(words).most_common()]


def _read(directory: Path, clusters: Sequence[str]) -> _Found:
    if not (directory / "decisions").is_dir():
        raise BadInputError(str(directory), "has no folder decisions: name a folder that `placewise log export` wrote")
    return pairs(directory, clusters), beside(directory, clusters)


async def _read_ring(clusters: Sequence[str]) -> _Found:
    """From a copy of the ring, which is left as it is."""
    async with opened_store() as store:
        with tempfile.TemporaryDirectory(prefix="placewise-compare-") as directory:
            await export(_Unmarked(store), Path(directory), clusters=clusters)
            return await asyncio.to_thread(_read, Path(directory), clusters)


class _Unmarked:
    """A ring that is read from its start, and does not learn of it."""

    def __init__(self, ring: ExportRing) -> None:
        self._ring = ring

    async def ping(self) -> float:
        return await self._ring.ping()

    async def clusters(self) -> Sequence[str]:
        return await self._ring.clusters()

    async def read_decisions(
        self, cluster: str, after: str, count: int, log: Log = Log.DECISIONS
    ) -> Sequence[tuple[str, bytes]]:
        """No comparison rebuilds a view: the log of views is left out."""
        return await self._ring.read_decisions(cluster, after, count) if log is Log.DECISIONS else ()

    async def mark_exported(self, cluster: str, position: str, log: Log = Log.DECISIONS) -> None:
        pass

    async def log_state(self, cluster: str, log: Log = Log.DECISIONS) -> LogState:
        return replace(await self._ring.log_state(cluster, log), exported="0")


def _known(found: Sequence[Pair], others: Sequence[Beside]) -> str:
    sides = [(pair.answer, pair.shadow) for pair in found] + [(each.answer, each.shadow) for each in others]
    counts = Counter(f"{one.bundle}/{one.policy} and {other.bundle}/{other.policy}" for one, other in sides)
    if not counts:
        return "the log has no decision of a shadow: `placewise bundle shadow` starts one"
    return "the log has " + ", ".join(f"{sides} ({jobs} jobs)" for sides, jobs in counts.most_common(5))


def _print(figures: Mapping[str, Any]) -> None:
    first, last = (_date(figures[name]) for name in ("first_time_s", "last_time_s"))
    title = f"A = {figures['a']} answered, B = {figures['b']} in its shadow"
    console.print(
        f"{title}: {figures['jobs']} jobs of {figures['decisions']} decisions, {first} to {last}", style="bold"
    )
    console.print(f"This is {figures['note']}.")
    explored = f"; {figures['explored']} that an explorer placed are left out" if figures["explored"] else ""
    blocks = f"{figures['blocks']} blocks of {figures['block_s']:.0f} s; none from fewer than five"
    console.print(f"Intervals (95 %) by {blocks}{explored}.")
    rows = [("all", figures["agreement"]["jobs"], _share(figures["agreement"]))]
    rows += [(f"of {row['tasks']} tasks", row["jobs"], _share(row)) for row in figures["agreement_by_tasks"]]
    print_table("same placement", ("jobs", "number", "share"), rows)
    for name, title in (("differences", "where they differ"), ("preferences", "who prefers what there")):
        if figures[name]:
            rows = [(row["what"], row["jobs"], f"{row['share']:.1%}") for row in figures[name]]
            print_table(title, ("what", "jobs", "share"), rows)
    _print_forecasts(figures)
    _print_realised(figures["realised"])
    latencies = [
        (side.upper(), found["p50"], found["p99"], _number(found["mean"]))
        for side, found in figures["latency_ms"].items()
    ]
    print_table("latency of a decision", ("side", "p50 [ms]", "p99 [ms]", "mean [ms]"), latencies)


def _print_forecasts(figures: Mapping[str, Any]) -> None:
    rows = []
    for model, found in figures["forecasts"].items():
        for where, name in (("all", "all jobs"), ("where_they_differ", "where they differ")):
            part = found[where]
            rows.append((model.upper(), name, part["jobs"], _share(part["gain_of_b"]), _share(part["prefers_b"])))
    columns = ("reward model of", "jobs", "scored", "progress of B over A", "B preferred")
    print_table("forecast progress Σ c/e of B's placements against A's, by both reward models", columns, rows)


def _print_realised(realised: Mapping[str, Any]) -> None:
    rows = []
    for where, found in realised.items():
        for model in ("a", "b"):
            part = found[f"by_{model}"]
            factor, bias = part["mean_abs_log_ratio"], part["mean_log_ratio"]
            name = where.replace("_", " ")
            rows.append((name, model.upper(), part["jobs"], _number(bias), _number(factor)))
    columns = ("jobs", "reward model of", "finished", "mean log(forecast/realised)", "mean |log(forecast/realised)|")
    print_table("forecast of A's placement against what was realised: 1 / (end − start)", columns, rows)


def _share(found: Mapping[str, float | None]) -> str:
    return _interval(found, lambda value: f"{value:.1%}")


def _number(found: Mapping[str, float | None]) -> str:
    return _interval(found, lambda value: f"{value:.3g}")


def _interval(found: Mapping[str, float | None], written: Callable[[float], str]) -> str:
    value, low, high = found["value"], found["low"], found["high"]
    if value is None:
        return ""
    return written(value) + (f" ({written(low)} to {written(high)})" if low is not None and high is not None else "")


def _date(time_s: float) -> str:
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).isoformat(timespec="seconds")

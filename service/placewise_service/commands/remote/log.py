"""`placewise log`: the decision log, exported, followed, or looked up."""

import asyncio
import datetime
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from placewise.v1.bundle_pb2 import GetDecisionRequest
from placewise_client.aio import AsyncClient
from placewise_client.target import Target
from placewise_log.auditing import audited
from placewise_log.record import CorruptEntryError, DecisionRecord, Entry, decode_entry
from placewise_service.commands.connection import (
    DEFAULT_TARGET,
    CaOption,
    JsonOption,
    TargetOption,
    TokenOption,
    connect,
    target_of,
    to_dict,
)
from placewise_service.commands.console import console, errors, print_json, print_table, progress
from placewise_service.commands.exits import CommandError, Exit
from placewise_service.commands.remote.log_ring import ApiRing
from placewise_service.commands.remote.whatif import print_decision, print_learned
from placewise_service.commands.store import opened_store
from placewise_service.declog.dataset import START, Dataset, DatasetBusyError
from placewise_service.declog.export import DEFAULT_DANGLING_AFTER_S, ExportReport, ExportRing
from placewise_service.declog.export import export as export_log
from placewise_service.declog.outcomes import Status
from placewise_service.declog.problems import Problems
from placewise_service.declog.upkeep.migrate import migrate as migrate_log
from placewise_service.declog.upkeep.publish import Store, StoreError
from placewise_service.declog.upkeep.stats import LogStats, stats_of

app = typer.Typer(help="The decision log.", no_args_is_help=True)

_PAGE = 1000
_API_TIMEOUT_S = 30.0
_FOLLOW_POLL_S = 0.5
_POSITION = re.compile(r"\d+(-\d+)?")


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="Folder for the Parquet files.", file_okay=False)],
    clusters: Annotated[list[str] | None, typer.Option("--cluster", "-c", help="These clusters; default: all.")] = None,
    after: Annotated[
        str,
        typer.Option(help="Leave out entries up to this position (`log tail --json`): they count as exported."),
    ] = START,
    batch: Annotated[int, typer.Option(min=1, help="Entries per file.")] = 5000,
    dangling_after_s: Annotated[
        float, typer.Option("--dangling-after", min=0, help="Silence after which a job counts as dangling, seconds.")
    ] = DEFAULT_DANGLING_AFTER_S,
    target: Annotated[
        str, typer.Option(help="Read from this running service, HOST:PORT (gRPC), with a token of scope log.")
    ] = "",
    token: TokenOption = "",
    tls_ca: CaOption = None,
    store: Annotated[str, typer.Option(help="Copy the export to this URL: file, S3, GCS, HDFS, any of fsspec.")] = "",
    is_json: JsonOption = False,
) -> None:
    """Write new entries to Parquet, by day, each decision once, outcomes joined. Safe to kill and to repeat."""
    if target and not clusters:
        raise CommandError("--target needs --cluster: name the clusters whose log the token may read", Exit.USAGE)
    if not _POSITION.fullmatch(after):
        raise CommandError(f"--after {after}: a position is MILLISECONDS-NUMBER", Exit.USAGE)
    source = _of_service(target_of(target, token, tls_ca), clusters or ()) if target else opened_store()
    with audited("log export", str(directory), ",".join(clusters or ())):
        copy = _store(store) if store else None  # before the work, which a wrong URL should not wait for
        report = asyncio.run(_export(source, directory, clusters or (), after, batch, dangling_after_s))
        if copy is not None:
            _publish(copy, directory)
    if is_json:
        print_json({each.name: getattr(report, each.name) for each in fields(report)})
    else:
        new = ", ".join(f"{count} {table}" for table, count in sorted(report.written.items())) or "nothing new"
        console.print(f"exported to {directory}: {new}")
        if report.joined:
            print_table("jobs of the days rebuilt", ("status", "jobs"), sorted(report.joined.items()))
    _end(report.problems, report.notes)


@app.command()
def stats(
    directory: Annotated[Path, typer.Argument(help="Folder of an export.", exists=True, file_okay=False)],
    is_json: JsonOption = False,
) -> None:
    """Numbers of an exported log: decisions, outcomes, policies and their exploration, and which labels rows have."""
    problems = Problems()
    found = stats_of(directory, problems)
    if is_json:
        print_json({**found.summary(), "problems": list(problems)})
    else:
        _print_stats(found)
    _end(problems)


@app.command()
def migrate(
    directory: Annotated[Path, typer.Argument(help="Folder of an export.", exists=True, file_okay=False)],
    is_json: JsonOption = False,
) -> None:
    """Rewrite the files of an earlier version's export with the columns of today. Safe to kill and to repeat."""
    problems = Problems()
    with audited("log migrate", str(directory)):
        try:
            with Dataset(directory).locked():
                counts = migrate_log(directory, problems)
        except DatasetBusyError as error:
            raise CommandError(str(error), Exit.REFUSED) from None
    if is_json:
        print_json({"migrated": counts, "problems": list(problems)})
    else:
        console.print(f"migrated {counts['files']} files in {directory}; the next export joins them")
    _end(problems)


@app.command()
def tail(
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="Cluster name.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Number of latest entries.")] = 20,
    is_following: Annotated[bool, typer.Option("--follow", "-f", help="Print new entries as they arrive.")] = False,
    is_json: JsonOption = False,
) -> None:
    """The latest entries of the log, one per line, from the state store that the settings name."""
    asyncio.run(_tail(cluster, count, is_following, is_json))


@app.command()
def show(
    decision_id: Annotated[str, typer.Argument(help="Decision id.")],
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="Cluster name.")],
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """One past decision, as it was answered."""
    with connect(target, token, tls_ca) as client:
        answer = client.get_decision(GetDecisionRequest(cluster=cluster, decision_id=decision_id))
    if is_json:
        print_json(to_dict(answer))
        return
    time = answer.decide_time.ToDatetime(datetime.UTC).isoformat(timespec="milliseconds")
    console.print(f"{answer.rpc} {answer.decision_id} at {time}")
    if answer.HasField("place"):
        for decision in answer.place.decisions:
            print_decision(decision, answer.place.meta.policy)
        print_learned(answer.place.meta)
    else:
        console.print_json(data=to_dict(answer))


def _store(url: str) -> Store:
    try:
        return Store(url)
    except StoreError as error:
        raise CommandError(str(error), Exit.USAGE) from None


def _publish(store: Store, directory: Path) -> None:
    try:
        store.publish(directory)
    except StoreError as error:
        raise CommandError(str(error), Exit.UNREACHABLE) from None


def _end(problems: Iterable[str], notes: Iterable[str] = ()) -> None:
    """Prints a line for each, and ends with the exit code of malformed input if a file had problems."""
    lines = list(problems)
    for line in (*lines, *notes):
        errors.print(f"placewise: {line}", soft_wrap=True)
    if lines:
        raise typer.Exit(Exit.BAD_INPUT)


def _print_stats(found: LogStats) -> None:
    print_table("decisions", ("call and outcome", "decisions"), sorted(found.decisions.items()))
    print_table("outcomes", ("kind", "reports"), sorted(found.outcomes.items()))
    columns = ("call and policy", "rows", "explored", "with support", "largest weight", "ESS")
    policies = [(name, each.summary()) for name, each in sorted(found.policies.items())]
    fields = ("rows", "explored", "with_support", "largest_weight", "ess")
    print_table("policies", columns, [(name, *(each[field] for field in fields)) for name, each in policies])
    print_table(
        "rows by status",
        ("call", *Status),
        [(rpc, *(counts[status] for status in Status)) for rpc, counts in sorted(found.statuses.items())],
    )
    covered = [(name, count, count / found.held) for name, count in found.covered.items()] if found.held else []
    print_table(f"labels of {found.held} held rows", ("label", "rows", "share"), covered)
    console.print(
        f"{found.shadows} decisions of shadows, {found.orphans} outcomes of unknown decisions, {found.repeated} "
        f"repeated rows, {found.unreadable} entries of another schema, {found.refusals_left_out} unchanged refusals "
        f"left out, {found.without_alternatives} Place decisions without alternatives"
    )
    for cluster, logs in sorted(found.dropped.items()):
        counts = " and ".join(f"{count} entries of its {name}" for name, count in sorted(logs.items()))
        console.print(f"{cluster}: {counts} were dropped before an export had them")
    views = found.views
    console.print(
        f"views of {views['complete']} decisions can be rebuilt, of {views['dropped']} not, as parts were dropped; of "
        f"{views['not logged']} nothing was logged"
    )


@asynccontextmanager
async def _of_service(target: Target, clusters: Sequence[str]) -> AsyncIterator[ApiRing]:
    async with AsyncClient(target, timeout_s=_API_TIMEOUT_S) as client:
        yield ApiRing(client, clusters)


async def _export(
    source: AbstractAsyncContextManager[ExportRing],
    directory: Path,
    clusters: Sequence[str],
    after: str,
    batch: int,
    dangling_after_s: float,
) -> ExportReport:
    async with source as ring:
        with progress("entries", None) as bar:
            try:
                return await export_log(
                    ring,
                    directory,
                    clusters=clusters,
                    after=after,
                    batch=batch,
                    dangling_after_s=dangling_after_s,
                    on_progress=lambda n: bar.advance(bar.task_ids[0], n),
                )
            except DatasetBusyError as error:
                raise CommandError(str(error), Exit.REFUSED) from None
            except OSError as error:  # a full disk, most of all
                reason = error.strerror or str(error)
                raise CommandError(f"{directory}: {reason}. Run the export again: it goes on from here") from None


async def _tail(cluster: str, count: int, is_following: bool, is_json: bool) -> None:
    async with opened_store() as store:
        position = "0"
        latest: list[tuple[str, bytes]] = []
        while page := await store.read_decisions(cluster, position, _PAGE):
            position = page[-1][0]
            latest = [*latest, *page][-count:]
        _print_entries(latest, is_json)
        while is_following:
            page = await store.read_decisions(cluster, position, _PAGE)
            if page:
                position = page[-1][0]
                _print_entries(page, is_json)
            else:
                await asyncio.sleep(_FOLLOW_POLL_S)


def _print_entries(entries: Sequence[tuple[str, bytes]], is_json: bool) -> None:
    for position, data in entries:
        try:
            row = _row(decode_entry(data))
        except CorruptEntryError as error:
            row = {"kind": "unreadable", "what": str(error)}
        row["position"] = position
        if is_json:
            print_json(row)
        else:
            console.print("  ".join(str(value) for name, value in row.items() if name != "position" and value != ""))


def _row(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, DecisionRecord):
        meta = entry.meta
        flags = [
            word
            for word, is_set in (
                ("dry-run", entry.is_dry_run),
                ("explored", meta.is_explored),
                ("fallback", meta.is_fallback),
                ("shadow", bool(entry.shadow_of)),
            )
            if is_set
        ]
        return {
            "time": _iso(entry.time_s),
            "kind": entry.rpc,
            "decision_id": entry.decision_id,
            "what": entry.outcome,
            "policy": meta.policy,
            "caller": meta.caller,
            "jobs": ",".join(job.id for job in entry.jobs[:4]) + ("…" if len(entry.jobs) > 4 else ""),
            "propensity": round(meta.propensity, 6),
            "flags": " ".join(flags),
        }
    event = entry.event
    time_s = event.event_time_s or entry.receive_time_s
    row = {"time": _iso(time_s), "kind": "outcome", "decision_id": entry.decision_id, "what": event.kind.value}
    return {**row, "jobs": event.job_id}


def _iso(time_s: float) -> str:
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).isoformat(timespec="milliseconds")

"""`placewise whatif`: shows the placement that a job would get, or the reasons against it, by a dry run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from google.protobuf import json_format

from placewise.v1.cluster_pb2 import Assignment, LearnedCapability, LearnedCoRun, LearnedHeat
from placewise.v1.decision_pb2 import (
    Admission,
    AdmitOrWaitRequest,
    AdmitOrWaitResponse,
    Blocker,
    DecisionMeta,
    JobDecision,
    Outcome,
    PlaceRequest,
    PlaceResponse,
)
from placewise.v1.job_pb2 import GpuSharing, Job, Resources, TaskGroup
from placewise_client.results import reason_names
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
from placewise_service.commands.exits import BadInputError, Exit

app = typer.Typer(help="Where would this job go, and why not?")

_CANDIDATES_SHOWN = 8


@app.command()
def whatif(
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="Cluster to ask about.")],
    job: Annotated[Path | None, typer.Option("--job", help="Job as YAML or JSON (proto3 JSON of Job).")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Tasks in the gang.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs per task; a fraction asks for part of one.")] = 0.0,
    cpu_cores: Annotated[float, typer.Option("--cpu", min=0, help="CPU cores per task.")] = 1.0,
    memory_gib: Annotated[float, typer.Option("--memory", min=0, help="Memory per task, GiB.")] = 0.0,
    gpu_model: Annotated[str, typer.Option(help="GPU model every task needs.")] = "",
    max_per_node: Annotated[int, typer.Option(min=0, help="Most tasks on one node; 0: no limit.")] = 0,
    max_slowdown: Annotated[float, typer.Option(min=0, help="Share GPUs up to this slowdown; 0: do not.")] = 0.0,
    model: Annotated[str, typer.Option(help="Name of the trained model.")] = "",
    policy: Annotated[str, typer.Option(help="Placement policy; empty: the cluster's.")] = "",
    queue: Annotated[str, typer.Option(help="Check admission from this queue, too.")] = "",
    admit_policy: Annotated[str, typer.Option(help="Admission policy; empty: the cluster's.")] = "",
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Show the placement that a job would get. Exit code 5 if it would not start now."""
    if job is not None:
        asked = read_job(job)
    else:
        demand = Resources(cpu_cores=cpu_cores, gpus=gpus, memory_gib=memory_gib)
        group = TaskGroup(
            role=TaskGroup.WORKER, count=workers, demand=demand, max_per_node=max_per_node, gpu_model=gpu_model
        )
        asked = Job(id="whatif", model=model, groups=[group], architecture=_architecture(workers))
        asked.gpu_sharing.CopyFrom(GpuSharing(allowed=max_slowdown > 0, max_slowdown=max_slowdown))
    with connect(target, token, tls_ca) as client:
        admission = None
        if queue:
            request = AdmitOrWaitRequest(cluster=cluster, queue=queue, jobs=[asked], policy=admit_policy)
            request.dry_run = request.explain = True
            admission = client.admit_or_wait(request)
        placement = client.place(PlaceRequest(cluster=cluster, jobs=[asked], policy=policy, dry_run=True, explain=True))
    _print(placement, admission, is_json)
    if not _is_starting(placement, admission):
        raise typer.Exit(Exit.NEGATIVE)


def read_job(path: Path) -> Job:
    """A job from a YAML or JSON file. Raises BadInputError."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        asked: Job = json_format.ParseDict(data, Job())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise BadInputError(str(path), error.problem or "not YAML", line, column) from None
    except (OSError, UnicodeDecodeError, json_format.ParseError, AttributeError, TypeError) as error:
        raise BadInputError(str(path), str(error)) from None
    asked.id = asked.id or "whatif"
    return asked


def _architecture(workers: int) -> Job.Architecture:
    return Job.SINGLE if workers == 1 else Job.ALL_REDUCE


def _is_starting(placement: PlaceResponse, admission: AdmitOrWaitResponse | None) -> bool:
    is_placed = all(decision.outcome == Outcome.PLACED for decision in placement.decisions)
    is_admitted = admission is None or all(a.verdict == Admission.ADMIT for a in admission.admissions)
    return is_placed and is_admitted


def _print(placement: PlaceResponse, admission: AdmitOrWaitResponse | None, is_json: bool) -> None:
    if is_json:
        answer: dict[str, Any] = {"place": to_dict(placement)}
        if admission is not None:
            answer["admit_or_wait"] = to_dict(admission)
        print_json(answer)
        return
    for admitted in admission.admissions if admission is not None else ():
        _print_admission(admitted)
    if admission is not None and not (placement.meta.lengths or placement.meta.speeds):
        print_learned(admission.meta)
    for decision in placement.decisions:
        print_decision(decision, placement.meta.policy)
    print_learned(placement.meta)


def _print_admission(admitted: Admission) -> None:
    shape = f", {admitted.nodes} × {admitted.gpus_per_node} GPUs" if admitted.gpus else ""
    console.print(f"{admitted.job_id}: {Admission.Verdict.Name(admitted.verdict)}{shape}, rank {admitted.rank}")
    _print_blockers(admitted.blockers)
    if admitted.drift_plus_penalty:
        rows = [(s.gpus, s.value, s.cost_seconds) for s in admitted.drift_plus_penalty]
        print_table("drift plus penalty", ("GPUs n", "S(n)", "C(n) [s]"), rows)


def print_decision(decision: JobDecision, policy: str) -> None:
    """Prints the answer for one job: its placement, or its blockers."""
    speed = f", predicted speed {decision.predicted_speed:.3g}" if decision.predicted_speed else ""
    if decision.profile_model:
        speed += f" by the profile of {decision.profile_model}"
    console.print(f"{decision.job_id}: {Outcome.Name(decision.outcome)} by {policy}{speed}")
    if decision.assignments:
        print_table("assignments", ("task", "node", "GPUs"), [_spot(a) for a in decision.assignments])
    _print_blockers(decision.blockers)
    if decision.neighbours:
        rows = [(n.job_id, n.speed_before, n.speed_after) for n in decision.neighbours]
        print_table("neighbours", ("job", "speed before", "speed after"), rows)
    _print_candidates(decision)


def print_learned(meta: DecisionMeta) -> None:
    """Prints the lengths that the cluster has learned for jobs without one, and the speeds for those with a place."""
    rows = [
        (a.job_id, a.single_gpu_seconds, f"{a.low_seconds:g} … {a.high_seconds:g}", a.reports, a.source)
        for a in meta.lengths
    ]
    if rows:
        print_table("learned lengths", ("job", "seconds on one GPU", "90 % interval", "reports", "from"), rows)
    speeds = [
        (
            a.job_id,
            f"{a.gpus} {a.gpu_type} on {a.nodes}",
            a.samples_per_second,
            f"{a.low_per_second:g} … {a.high_per_second:g}",
            a.forecast_per_second,
            a.reports,
            a.source,
        )
        for a in meta.speeds
    ]
    if speeds:
        columns = ("job", "GPUs on nodes", "samples/s", "90 % interval", "bundle's forecast", "reports", "from")
        print_table("learned speeds", columns, speeds)


def print_heat(found: Iterable[LearnedHeat]) -> None:
    """Prints how the cluster's nodes warm up, as it has learned it."""
    rows = [
        (
            a.node_type,
            a.unit,
            a.rise_celsius,
            f"{a.low_celsius:g} … {a.high_celsius:g}",
            a.shipped_celsius,
            a.time_constant_seconds,
            f"{a.low_seconds:g} … {a.high_seconds:g}",
            a.shipped_seconds,
            a.reports,
        )
        for a in found
    ]
    if rows:
        rise, time = ("°C under load", "90 % interval", "bundle's"), ("R·C [s]", "90 % interval", "bundle's")
        print_table("learned heat", ("nodes", "unit", *rise, *time, "reports"), rows)


def print_capabilities(found: Iterable[LearnedCapability]) -> None:
    """Prints how fast the cluster's units do kinds of divisible tasks, as it has learned it."""
    rows = [
        (
            a.task_kind,
            a.node_type,
            a.unit,
            a.scale_per_second,
            f"{a.low_per_second:g} … {a.high_per_second:g}",
            a.shipped_per_second,
            a.reports,
        )
        for a in found
    ]
    if rows:
        columns = ("kind", "nodes", "unit", "scale/s", "90 % interval", "bundle's", "reports")
        print_table("learned capabilities", columns, rows)


def print_co_runs(found: Iterable[LearnedCoRun]) -> None:
    """Prints how fast models run beside each other on one GPU, as the cluster has learned it."""
    rows = [
        (a.model, a.partner, a.gpu_type, a.relative_speed, f"{a.low:g} … {a.high:g}", a.shipped, a.reports)
        for a in found
    ]
    if rows:
        columns = ("model", "beside", "GPU", "speed over alone", "90 % interval", "bundle's", "reports")
        print_table("learned co-runs", columns, rows)


def _spot(assignment: Assignment) -> tuple[str, str, str]:
    gpus = ", ".join(str(index) for index in assignment.gpu_indices)
    return assignment.task, assignment.node, gpus or assignment.cpu_unit


def _print_blockers(blockers: "list[Blocker] | Any") -> None:
    if blockers:
        names = reason_names(blockers)
        rows = [(n, b.nodes, b.shortfall or None, b.resource, b.message) for n, b in zip(names, blockers, strict=True)]
        print_table("blockers, first things first", ("reason", "nodes", "missing", "resource", "message"), rows)


def _print_candidates(decision: JobDecision) -> None:
    if not decision.candidates:
        return
    best = sorted(decision.candidates, key=lambda c: (not c.chosen, c.task, -c.score))[:_CANDIDATES_SHOWN]
    rows = [
        (c.task, c.node, c.score, "yes" if c.chosen else "", " ".join(f"{t.name}={t.value:.3g}" for t in c.terms))
        for c in best
    ]
    more = len(decision.candidates) - len(rows)
    title = "candidates" + (f" (best {len(rows)} of {len(decision.candidates)})" if more > 0 else "")
    print_table(title, ("task", "node", "score", "chosen", "terms"), rows)

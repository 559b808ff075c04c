"""Golden decisions: each question is asked twice, as a dry run that explains itself and in earnest without."""

from dataclasses import dataclass

from tests.golden.net import messages as m
from tests.golden.net import rows
from tests.golden.net.rows import Names, Row, plain
from tests.golden.net.seams import PlacewiseError, Service, serving
from tests.golden.net.worlds import Question, World, follow_up, units_world, worlds

from placewise.v1 import cluster_pb2 as cluster_pb
from placewise.v1 import decision_pb2 as decision_pb

UNITS = "units"
LEARNED = ("harmony", "ldwp", "search", "adaptive")
UNDECIDED = ("harmony", "ldwp")  # whose scores show how sure they were
# Fields whose numbers nets have a part in: scores of a learned policy, and speeds on shared GPUs, which a net completes
# from measurements.
_SCORES, _SPEEDS = ("candidates", "margin"), ("predicted_speed", "neighbours")


@dataclass
class Decided:
    """Rows of one cluster: the answers, and their log records."""

    answers: list[Row]
    records: list[Row]


def files(policy: str) -> tuple[str, str]:
    """Names of the golden files of a policy: answers and records."""
    return f"decisions-{policy}.jsonl", f"records-{policy}.jsonl.gz"


async def decided(policy: str) -> Decided:
    """All that one policy decides."""
    found = Decided([], [])
    async with serving() as service:
        if policy == UNITS:
            await _play(service, "units", "", units_world(), found)
        else:
            for name, world in worlds(policy):
                await _play(service, name, policy, world, found)
    return found


async def _play(service: Service, name: str, policy: str, world: World, found: Decided) -> None:
    cluster, names = f"{name}-{policy or 'iawp'}", Names()
    rng = m.drawn(f"follow/{cluster}")
    await service.ask("ReportNodes", m.nodes_request(cluster, world.nodes))
    if world.exploration:
        settings = cluster_pb.ClusterSettings(exploration_rate=world.exploration)
        asked = cluster_pb.UpdateClusterSettingsRequest(cluster=cluster, settings=settings)
        asked.update_mask.paths.append("exploration_rate")
        await service.ask("UpdateClusterSettings", asked)
    await _report(service, cluster, world.events)
    net = {"net": [*(_SCORES if policy in LEARNED else ()), *(_SPEEDS if name == "sharing" else ())]}
    for i, question in enumerate(world.questions):
        request = _request(cluster, policy, question, i)
        explained = decision_pb.PlaceRequest()
        explained.CopyFrom(request)
        explained.dry_run, explained.explain, explained.request_id = True, True, ""
        row: Row = {"id": f"{cluster}/{i:02}", "cluster": cluster, **net}
        if question.is_explained:
            row["explained"] = names.plain(await asked_of(service, explained))
        answer = await service.ask("Place", request)
        row["answer"] = names.plain(plain(answer))
        if question.request_id:
            row["repeated"] = names.plain(await asked_of(service, request))
        if policy in UNDECIDED and question.is_explained:
            row["margin"] = _margin(row["explained"])
        found.answers.append(row)
        await _report(service, cluster, follow_up(question, answer, rng))
    of_records = {"net": [*net["net"], *(("info",) if policy in LEARNED else ())]}
    for i, record in enumerate(await service.records(cluster)):
        found.records.append(
            {"id": f"{cluster}/record-{i:03}", "cluster": cluster, "record": names.plain(record), **of_records}
        )


def _request(cluster: str, policy: str, question: Question, number: int) -> decision_pb.PlaceRequest:
    request = m.place(cluster, question.jobs, policy, seed=1000 + number, request_id=question.request_id)
    if question.is_node_scope:
        request.scope, request.node_id = decision_pb.PlaceRequest.NODE, question.node
    return request


async def asked_of(service: Service, request: decision_pb.PlaceRequest) -> Row:
    """The answer as data, or the error."""
    try:
        return plain(await service.ask("Place", request))
    except PlacewiseError as error:
        return {"error": error.reason, "message": error.message}


async def _report(service: Service, cluster: str, events: list[cluster_pb.JobEvent]) -> None:
    if events:
        await service.ask("ReportJobEvents", cluster_pb.ReportJobEventsRequest(cluster=cluster, events=events))


def _margin(explained: Row) -> float | None:
    """Between the two best scores of the closest choice; None if no task had two candidates."""
    found = []
    for decision in explained.get("decisions", ()):
        by_task: dict[str, list[float]] = {}
        for task, _, score, *_ in decision.get("candidates", ()):
            by_task.setdefault(task, []).append(score)
        found += [sorted(s)[-1] - sorted(s)[-2] for s in by_task.values() if len(s) > 1]
    return min(found, default=None)


async def check(policy: str) -> None:
    """Raises AssertionError, which names rows and fields, where today's decisions are not those of the files."""
    found = await decided(policy)
    answers, records = files(policy)
    undecided = rows.compare(answers, found.answers)
    rows.compare(records, found.records, undecided)

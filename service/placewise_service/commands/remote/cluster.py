"""`placewise cluster`: apply an inventory, show or delete a cluster, change its settings."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from placewise.v1.cluster_pb2 import (
    Cluster,
    ClusterSettings,
    DeleteClusterRequest,
    Explorer,
    GetClusterRequest,
    ListClustersRequest,
    ReportNodesRequest,
    UpdateClusterSettingsRequest,
)
from placewise_client.errors import DeadlineExceededError, StateUnavailableError
from placewise_client.sync import Client
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
from placewise_service.commands.exits import CommandError, Exit
from placewise_service.commands.inventory import Inventory, read_inventory
from placewise_service.commands.remote.whatif import print_capabilities, print_co_runs, print_heat

app = typer.Typer(help="Inventory and settings of a cluster.", no_args_is_help=True)

_POLL_S = 0.1
_NODES_PER_REPORT = 2000  # about 1 MiB of nodes with eight GPUs each: well under the service's message limit

ClusterArgument = Annotated[str, typer.Argument(help="Cluster name.")]


@app.command()
def apply(
    file: Annotated[Path, typer.Argument(help="YAML inventory; - is standard input.")],
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="Name; empty: the one in the file.")] = "",
    is_full: Annotated[bool, typer.Option("--full", help="Remove the nodes that the file does not name.")] = False,
    wait_s: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for the service.")] = 0.0,
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Insert or update the nodes (and settings) of a YAML inventory."""
    inventory = read_inventory(file)
    name = cluster or inventory.cluster
    if not name:
        raise CommandError("no cluster named: set it in the file or with --cluster", Exit.USAGE)
    with connect(target, token, tls_ca, timeout_s=60.0) as client:
        wait_for_service(client, wait_s)
        version = send_inventory(client, name, inventory, is_full=is_full)
    if is_json:
        print_json({"cluster": name, "nodes": len(inventory.nodes), "snapshot_version": version})
    else:
        console.print(f"cluster {name}: {len(inventory.nodes)} nodes applied (version {version})")


def wait_for_service(client: Client, wait_s: float) -> None:
    """Returns as soon as the service answers, or after `wait_s`: the next call then raises the error."""
    deadline_s = time.monotonic() + wait_s
    while time.monotonic() < deadline_s:
        try:
            client.list_clusters(ListClustersRequest(), timeout_s=1.0, retry=None)
        except (StateUnavailableError, DeadlineExceededError):
            time.sleep(_POLL_S)
        else:
            return


def send_inventory(client: Client, cluster: str, inventory: Inventory, *, is_full: bool) -> int:
    """Reports the nodes, and sets the settings if there are any; the snapshot version after it.

    A full report must be one message: each part would remove the nodes of the others.
    """
    nodes = inventory.nodes
    size = max(1, len(nodes)) if is_full else _NODES_PER_REPORT
    version = 0
    for start in range(0, max(1, len(nodes)), size):
        request = ReportNodesRequest(cluster=cluster, nodes=nodes[start : start + size], full=is_full)
        version = client.report_nodes(request).snapshot_version
    if inventory.settings is not None:
        client.update_cluster_settings(UpdateClusterSettingsRequest(cluster=cluster, settings=inventory.settings))
    return version


@app.command("list")
def list_(
    target: TargetOption = DEFAULT_TARGET, token: TokenOption = "", tls_ca: CaOption = None, is_json: JsonOption = False
) -> None:
    """Names of the clusters the service knows."""
    with connect(target, token, tls_ca) as client:
        names = list(client.list_clusters(ListClustersRequest()).clusters)
    if is_json:
        print_json({"clusters": names})
    else:
        console.print("\n".join(names) or "no clusters")


@app.command()
def show(
    cluster: ClusterArgument,
    is_full: Annotated[bool, typer.Option("--full", help="List every node and job.")] = False,
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Show a cluster: totals, queues, settings; with --full every node and job."""
    with connect(target, token, tls_ca) as client:
        answer = client.get_cluster(GetClusterRequest(cluster=cluster, full=is_full))
    if is_json:
        print_json(to_dict(answer))
        return
    _show_totals(answer)
    if answer.queues:
        rows = [(q.queue, q.waiting_jobs, q.backlog_seconds, q.delay_seconds, q.slot, q.v) for q in answer.queues]
        print_table("queues", ("queue", "waiting", "backlog Q [s]", "delay Z [s]", "slot", "V"), rows)
    if is_full:
        _show_details(answer)


@app.command()
def settings(
    cluster: ClusterArgument,
    place_policy: Annotated[str | None, typer.Option(help="Default placement policy; empty: the service's.")] = None,
    admit_policy: Annotated[str | None, typer.Option(help="Default admission policy; empty: the service's.")] = None,
    exploration_rate: Annotated[float | None, typer.Option(min=0, max=1, help="Share of explored decisions.")] = None,
    admit_exploration_rate: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of jobs whose admission is explored.")
    ] = None,
    explorers: Annotated[
        list[str] | None,
        typer.Option("--explorer", help="A policy or bundle: NAME or NAME=WEIGHT; several; replaces the list."),
    ] = None,
    spare_above_gpus: Annotated[float | None, typer.Option(min=0, help="Explore no larger jobs; 0: all.")] = None,
    spare_below_nodes: Annotated[
        int | None, typer.Option(min=0, help="Explore only with as many feasible nodes.")
    ] = None,
    spare_urgent: Annotated[bool | None, typer.Option(help="Explore no urgent jobs.")] = None,
    learn_durations: Annotated[
        bool | None, typer.Option(help="Learn the length of jobs that declare none from jobs that ended.")
    ] = None,
    learn_throughput: Annotated[
        bool | None, typer.Option(help="Learn the speed of models from reports of progress.")
    ] = None,
    learn_heat: Annotated[
        bool | None, typer.Option(help="Learn how nodes warm up from the temperatures that they report.")
    ] = None,
    learn_capability: Annotated[
        bool | None, typer.Option(help="Learn how fast units do kinds of divisible tasks from shares that ended.")
    ] = None,
    learn_co_runs: Annotated[
        bool | None, typer.Option(help="Learn how models slow each other down on a GPU from reports of progress.")
    ] = None,
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Show or change the settings of a cluster."""
    changes = {
        "place_policy": place_policy,
        "admit_policy": admit_policy,
        "exploration_rate": exploration_rate,
        "admit_exploration_rate": admit_exploration_rate,
        "learn_durations": learn_durations,
        "learn_throughput": learn_throughput,
        "learn_heat": learn_heat,
        "learn_capability": learn_capability,
        "learn_co_runs": learn_co_runs,
    }
    guard = {"max_gpus": spare_above_gpus, "min_nodes": spare_below_nodes, "spare_urgent": spare_urgent}
    given = {name: value for name, value in changes.items() if value is not None}
    guarded = {name: value for name, value in guard.items() if value is not None}
    exploring = [explorer_of(text) for text in explorers or ()]
    with connect(target, token, tls_ca) as client:
        current = client.get_cluster(GetClusterRequest(cluster=cluster)).settings
        if given or guarded or exploring:
            wanted = _changed(current, given, guarded, exploring)
            request = UpdateClusterSettingsRequest(cluster=cluster, settings=wanted)
            current = client.update_cluster_settings(request).settings
    if is_json:
        print_json(to_dict(current))
    else:
        print_table(f"settings of {cluster}", ("setting", "value"), _settings_rows(current))


def _changed(
    current: ClusterSettings,
    given: Mapping[str, object],
    guarded: Mapping[str, object],
    exploring: Sequence[Explorer],
) -> ClusterSettings:
    """A copy with the given fields, those of its guard, and the explorers if there are any."""
    wanted = ClusterSettings()
    wanted.CopyFrom(current)
    for name, value in given.items():
        setattr(wanted, name, value)
    for name, value in guarded.items():
        setattr(wanted.exploration_guard, name, value)
    if exploring:
        del wanted.explorers[:]
        wanted.explorers.extend(exploring)
    return wanted


def explorer_of(text: str) -> Explorer:
    """POLICY or POLICY=WEIGHT. Raises BadParameter."""
    policy, _, weight = text.partition("=")
    if weight and not weight.isdecimal():
        raise typer.BadParameter(f"{text!r}: write POLICY or POLICY=WEIGHT, the weight a whole number")
    return Explorer(policy=policy, weight=int(weight or 1))


@app.command()
def delete(
    cluster: ClusterArgument,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
) -> None:
    """Delete a cluster: its nodes, jobs, queues and decision log."""
    if not is_sure:
        typer.confirm(f"Delete cluster {cluster} and all its records?", abort=True)
    with connect(target, token, tls_ca) as client:
        client.delete_cluster(DeleteClusterRequest(cluster=cluster))


def _show_totals(cluster: Cluster) -> None:
    stale = "; the state cannot be refreshed" if cluster.stale else ""
    console.print(f"cluster {cluster.cluster}, version {cluster.snapshot_version}{stale}")
    ready = f"{cluster.ready_node_count} of {cluster.node_count} nodes ready"
    console.print(f"{ready}, {cluster.stale_node_count} with stale telemetry")
    console.print(f"{cluster.running_jobs} jobs running, {cluster.reserved_jobs} reserved")
    if cluster.HasField("disturbance"):
        loss, pairs = cluster.disturbance.loss, cluster.disturbance.pairs
        console.print(f"gangs on several nodes lose {loss:.0%} beside each other ({pairs:.3g} pairs of reports)")
    print_heat(cluster.heat)
    print_capabilities(cluster.capabilities)
    print_co_runs(cluster.co_runs)
    names = ("cpu_cores", "gpus", "memory_gib", "gpu_memory_gib", "network_gbps")
    rows = [(name, getattr(cluster.used, name), getattr(cluster.capacity, name)) for name in names]
    print_table("resources", ("resource", "used", "capacity"), [row for row in rows if row[2] > 0])


def _show_details(cluster: Cluster) -> None:
    nodes = [
        (n.id, type(n).State.Name(n.state), n.capacity.cpu_cores, n.capacity.gpus, n.gpus[0].model if n.gpus else "")
        for n in cluster.nodes
    ]
    print_table("nodes", ("node", "state", "CPU cores", "GPUs", "GPU model"), nodes)
    jobs = [
        (j.job_id, type(j).State.Name(j.state), len(j.assignments), ", ".join(sorted({a.node for a in j.assignments})))
        for j in cluster.jobs
    ]
    print_table("jobs", ("job", "state", "tasks", "nodes"), jobs)


def _settings_rows(settings: ClusterSettings) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        ("place_policy", settings.place_policy or "(the service's)"),
        ("admit_policy", settings.admit_policy or "(the service's)"),
        ("exploration_rate", settings.exploration_rate),
        ("admit_exploration_rate", settings.admit_exploration_rate),
        ("learn_durations", settings.learn_durations),
        ("learn_throughput", settings.learn_throughput),
        ("learn_heat", settings.learn_heat),
        ("learn_capability", settings.learn_capability),
        ("learn_co_runs", settings.learn_co_runs),
        ("explorers", ", ".join(f"{e.policy}={e.weight}" for e in settings.explorers) or "(the service's)"),
    ]
    if settings.HasField("exploration_guard"):
        guard = settings.exploration_guard
        spared = [f"above {guard.max_gpus:g} GPUs"] * bool(guard.max_gpus)
        spared += [f"below {guard.min_nodes} feasible nodes"] * bool(guard.min_nodes)
        spared += ["urgent"] * guard.spare_urgent
        rows.append(("not explored", ", ".join(spared)))
    for queue in settings.queues:
        slot_s, bound_s = (span.ToTimedelta().total_seconds() for span in (queue.slot_duration, queue.wait_bound))
        times = f"τ={queue.tau_seconds:g} s slot={slot_s:g} s bound={bound_s:g} s"
        text = f"V={queue.v:g} ε={queue.epsilon_seconds:g} s {times}"
        rows.append((f"queue {queue.queue}", text))
    return rows

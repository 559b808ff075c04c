"""`placewise bundle canary|promote|kill|history`: bundles on trial in a running service."""

from collections.abc import Sequence
from typing import Annotated

import typer

from placewise.v1.bundle_pb2 import (
    Bundle,
    BundleChange,
    Canary,
    ListBundleHistoryRequest,
    PromoteBundleRequest,
    SetCanaryRequest,
    SetKillSwitchRequest,
)
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

ClusterOption = Annotated[
    str, typer.Option("--cluster", "-c", help="Only this cluster; empty: all without a setting of their own.")
]
CANARY_COLUMNS = ("cluster", "bundle", "share", "by", "since", "salt")
_TIMEOUT_S = 60.0


def canary(
    name: Annotated[str, typer.Argument(help="Bundle name; empty with --off.")] = "",
    share: Annotated[float, typer.Option(help="Share of the jobs, above 0 and below 1; by time it is a half.")] = 0.0,
    by: Annotated[
        str,
        typer.Option(help="How jobs are split. job: by the hash of their ids; time: by alternating blocks of time."),
    ] = "job",
    period_s: Annotated[
        float, typer.Option(help="By time: seconds of a period (two blocks); 0: one hour.", min=0.0)
    ] = 0.0,
    washout_s: Annotated[
        float,
        typer.Option(help="By time: seconds at the start of a block that count for no arm; -1: a tenth.", min=-1.0),
    ] = -1.0,
    cluster: ClusterOption = "",
    is_off: Annotated[bool, typer.Option("--off", help="End the canary.")] = False,
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Let a bundle answer a share of the jobs. Guards end the canary if it does worse."""
    if is_off == bool(name):
        raise CommandError("name a bundle, or end the canary with --off", Exit.USAGE)
    if by not in ("job", "time"):
        raise CommandError(f"--by {by}: is job or time", Exit.USAGE)
    request = SetCanaryRequest(name=name, cluster=cluster, share=share)
    if name and by == "time":
        request.by = Canary.TIME
    if period_s:
        request.period.FromMilliseconds(round(1000.0 * period_s))
    if washout_s >= 0.0:
        request.washout.FromMilliseconds(round(1000.0 * washout_s))
    with connect(target, token, tls_ca, timeout_s=_TIMEOUT_S) as client:
        response = client.set_canary(request)
    if is_json:
        print_json(to_dict(response))
    elif is_off:
        console.print(f"no canary in {_where(cluster)}")
    else:
        print_table("canary", CANARY_COLUMNS, [canary_row(response.canary)])


def promote(
    name: Annotated[str, typer.Argument(help="Fail unless this is the canary; empty: any.")] = "",
    cluster: ClusterOption = "",
    is_ungated: Annotated[
        bool, typer.Option("--ungated", help="Promote it even if it did not pass the gate on this cluster.")
    ] = False,
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Let the canary answer every job, and end the canary."""
    request = PromoteBundleRequest(cluster=cluster, name=name, allow_ungated=is_ungated)
    with connect(target, token, tls_ca, timeout_s=_TIMEOUT_S) as client:
        print_bundle(client.promote_bundle(request).bundle, is_json=is_json)


def kill(
    policy: Annotated[str, typer.Argument(help="Heuristic that answers.")] = "consolidate",
    cluster: ClusterOption = "",
    is_off: Annotated[bool, typer.Option("--off", help="Let the learned policies answer again.")] = False,
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Kill switch: let a heuristic answer in place of every learned policy, at once."""
    with connect(target, token, tls_ca, timeout_s=_TIMEOUT_S) as client:
        response = client.set_kill_switch(SetKillSwitchRequest(policy="" if is_off else policy, cluster=cluster))
    if is_json:
        print_json(to_dict(response))
    else:
        console.print(f"{'the learned policies answer' if is_off else f'{policy} answers'} in {_where(cluster)}")


def history(
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", help="Changes that concern this cluster; empty: all.")
    ] = "",
    count: Annotated[
        int, typer.Option("--count", "-n", help="Number of changes, the latest ones.", min=1, max=1000)
    ] = 50,
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """List changes of bundles, shadows, canaries and kill switches, newest first, each with its reason."""
    with connect(target, token, tls_ca) as client:
        response = client.list_bundle_history(ListBundleHistoryRequest(cluster=cluster, page_size=count))
    if is_json:
        print_json(to_dict(response))
        return
    columns = ("time", "cluster", "change", "bundle", "before", "share", "by", "reason")
    print_table("history", columns, [_history_row(change) for change in response.changes])


def _history_row(change: BundleChange) -> Sequence[str]:
    return (
        change.change_time.ToJsonString(),
        change.cluster or "all others",
        BundleChange.Kind.Name(change.kind),
        change.bundle or change.policy,
        change.previous,
        f"{change.share:g}" if change.share else "",
        change.caller or "the service",
        change.reason,
    )


def canary_row(each: Canary) -> Sequence[str]:
    """The cells of CANARY_COLUMNS."""
    by = Canary.By.Name(each.by).lower()
    since = each.start_time.ToJsonString()
    return (each.cluster or "all others", each.bundle, f"{each.share:g}", by, since, each.salt)


def print_bundle(bundle: Bundle, *, is_json: bool) -> None:
    """Prints the state of a bundle."""
    if is_json:
        print_json(to_dict(bundle))
    else:
        console.print(f"bundle {bundle.name}: {Bundle.State.Name(bundle.state)}")


def _where(cluster: str) -> str:
    return f"cluster {cluster}" if cluster else "all clusters without a choice of their own"

"""`placewise serve`: the service itself, with the settings that are asked for most as options."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from placewise.v1.cluster_pb2 import ReportNodesRequest
from placewise_service import main
from placewise_service.commands.exits import CommandError, Exit
from placewise_service.commands.inventory import read_inventory
from placewise_service.data import DEMO_INVENTORY
from placewise_service.settings import Settings, SettingsError, load_settings

app = typer.Typer(help="Start the service.")

DEMO_CLUSTER = "demo"


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address of both faces; default: loopback.", show_default=False)] = "",
    grpc_port: Annotated[int | None, typer.Option(min=0, max=65535, help="gRPC port.")] = None,
    rest_port: Annotated[int | None, typer.Option(min=0, max=65535, help="REST port.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that share both ports.")] = None,
    redis_url: Annotated[str, typer.Option(help="Redis; default: an embedded one.", show_default=False)] = "",
    state_dir: Annotated[Path | None, typer.Option(help="State directory of the embedded Redis.")] = None,
    tokens_file: Annotated[Path | None, typer.Option(help="Bearer tokens (placewise token create).")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    is_insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address beyond loopback without authentication.")
    ] = False,
    log_format: Annotated[str, typer.Option(help="json or text; default: text on a terminal.")] = "",
    is_demo: Annotated[bool, typer.Option("--demo", help="Load a sample cluster named demo.")] = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C. Every setting is also an environment variable (docs/settings.md)."""
    given: dict[tuple[str, ...], Any] = {
        ("server", "grpc_host"): host,
        ("server", "rest_host"): host,
        ("server", "grpc_port"): grpc_port,
        ("server", "rest_port"): rest_port,
        ("server", "workers"): workers,
        ("server", "insecure"): is_insecure or None,
        ("redis_url",): redis_url,
        ("state_dir",): state_dir,
        ("auth", "tokens_file"): tokens_file,
        ("tls", "cert_file"): tls_cert,
        ("tls", "key_file"): tls_key,
        ("log", "format"): log_format or ("text" if sys.stderr.isatty() else None),
    }
    try:
        settings = load_settings(**_nested(given))
    except SettingsError as error:
        raise CommandError(str(error), Exit.USAGE) from None
    raise typer.Exit(main.serve(settings, _demo(settings) if is_demo else ()))


def _nested(given: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    """Keyword arguments of load_settings for the options that were given."""
    overrides: dict[str, Any] = {}
    for path, value in given.items():
        if value is None or value == "":
            continue
        section = overrides
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = value
    return overrides


def _demo(settings: Settings) -> tuple[main.Preparation, ...]:
    """Brings the demo inventory in before the service says that it is ready."""
    if settings.auth.is_on:
        raise CommandError("--demo cannot be used with tokens or certificates", Exit.USAGE)
    inventory = read_inventory(DEMO_INVENTORY)
    request = ReportNodesRequest(cluster=DEMO_CLUSTER, nodes=inventory.nodes)
    return (main.Preparation("ReportNodes", request.SerializeToString()),)

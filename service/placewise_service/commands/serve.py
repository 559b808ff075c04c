"""`placewise serve`: the service itself, with the settings that are asked for most as options."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from placewise_service import main
from placewise_service.commands.exits import CommandError, Exit
from placewise_service.data import DEMO_INVENTORY
from placewise_service.settings import Settings, SettingsError, load_settings

app = typer.Typer(help="Start the service.")

DEMO_CLUSTER = "demo"
_DEMO_WAIT_S = 60


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address of both faces; default: loopback.", show_default=False)] = "",
    grpc_port: Annotated[int | None, typer.Option(min=0, max=65535, help="gRPC port.")] = None,
    rest_port: Annotated[int | None, typer.Option(min=0, max=65535, help="REST port.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that share both ports.")] = None,
    redis_url: Annotated[str, typer.Option(help="Redis; default: an embedded one.", show_default=False)] = "",
    state_dir: Annotated[Path | None, typer.Option(help="Where the embedded Redis keeps its state.")] = None,
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
    with _demo(settings) if is_demo else contextlib.nullcontext():
        code = main.serve(settings)
    raise typer.Exit(code)


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


@contextlib.contextmanager
def _demo(settings: Settings) -> Iterator[None]:
    """A client process beside the service that applies the demo inventory as soon as it answers."""
    server = settings.server
    if settings.auth.tokens_file or settings.tls.is_on or not server.grpc_port:
        message = "--demo is for trying things out: without tokens, without TLS, on a fixed port"
        raise CommandError(message, Exit.USAGE)
    target = f"{'127.0.0.1' if server.grpc_host in ('0.0.0.0', '::') else server.grpc_host}:{server.grpc_port}"  # noqa: S104
    command = [sys.executable, "-m", "placewise_service.cli", "cluster", "apply", str(DEMO_INVENTORY)]
    command += ["--cluster", DEMO_CLUSTER, "--target", target, "--wait", str(_DEMO_WAIT_S)]
    process = subprocess.Popen(command)  # noqa: S603 - our own words
    try:
        yield
    finally:
        process.terminate()
        process.wait()

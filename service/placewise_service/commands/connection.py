"""How the client commands reach a running service: options, channel, and proto3 JSON. Asks nothing by itself."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf import json_format
from google.protobuf.message import Message

from placewise_client.retry import RetryPolicy
from placewise_client.sync import Client
from placewise_client.target import Target, TargetError, Tls
from placewise_service.commands.exits import CommandError, Exit

# Somebody waits at the terminal: report an unreachable service at once.
_RETRY = RetryPolicy(attempts=4)
# `true` lets a token travel in clear to another machine. A variable and no option: whoever sets up the network knows.
PLAINTEXT = "PLACEWISE_CLIENT_ALLOW_PLAINTEXT_TOKEN"
DEFAULT_TARGET = "127.0.0.1:50051"

TargetOption = Annotated[
    str,
    typer.Option("--target", envvar="PLACEWISE_CLIENT_TARGET", help="Running service, HOST:PORT[,HOST:PORT…] (gRPC)."),
]
TokenOption = Annotated[
    str, typer.Option("--token", envvar="PLACEWISE_CLIENT_TOKEN", help="Bearer token.", show_default=False)
]
CaOption = Annotated[
    Path | None,
    typer.Option("--tls-ca", envvar="PLACEWISE_CLIENT_TLS_CA", help="CA certificate (PEM): switches TLS on."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def target_of(target: str, token: str = "", tls_ca: Path | None = None) -> Target:
    """The target of these options. Raises CommandError for one that makes no sense."""
    is_plaintext = os.environ.get(PLAINTEXT) == "true"
    described = Target(tuple(target.split(",")), Tls(root=tls_ca) if tls_ca else None, token or None, is_plaintext)
    try:
        described.check()
    except TargetError as error:
        raise CommandError(str(error), Exit.USAGE) from None
    return described


@contextmanager
def connect(target: str, token: str = "", tls_ca: Path | None = None, timeout_s: float = 10.0) -> Iterator[Client]:
    """A blocking client, closed at the end. Raises CommandError for a target that it cannot use."""
    try:
        client = Client(target_of(target, token, tls_ca), timeout_s=timeout_s, retry=_RETRY)
    except TargetError as error:
        raise CommandError(str(error), Exit.USAGE) from None
    with client:
        yield client


def to_dict(message: Message) -> dict[str, Any]:
    """proto3 JSON, as REST answers it."""
    return json_format.MessageToDict(message)

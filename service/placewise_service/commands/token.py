"""`placewise token`: bearer tokens. A token is shown once; the file keeps only its hash."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from placewise_service.api.auth import Scope, TokensFileError, create_token
from placewise_service.commands.connection import JsonOption
from placewise_service.commands.console import errors, print_json
from placewise_service.commands.exits import CommandError, Exit

app = typer.Typer(help="Bearer tokens of the service.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Bearer tokens of the service."""


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who will use it; stands in the logs.")],
    file: Annotated[
        Path, typer.Option(envvar="PLACEWISE_AUTH__TOKENS_FILE", help="Tokens file; made if it is not there.")
    ],
    scopes: Annotated[list[Scope], typer.Option("--scope", help="What it allows; repeat for more.")],
    clusters: Annotated[list[str] | None, typer.Option("--cluster", "-c", help="Only these; none: every one.")] = None,
    days: Annotated[float, typer.Option(min=0, help="Expires after so many days; 0: never.")] = 0.0,
    is_json: JsonOption = False,
) -> None:
    """Make a token, add its hash to the tokens file, and print it: this once."""
    expire_time = datetime.now(UTC) + timedelta(days=days) if days else None
    try:
        token = create_token(file, name, scopes, clusters or (), expire_time)
    except TokensFileError as error:
        raise CommandError(str(error), Exit.REFUSED) from None
    if is_json:
        expiry = expire_time.isoformat() if expire_time else None
        print_json({"name": name, "token": token, "scopes": sorted(scopes), "expire_time": expiry})
    else:
        print(token)
        errors.print(f"added {name} to {file}; the service reads the file again within a second")

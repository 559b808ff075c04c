"""`placewise token`: bearer tokens. A token is shown once; the file keeps only its hash."""

import grp
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from placewise_log.auditing import audited
from placewise_service.api.identity.auth import AccessScope
from placewise_service.api.identity.token_changes import Access, create_token, list_tokens, revoke_token
from placewise_service.api.identity.tokens import TokenEntry
from placewise_service.api.identity.watched import CredentialsFileError
from placewise_service.commands.connection import JsonOption
from placewise_service.commands.console import errors, print_json, print_table
from placewise_service.commands.exits import CommandError, Exit

app = typer.Typer(help="Bearer tokens of the service.", no_args_is_help=True)

FileOption = Annotated[Path, typer.Option(envvar="PLACEWISE_AUTH__TOKENS_FILE", help="The tokens file.")]


@app.callback()
def _group() -> None:
    """Bearer tokens of the service."""


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the caller, as the audit log will show it.")],
    file: Annotated[Path, typer.Option(envvar="PLACEWISE_AUTH__TOKENS_FILE", help="Tokens file; created if missing.")],
    scopes: Annotated[list[AccessScope], typer.Option("--scope", help="Scope of the token; repeat for more.")],
    clusters: Annotated[list[str] | None, typer.Option("--cluster", "-c", help="These clusters; default: all.")] = None,
    days: Annotated[float, typer.Option(min=0, help="Expires after so many days; 0: never.")] = 0.0,
    mode: Annotated[
        str, typer.Option(help="Permissions of the file, octal (640); a new file is 600, an old one keeps its own.")
    ] = "",
    group: Annotated[
        str, typer.Option(help="Group of the file, by name or number. With --mode 640, give the service's group.")
    ] = "",
    is_json: JsonOption = False,
) -> None:
    """Make a token, add its hash to the tokens file, and print it: this once."""
    expire_time = datetime.now(UTC) + timedelta(days=days) if days else None
    access = Access(_mode(mode), _group_id(group))
    with audited("token create", name), _reporting_errors():
        token = create_token(file, name, scopes, clusters or (), expire_time, access=access)
    if is_json:
        expiry = expire_time.isoformat() if expire_time else None
        print_json({"name": name, "token": token, "scopes": sorted(scopes), "expire_time": expiry})
    else:
        print(token)
        errors.print(f"added {name} to {file}; the service reads the file again within two seconds")


@app.command("list")
def list_(file: FileOption, is_json: JsonOption = False) -> None:
    """List the tokens with their scopes, clusters and expiry."""
    with _reporting_errors():
        entries = list_tokens(file)
    now_s = datetime.now(UTC).timestamp()
    if is_json:
        print_json({"tokens": [_row(entry, now_s) for entry in entries]})
        return
    rows = [
        (
            entry.name,
            " ".join(sorted(entry.scopes)),
            " ".join(sorted(entry.clusters)) if entry.clusters is not None else "every one",
            entry.expire_time.isoformat() if entry.expire_time else "never",
            "expired" if entry.is_expired(now_s) else "valid",
        )
        for entry in entries
    ]
    print_table(str(file), ("name", "scopes", "clusters", "expires", "is"), rows)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="Name of the token, as in `token list`.")],
    file: FileOption,
    is_json: JsonOption = False,
) -> None:
    """Delete a token from the tokens file."""
    with audited("token revoke", name), _reporting_errors():
        revoked = revoke_token(file, name)
    if is_json:
        print_json({"name": name, "revoked": revoked})
    else:
        errors.print(f"deleted {name} from {file}; the service refuses the token within two seconds")


@contextmanager
def _reporting_errors() -> Iterator[None]:
    try:
        yield
    except CredentialsFileError as error:
        raise CommandError(str(error), Exit.REFUSED) from None


def _row(entry: TokenEntry, now_s: float) -> dict[str, object]:
    return {
        "name": entry.name,
        "scopes": sorted(entry.scopes),
        "clusters": sorted(entry.clusters) if entry.clusters is not None else None,
        "expire_time": entry.expire_time.isoformat() if entry.expire_time else None,
        "is_expired": entry.is_expired(now_s),
    }


def _mode(text: str) -> int | None:
    if not text:
        return None
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise CommandError(f"--mode {text}: expected octal permissions such as 640", Exit.USAGE)
    return mode


def _group_id(text: str) -> int | None:
    if not text or (text.isascii() and text.isdecimal()):
        return int(text) if text else None
    try:
        return grp.getgrnam(text).gr_gid
    except KeyError:
        raise CommandError(f"--group {text}: unknown group; create it first", Exit.USAGE) from None

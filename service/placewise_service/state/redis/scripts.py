"""Loads the Lua scripts and runs them by digest. Knows nothing of their purpose."""

import hashlib
from functools import cache
from importlib import resources
from typing import Any, Protocol

from redis.exceptions import NoScriptError

from placewise_core.basics.frozen import frozen

Argument = str | bytes | int | float

# The parts of each script, in order; its own file comes last.
_INCLUDES = {
    "add_evidence": (),
    "add_sums": ("clock", "event", "rows", "outcomes"),
    "append_decisions": ("ring",),
    "choose_bundles": (),
    "copy_events": ("ring",),
    "commit_queue": ("clock", "event"),
    "delete_cluster": ("clock", "event"),
    "expire": ("clock", "event", "holdings", "lapsed"),
    "forget_profiles": ("clock", "event", "rows"),
    "forget_queue": ("clock", "event"),
    "last_events": (),
    "learn_overhead": ("clock", "event", "rows", "outcomes"),
    "link_jobs": (),
    "load": (),
    "look_up": ("clock",),
    "mark_exported": (),
    "profile_subtask": ("clock", "event", "rows"),
    "recall": ("clock", "answers"),
    "release": ("clock", "event", "holdings", "lapsed"),
    "remember": ("clock", "answers"),
    "report_jobs": ("clock", "event", "rows", "holdings", "fits", "lapsed"),
    "report_nodes": ("clock", "event"),
    "reserve": ("clock", "event", "holdings", "fits", "answers"),
    "update_settings": ("clock", "event"),
}
NAMES = tuple(_INCLUDES)


class Executor(Protocol):
    """The client's side of a script: a PipelinedConnection or a BoundedClient."""

    async def execute_command(self, *args: Any) -> Any: ...


@frozen
class Script:
    """One script: its text and the digest servers know it by."""

    name: str
    text: str
    sha: str

    def call(self, keys: tuple[str, ...], args: list[Argument]) -> tuple[Argument, ...]:
        """The command that runs it if the server knows it."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    async def run(self, client: Executor, keys: tuple[str, ...], args: list[Argument]) -> Any:
        """Runs it in one round trip; a server that does not know it yet (new, restarted, failed over) gets the text."""
        try:
            return await client.execute_command(*self.call(keys, args))
        except NoScriptError:
            return await client.execute_command("EVAL", self.text, len(keys), *keys, *args)


@cache
def script(name: str) -> Script:
    """A script by name. Raises KeyError for one that does not exist."""
    folder = resources.files("placewise_service.state.redis") / "lua"
    parts = [folder / "shared" / f"{part}.lua" for part in _INCLUDES[name]]
    text = "\n".join(part.read_text() for part in [*parts, folder / f"{name}.lua"])
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

"""slurmrestd as a few calls with typed records. Never decides anything; raises for answers that it cannot read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from placewise_slurm.http import JsonHttp, NoJsonError, TransportError
from placewise_slurm.records import SlurmJob, SlurmNode, SlurmStep
from placewise_slurm.versions import VERSIONS, Update, Version, read_layout, read_state, read_steps, read_time

# Slurm's own numbers (slurm_errno.h): the job id is not known; the job is not pending any more.
_INVALID_JOB_ID = 2017
_ALREADY_DONE = 2021
_GONE = frozenset({_INVALID_JOB_ID, _ALREADY_DONE})
# slurmrestd's own: slurmdbd knows no such job (yet).
_NOTHING_FOUND = 9003
_PATH = re.compile(r"/slurm/(v\d+\.\d+\.\d+)/(.+?)/?")
# Paths that not every version has.
_STATES = "jobs/state"
_LAYOUT = "resources/{job_id}"
_JOB = "job/{job_id}"
# All that slurmrestd shows unasked, but without asking slurmctld first whether the cluster is in a federation: that
# took a fifth (26.05) to a third (24.11) of an answer's time.
_LOCAL = "?flags=ALL&flags=DETAIL&flags=LOCAL"


class RefusedError(Exception):
    """slurmctld answered and refused. `number` is Slurm's error number, 0 without one."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number

    @property
    def is_gone(self) -> bool:
        """The job has ended, started or never was."""
        return self.number in _GONE


class NoVersionError(TransportError):
    """slurmrestd serves no REST version that the bridge speaks, or not the configured one."""


@dataclass(slots=True)
class SlurmRest:
    """Raises TransportError if slurmrestd or the slurmctld behind it cannot be reached."""

    http: JsonHttp
    version: Version = VERSIONS["v0.0.38"]
    wanted: str = ""
    """The only version to speak; empty: the newest that slurmrestd serves."""
    paths: frozenset[str] = field(default=frozenset(), init=False)
    _job_query: str = field(default="", init=False)
    _nodes: Sequence[SlurmNode] = field(default=(), init=False)
    _nodes_time_s: int = field(default=0, init=False)

    @property
    def has_states(self) -> bool:
        return _STATES in self.paths

    @property
    def has_layouts(self) -> bool:
        return _LAYOUT in self.paths

    async def agree(self) -> None:
        """Asks slurmrestd for its versions, and speaks the wanted one from now on. Raises NoVersionError."""
        try:
            reply = await self.http.request("GET", "/openapi/v3")
        except NoJsonError as error:
            if not self.wanted and error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise  # of a proxy while slurmrestd is away: which versions it serves is not known yet
            reply = {}
        served = _versions(reply)
        if self.wanted and not served:  # a proxy that lets the paths of slurmctld through alone
            served = {self.wanted: frozenset()}
        if not served:
            _check_reached(reply)
        spoken = [name for name in VERSIONS if name in served and self.wanted in ("", name)]
        if not spoken:
            raise NoVersionError(
                f"slurmrestd at {self.http.address} serves {', '.join(sorted(served)) or 'no version of /slurm'}; "
                f"the bridge speaks {self.wanted or ', '.join(VERSIONS)}: "
                "load another plugin (slurmrestd -s, -d) or set slurm.version"
            )
        self.version, self.paths = VERSIONS[spoken[-1]], served[spoken[-1]]
        self._job_query = _LOCAL if _takes_flags(reply, f"/slurm/{self.version.name}/{_JOB}") else ""
        self._nodes, self._nodes_time_s = (), 0

    async def jobs(self) -> list[SlurmJob]:
        reply = await self._get("jobs")
        return [self.version.job(raw) for raw in reply.get("jobs") or ()]

    async def states(self) -> dict[str, str]:
        """State of every job by its name: "7", "8_3" or "8_[4-9]" of an array, "9+1" of a heterogeneous job.

        For slurmrestd that `has_states`.
        """
        reply = await self._get(f"{_STATES}/")
        return dict(read_state(raw) for raw in reply.get("jobs") or ())

    async def nodes(self) -> Sequence[SlurmNode]:
        """All nodes; the same object as before if none has changed."""
        since = f"?update_time={self._nodes_time_s}" if self._nodes_time_s else ""
        reply = await self._get(f"nodes{since}")
        if "nodes" in reply:
            self._nodes_time_s = read_time(reply.get("last_update"))
            self._nodes = [self.version.node(raw) for raw in reply["nodes"] or ()]
        return self._nodes

    async def job(self, job_id: int) -> SlurmJob | None:
        """One job, or None if Slurm does not know it."""
        return next((job for job in await self.group(job_id) if job.id == job_id), None)

    async def group(self, job_id: int) -> list[SlurmJob]:
        """A job, with all others of its array or of its heterogeneous job; none if Slurm does not know it."""
        try:
            reply = await self._get(f"job/{job_id}{self._job_query}")
        except RefusedError as error:
            if error.is_gone:
                return []
            raise TransportError(str(error)) from error
        return [self.version.job(raw) for raw in reply.get("jobs") or ()]

    async def layout(self, job_id: int) -> dict[str, tuple[int, ...]]:
        """GPU indices of a running job by node; none if it does not run. For slurmrestd that `has_layouts`."""
        try:
            reply = await self._get(f"resources/{job_id}")
        except RefusedError:
            return {}
        return read_layout(reply)

    async def update(self, job_id: int, change: Update) -> None:
        """One update of a job. Raises RefusedError; changes made before the refusal stay."""
        path = f"/slurm/{self.version.name}/job/{job_id}"
        _check(await self.http.request("POST", path, self.version.update(change)))

    async def _get(self, what: str) -> dict[str, Any]:
        """The answer; empty if nothing has changed."""
        reply = await self.http.request("GET", f"/slurm/{self.version.name}/{what}")
        if reply is None:
            return {}
        if not isinstance(reply, dict):
            raise TransportError(f"slurmrestd's answer to {what} is not a JSON object")
        if what.startswith(("job/", "resources/")):
            _check(reply)
        else:
            _check_reached(reply)
        return reply


@dataclass(slots=True)
class SlurmAccounting:
    """slurmdbd behind slurmrestd. An answer takes a third of a second: give it an `http` of its own.

    `rest` tells the version.
    """

    http: JsonHttp
    rest: SlurmRest

    async def steps(self, job_id: int) -> list[SlurmStep]:
        """Steps of a job that run or have ended; those of another cluster's job of that number are among them.

        Raises TransportError if slurmrestd or the slurmdbd behind it cannot be reached.
        """
        reply = await self.http.request("GET", f"/slurmdb/{self.rest.version.name}/job/{job_id}")
        try:
            _check(reply)
        except RefusedError as error:
            if error.number == _NOTHING_FOUND:
                return []
            raise TransportError(str(error)) from error
        if not isinstance(reply, dict) or "jobs" not in reply:
            raise TransportError("slurmrestd does not serve /slurmdb: load its plugin for slurmdbd")
        try:
            return [step for job in reply["jobs"] or () for step in read_steps(job)]
        except (ValueError, TypeError, AttributeError) as error:
            raise TransportError(f"the steps of job {job_id} cannot be read: {error}") from error


def _versions(reply: Any) -> Mapping[str, frozenset[str]]:
    """The paths below /slurm by version, of slurmrestd's own OpenAPI document."""
    paths = reply.get("paths") if isinstance(reply, dict) else None
    served: dict[str, set[str]] = {}
    for path in paths or ():
        if match := _PATH.fullmatch(path):
            served.setdefault(match[1], set()).add(match[2])
    return {name: frozenset(found) for name, found in served.items()}


def _takes_flags(reply: Any, path: str) -> bool:
    """Whether a GET of that path has the parameter `flags`, by slurmrestd's own OpenAPI document."""
    try:
        return any(parameter["name"] == "flags" for parameter in reply["paths"][path]["get"]["parameters"])
    except (KeyError, TypeError):
        return False


def _check_reached(reply: Any) -> None:
    """A list that is refused means that slurmrestd cannot reach slurmctld, or may not. Raises TransportError."""
    try:
        _check(reply)
    except RefusedError as error:
        raise TransportError(str(error)) from error


def _check(reply: Any) -> None:
    """Slurm reports failures in `errors`, also under status 200."""
    errors: Sequence[Any] = (reply.get("errors") or ()) if isinstance(reply, dict) else ()
    for error in errors:
        number = int(error.get("error_number") or error.get("errno") or error.get("error_code") or 0)
        text = str(error.get("description") or error.get("error") or error)
        raise RefusedError(number, text)

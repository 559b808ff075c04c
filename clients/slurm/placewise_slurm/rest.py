"""slurmrestd as four calls with typed records. Never decides anything; raises for answers that it cannot read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from placewise_slurm.http import JsonHttp, TransportError
from placewise_slurm.records import SlurmJob, SlurmNode, SlurmStep
from placewise_slurm.versions import Update, Version, read_steps

# Slurm's own numbers (slurm_errno.h): the job id is not known; the job is not pending any more.
_INVALID_JOB_ID = 2017
_ALREADY_DONE = 2021
_GONE = frozenset({_INVALID_JOB_ID, _ALREADY_DONE})
# slurmrestd's own: slurmdbd knows no such job (yet).
_NOTHING_FOUND = 9003


class RefusedError(Exception):
    """slurmctld answered and refused. `number` is Slurm's error number, 0 without one."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number

    @property
    def is_gone(self) -> bool:
        """The job has ended, started or never was."""
        return self.number in _GONE


@dataclass(slots=True)
class SlurmRest:
    """Raises TransportError if slurmrestd or the slurmctld behind it cannot be reached."""

    http: JsonHttp
    version: Version

    async def jobs(self) -> list[SlurmJob]:
        reply = await self._get("jobs")
        return [self.version.job(raw) for raw in reply.get("jobs") or ()]

    async def nodes(self) -> list[SlurmNode]:
        reply = await self._get("nodes")
        return [self.version.node(raw) for raw in reply.get("nodes") or ()]

    async def job(self, job_id: int) -> SlurmJob | None:
        """One job, or None if Slurm does not know it."""
        try:
            reply = await self._get(f"job/{job_id}")
        except RefusedError as error:
            if error.is_gone:
                return None
            raise TransportError(str(error)) from error
        jobs = [self.version.job(raw) for raw in reply.get("jobs") or ()]
        return next((job for job in jobs if job.id == job_id), None)

    async def update(self, job_id: int, change: Update) -> None:
        """One update of a job. Raises RefusedError; changes made before the refusal stay."""
        path = f"/slurm/{self.version.name}/job/{job_id}"
        _check(await self.http.request("POST", path, self.version.update(change)))

    async def _get(self, what: str) -> dict[str, Any]:
        reply = await self.http.request("GET", f"/slurm/{self.version.name}/{what}")
        if not isinstance(reply, dict):
            raise TransportError(f"slurmrestd's answer to {what} is not a JSON object")
        try:
            _check(reply)
        except RefusedError as error:
            if what.startswith("job/"):
                raise
            # A list that is refused means that slurmrestd cannot reach slurmctld, or may not.
            raise TransportError(str(error)) from error
        return reply


@dataclass(slots=True)
class SlurmAccounting:
    """slurmdbd behind slurmrestd. An answer takes a third of a second: give it an `http` of its own."""

    http: JsonHttp
    version: Version

    async def steps(self, job_id: int) -> list[SlurmStep]:
        """Steps of a job that run or have ended; those of another cluster's job of that number are among them.

        Raises TransportError if slurmrestd or the slurmdbd behind it cannot be reached.
        """
        reply = await self.http.request("GET", f"/slurmdb/{self.version.name}/job/{job_id}")
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


def _check(reply: Any) -> None:
    """Slurm reports failures in `errors`, also under status 200."""
    errors: Sequence[Any] = (reply.get("errors") or ()) if isinstance(reply, dict) else ()
    for error in errors:
        number = int(error.get("error_number") or error.get("errno") or error.get("error_code") or 0)
        text = str(error.get("description") or error.get("error") or error)
        raise RefusedError(number, text)

"""slurmrestd and the slurmctld behind it, in memory: HTTP on a unix socket with the JSON of v0.0.38 or of v0.0.40+.

Only the bridge's calls. Important behaviour was seen on the real thing: `errors` under status 200, `nodes` only as
a string, an empty list in `required_nodes` that changes nothing, more nodes listed than asked for means BadConstraints,
a node list on a running job shrinks it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placewise.v1.cluster_pb2 import Node
from placewise_client.adapter.native import End, Stage
from placewise_slurm.http import JsonHttp
from placewise_slurm.pokes import PokeListener
from placewise_slurm.rest import SlurmRest
from placewise_slurm.scheduler import SlurmScheduler
from placewise_slurm.translate import stage
from placewise_slurm.versions import VERSIONS

END_STATES = {End.FINISHED: "COMPLETED", End.FAILED: "FAILED", End.CANCELLED: "CANCELLED"}


@dataclass
class FakeJob:
    """One job record of slurmctld."""

    id: int
    min_nodes: int
    gpus: int
    is_marked: bool = True
    is_held: bool = True
    state: str = "PENDING"
    max_nodes: int = 0
    required: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    gres: str = ""
    reason: str = "JobHeldUser"
    reason_text: str = ""
    restarts: int = 0
    was_shrunk: bool = False
    aside: str = ""
    comment: str = ""
    user: str = "ada"
    steps: dict[str, str] = field(default_factory=dict)
    """State by step, as slurmdbd has it; all of them on all nodes of the job."""
    begin_time_s: int = 0
    start_time_s: int = 1_800_000_001
    end_time_s: int = 1_800_000_009
    step_end_time_s: int = 1_800_000_009

    @property
    def key(self) -> str:
        return f"{self.id}.r{self.restarts}" if self.restarts else str(self.id)


@dataclass
class FakeSlurm:
    """The cluster, and the `Host` of the conformance suite. `start` and `stop` the server around a test."""

    socket: Path
    version: str = "v0.0.38"
    jobs: dict[int, FakeJob] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    gpus: int = 8
    types: tuple[str, ...] = ()
    changes: list[tuple[str, str]] = field(default_factory=list)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    pokes: PokeListener = field(default_factory=PokeListener)
    refuse: list[int] = field(default_factory=list)
    """The next updates are refused with these Slurm error numbers."""
    answers_to_lose: int = 0
    """So many of the next updates are carried out, and the connection is then cut off."""
    is_controller_up: bool = True
    is_accounting_up: bool = True
    served: list[str] | None = None
    """Versions that its OpenAPI document lists; None: its own."""
    user: str = "ada"
    is_watching: bool = False
    """The submit hook holds nothing, as in a dry run."""
    refuse_all: bool = False
    has_states: bool = False
    takes_flags: bool = False
    """Whether it serves `jobs/state`, and `resources/{job_id}`: releases of today do."""
    nodes_time_s: int = 0
    """When a node changed last; with 0 every look sends all."""
    _server: asyncio.Server | None = None
    _native: SlurmScheduler | None = None
    _handlers: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> FakeSlurm:
        self._server = await asyncio.start_unix_server(self._serve, self.socket)
        return self

    async def restart_bridge(self) -> None:
        """The native layer loses its memory, too."""
        await self.native.rest.http.close()
        self._native = None

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.native.rest.http.close()
        for handler in list(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    @property
    def native(self) -> SlurmScheduler:
        """A new one after `restart_bridge`."""
        if self._native is None:
            rest = SlurmRest(JsonHttp(f"unix:{self.socket}"), wanted=self.version)
            self._native = SlurmScheduler(rest, self.pokes)
        return self._native

    # --- Host ---------------------------------------------------------------------------------------------------------

    async def add_nodes(self, count: int, gpus: int) -> None:
        self.gpus = gpus
        self.nodes_time_s += bool(self.nodes and self.nodes_time_s)
        self.nodes |= {f"n{number}": "idle" for number in range(1, count + 1)}

    async def submit(
        self, tasks: int, gpus: int, *, is_managed: bool = True, max_nodes: int = 0, is_announced: bool = True
    ) -> str:
        job = FakeJob(
            len(self.jobs) + 1, tasks, gpus, is_managed, is_managed and not self.is_watching, max_nodes=max_nodes
        )
        request = f"gres:gpu:{gpus}"
        # The submit hook's work for typed GPUs.
        job.gres, job.aside = ("", f" gres={request}") if self.types else (request, "")
        self.jobs[job.id] = job
        if is_announced:
            self.announce(is_managed=is_managed)
        return str(job.id)

    def announce(self, *, is_managed: bool = True) -> None:
        """The submit hook's marks on a new job."""
        self.pokes.datagram_received(b"submit" if is_managed else b"other", ("127.0.0.1", 1))

    async def occupy(self, node: str, gpus: int) -> None:
        """A job of somebody else runs there from now on."""
        job = self._job(await self.submit(1, gpus, is_managed=False))
        job.state, job.nodes, job.reason = "RUNNING", [node], "None"

    def refuse_submission(self) -> None:
        """A job that Slurm refuses after the submit hook has seen it: it gets no number."""
        self.announce(is_managed=False)

    async def run_scheduler(self) -> None:
        """Starts every pending job that is not held and whose nodes are free."""
        for job in self.jobs.values():
            if job.state == "PENDING" and not job.is_held and (nodes := self._choice(job)):
                job.state, job.nodes, job.reason = "RUNNING", nodes, "None"
                self.pokes.datagram_received(f"start {job.id}".encode(), ("127.0.0.1", 1))

    async def end(self, key: str, end: End) -> None:
        job = self._job(key)
        job.state = END_STATES[end]
        self.pokes.datagram_received(f"end {job.id} {job.state} - 0 0 0:0".encode(), ("127.0.0.1", 1))

    async def start_at(self, key: str, nodes: Sequence[str]) -> None:
        """Its user frees it, or the administrator does, and Slurm starts it there."""
        job = self._job(key)
        job.state, job.nodes, job.reason, job.is_held = "RUNNING", list(nodes), "None", False
        self.pokes.datagram_received(f"start {job.id}".encode(), ("127.0.0.1", 1))

    async def shrink(self, key: str, tasks: int) -> None:
        self._job(key).min_nodes = tasks

    async def requeue(self, key: str) -> str:
        """A node failed: Slurm queues the job again, not held, with its node list."""
        job = self._job(key)
        job.state, job.nodes, job.restarts, job.reason = "PENDING", [], job.restarts + 1, "None"
        return job.key

    async def forget(self, key: str) -> None:
        del self.jobs[self._job(key).id]

    async def show_unreadable(self) -> None:
        """The brackets of its nodes do not match."""
        job = self._job(await self.submit(1, 1, is_managed=False))
        job.state, job.nodes = "RUNNING", ["n["]

    def refuse_change(self) -> None:
        self.refuse.append(2014)

    def lose_answer(self) -> None:
        self.answers_to_lose = 2  # a kept connection that breaks is tried once more

    async def set_node_state(self, node: str, state: Node.State) -> None:
        self.nodes[node] = {Node.READY: "idle", Node.DRAINING: "drained", Node.DOWN: "down"}[state]
        self.nodes_time_s += bool(self.nodes_time_s)

    async def lose_node(self, node: str) -> None:
        del self.nodes[node]
        self.nodes_time_s += bool(self.nodes_time_s)

    async def set_reachable(self, is_reachable: bool) -> None:
        self.is_controller_up = is_reachable

    async def where(self, key: str) -> list[str]:
        job = self._job(key)
        return sorted(job.nodes) if job.state == "RUNNING" else []

    async def stage(self, key: str) -> Stage:
        now = stage(VERSIONS[self.version].job(self._job_json(self._job(key))))
        return Stage.RELEASED if now is None else now

    # --- scheduling ---------------------------------------------------------------------------------------------------

    def _job(self, key: str) -> FakeJob:
        return self.jobs[int(key.partition(".")[0])]

    def _is_free(self, node: str, job: FakeJob) -> bool:
        running = (other for other in self.jobs.values() if other.state == "RUNNING" and node in other.nodes)
        return self.nodes.get(node) == "idle" and sum(other.gpus for other in running) + job.gpus <= self.gpus

    def _choice(self, job: FakeJob) -> list[str]:
        if len(job.required) > max(job.min_nodes, job.max_nodes):
            job.is_held, job.reason = True, "BadConstraints"
            return []
        nodes = job.required or [node for node in sorted(self.nodes) if self._is_free(node, job)][: job.min_nodes]
        return nodes if len(nodes) >= job.min_nodes and all(self._is_free(node, job) for node in nodes) else []

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                length = next((int(x[15:]) for x in head.split("\r\n") if x.lower().startswith("content-length:")), 0)
                body = json.loads(await reader.readexactly(length)) if length else None
                self.requests.append((method, path, body))
                answer = self._answer(method, path, body)
                status, payload = b"304 Not Modified", b""
                if answer is not None:
                    status, payload = b"200 OK", json.dumps({"errors": [], **answer}).encode()
                if method == "POST" and self.answers_to_lose:
                    self.answers_to_lose -= 1
                    return
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(payload)) + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._handlers.discard(handler)
            writer.close()

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """None: nothing has changed."""
        if self.refuse_all:
            return _error(1007, "Authentication failure")
        if path == "/openapi/v3":
            return {"paths": {path: self._document(path) for path in self._paths()}}
        if path.startswith(accounting := f"/slurmdb/{self.version}/job/"):
            return self._accounting(int(path.removeprefix(accounting)))
        prefix = f"/slurm/{self.version}/"
        if not path.startswith(prefix):
            return _error(9001, "unknown path")
        if not self.is_controller_up:
            return _error(1800, "Unable to contact slurm controller (connect failure)")
        what = path.removeprefix(prefix)
        if what.startswith("job/") and self.takes_flags:
            what = what.partition("?")[0]
        if what == "jobs":
            return {"jobs": [self._job_json(job) for job in self.jobs.values()]}
        if what.startswith("nodes"):
            return self._nodes_json(int(what.partition("?update_time=")[2] or 0))
        if what == "jobs/state/" and self.has_states:
            return {"jobs": [{"job_id": str(job.id), "state": [job.state]} for job in self.jobs.values()]}
        job = self.jobs.get(int(what.partition("/")[2]))
        if job is None:
            return _error(2017, "Invalid job id specified")
        if what.startswith("resources/"):
            return {"nodes": [self._layout_json(job, node) for node in job.nodes]}
        if method == "GET":
            return {"jobs": [self._job_json(job)]}
        return self._update(job, body or {})

    def _document(self, path: str) -> dict[str, Any]:
        names = ["job_id", "update_time", *(["flags"] if self.takes_flags else [])]
        parameters = [{"name": name} for name in names]
        return {"get": {"parameters": parameters}} if path.endswith("job/{job_id}") else {}

    def _paths(self) -> list[str]:
        names = ["jobs/", "nodes/", "job/{job_id}", *(["jobs/state/", "resources/{job_id}"] if self.has_states else [])]
        versions = [self.version] if self.served is None else self.served
        return [f"/slurm/{version}/{name}" for version in versions for name in names]

    def _accounting(self, job_id: int) -> dict[str, Any]:
        if not self.is_accounting_up:
            return _error(7000, "Failed connecting to slurmdbd")
        job = self.jobs.get(job_id)
        if job is None:
            return {**_error(9003, "Nothing found"), "jobs": []}
        return {"jobs": [{"cluster": "", "steps": [self._step_json(job, step) for step in job.steps]}]}

    def _update(self, job: FakeJob, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.refuse:
            return _error(self.refuse.pop(0), "refused")
        listed = body.get("nodelist", body.get("required_nodes"))
        names = [name for name in (listed.split(",") if isinstance(listed, str) else listed or ()) if name]
        if set(names) - self.nodes.keys():
            return _error(2018, "Invalid node name specified")
        if job.state != "PENDING":
            job.was_shrunk |= bool(names) and job.state == "RUNNING"
            return _error(2021, "Job is no longer pending execution")
        if listed is not None and listed != []:
            job.required = names
        if isinstance(body.get("nodes"), str):
            job.min_nodes = job.max_nodes = int(body["nodes"].split("-")[0])
        if "minimum_nodes" in body:
            job.min_nodes, job.max_nodes = body["minimum_nodes"], body["maximum_nodes"]
        self._update_gres(job, body)
        job.is_held = bool(body["hold"])
        verb = "withdraw" if job.is_held else "apply" if names else "release"
        self.changes.append((verb, job.key))
        return {}

    def _update_gres(self, job: FakeJob, body: Mapping[str, Any]) -> None:
        asked = body.get("gres") or body.get("tres_per_node")
        if asked:
            job.gres = asked
            job.gpus = sum(int(entry.rpartition(":")[2]) for entry in asked.split(","))

    # --- JSON ---------------------------------------------------------------------------------------------------------

    def _wrap(self, number: int) -> Any:
        return number if self.version == "v0.0.38" else {"set": True, "infinite": False, "number": number}

    def _job_json(self, job: FakeJob) -> dict[str, Any]:
        is_plain = self.version == "v0.0.38"
        has_ended = job.state in END_STATES.values()
        return {
            "job_id": job.id,
            "job_state": job.state if is_plain else [job.state],
            "state_reason": job.reason,
            "state_description": job.reason_text,
            "priority": self._wrap(0 if job.is_held else 4294901750),
            "partition": "main",
            "user_name": job.user,
            "comment": job.comment,
            "admin_comment": f"{'placewise:watched' if self.is_watching else 'placewise:held'}{job.aside}"
            if job.is_marked
            else "",
            "node_count": self._wrap(job.min_nodes),
            "max_nodes": self._wrap(job.max_nodes),
            "cpus": self._wrap(job.min_nodes),
            "minimum_cpus_per_node": self._wrap(1),
            "memory_per_node": None if is_plain else {"set": False, "infinite": False, "number": 0},
            "tres_per_node": job.gres if is_plain else job.gres.replace("gres:", "gres/"),
            "nodes": ",".join(job.nodes),
            "required_nodes": ",".join(job.required),
            "gres_detail": [f"gpu:{job.gpus}(IDX:0-{job.gpus - 1})" for _ in job.nodes] if not has_ended else [],
            "submit_time": self._wrap(1_800_000_000),
            "eligible_time": self._wrap(job.begin_time_s),
            "start_time": self._wrap(job.start_time_s if job.nodes else 0),
            "end_time": self._wrap(job.end_time_s if has_ended else 0),
            "restart_cnt": job.restarts,
            "exit_code": 0 if is_plain else {"status": ["SUCCESS"], "return_code": self._wrap(0)},
        }

    def _step_json(self, job: FakeJob, step: str) -> dict[str, Any]:
        state, is_plain = job.steps[step], self.version == "v0.0.38"
        return {
            "step": {"id": step if is_plain else f"{job.id}.{step}"},
            "state": state if is_plain else [state],
            "nodes": {"list": job.nodes},
            "time": {
                "start": self._wrap(job.start_time_s),
                "end": self._wrap(0 if state == "RUNNING" else job.step_end_time_s),
            },
        }

    def _nodes_json(self, since_s: int) -> dict[str, Any] | None:
        if 0 < self.nodes_time_s <= since_s:
            return None
        return {"nodes": [self._node_json(name) for name in self.nodes], "last_update": self._wrap(self.nodes_time_s)}

    def _layout_json(self, job: FakeJob, node: str) -> dict[str, Any]:
        return {"node": node, "gres": [{"name": "gpu", "count": str(job.gpus), "index": f"0-{job.gpus - 1}"}]}

    def _node_json(self, name: str) -> dict[str, Any]:
        state = self.nodes[name]
        is_plain = self.version == "v0.0.38"
        types = [f"gpu:{kind}:1" for kind in self.types] or [f"gpu:{self.gpus}"]
        return {
            "name": name,
            "state": state if is_plain else [state.upper()],
            "cpus": 64,
            "real_memory": 65536,
            "gres": ",".join(types),
            "partitions": ["main"],
            "cpu_load": 0,
            **({"free_memory": 60000} if is_plain else {"free_mem": self._wrap(60000)}),
        }


def _error(number: int, text: str) -> dict[str, Any]:
    return {"errors": [{"error_number": number, "error": text, "description": text}]}

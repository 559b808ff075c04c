"""The stage of the adapters' conformance suite: a host, the service, a clock, and the adapter between them.

The host is the scheduler (a fake one with the real wire format, or a real one) with the adapter's native layer on it;
the service is a real gRPC server. Time is a manual clock, passes are called one by one: nothing here sleeps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import pytest
from tests.fakes.servers.oracle import OracleServer, SmallService
from tests.fakes.servers.oracle_http import OracleHttpServer

from placewise.v1.cluster_pb2 import GetClusterRequest, JobEvent, Node
from placewise_client import AsyncClient, RetryPolicy
from placewise_client.adapter.loop import AdapterLoop
from placewise_client.adapter.native import AdapterSettings, End, NativeScheduler, Stage

_RECONNECT = RetryPolicy(attempts=100, longest_delay_s=0.1)
# The budget is generous so that a busy machine does not turn decisions into failures; one test shortens it.
SETTINGS = AdapterSettings(
    cluster="conformance", release_after_s=5.0, start_timeout_s=20.0, retry_s=1.0, decide_budget_s=10.0
)

Server = OracleServer | OracleHttpServer


class Host(Protocol):
    """A scheduler under test, seen from outside the adapter. Every node has `gpus` GPUs, every task its own node."""

    changes: list[tuple[str, str]]
    """("apply" | "release" | "withdraw", key) for everything that was changed on the host."""
    user: str
    """Whose jobs these are, in the host's own word."""

    @property
    def native(self) -> NativeScheduler: ...
    async def add_nodes(self, count: int, gpus: int) -> None: ...
    async def submit(self, tasks: int, gpus: int, *, is_managed: bool = True) -> str: ...
    async def occupy(self, node: str, gpus: int) -> None: ...
    async def run_scheduler(self) -> None: ...
    async def end(self, key: str, end: End) -> None: ...
    async def start_at(self, key: str, nodes: Sequence[str]) -> None:
        """The host starts it there, also against the decision."""

    async def shrink(self, key: str, tasks: int) -> None:
        """Its user makes it smaller while it waits."""

    async def requeue(self, key: str) -> str:
        """The host ends a running gang and queues it again. Returns its new key."""

    async def forget(self, key: str) -> None:
        """The host does not show the gang any more, and says nothing of an end."""

    async def show_unreadable(self) -> None:
        """The host shows a job that holds values which cannot be."""

    def refuse_change(self) -> None:
        """The next change of a job is refused."""

    def lose_answer(self) -> None:
        """The next change of a job is made, and its answer is lost."""

    async def set_node_state(self, node: str, state: Node.State) -> None: ...
    async def lose_node(self, node: str) -> None: ...
    async def set_reachable(self, is_reachable: bool) -> None: ...
    async def where(self, key: str) -> list[str]: ...
    async def stage(self, key: str) -> Stage: ...


class Clock:
    """Seconds that move when a test moves them."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class World:
    """Host, service, clock and the adapter between them."""

    def __init__(self, host: Host, server: Server, clock: Clock) -> None:
        self.host = host
        self.server = server
        self.clock = clock
        self.clients: list[AsyncClient] = []
        self.loop = self.start_adapter()

    @property
    def oracle(self) -> SmallService:
        return self.server.oracle

    def start_adapter(self, settings: AdapterSettings = SETTINGS) -> AdapterLoop:
        """A new life of the adapter: nothing is handed over."""
        client = AsyncClient(self.server.target)
        self.clients.append(client)
        self.loop = AdapterLoop(self.host.native, client, settings, clock=self.clock, now=self.clock)
        return self.loop

    async def step(self, *, full: bool = True) -> None:
        """The adapter passes, the host schedules, the adapter sees the result."""
        await self.loop.run_pass(full)
        await self.host.run_scheduler()
        await self.loop.run_pass(full)

    async def restart_service(self) -> None:
        """Returns when the adapter's own connection is up again: the test is not about gRPC's dialling."""
        await self.server.start()
        await self.loop.client.get_cluster(GetClusterRequest(cluster="conformance"), retry=_RECONNECT)

    def asked(self, name: str) -> list[Any]:
        """Requests of one kind so far, in order; a Place inside AdmitOrWait counts as one, too."""
        return [request for called, request in self.oracle.calls if called == name]

    def decided_nodes(self, key: str) -> list[str]:
        return sorted(assignment.node for assignment in self.oracle.decided[key][-1])

    def events(self, key: str) -> list[JobEvent]:
        return [event for event in self.oracle.events if event.job_id == key]

    def reasons(self, key: str, kind: JobEvent.Kind) -> list[str]:
        """Of all events of this kind, also those before a withdrawn placement."""
        return [event.reason for event in self.oracle.reported if (event.job_id, event.kind) == (key, kind)]

    def kinds(self, key: str) -> list[str]:
        return [JobEvent.Kind.Name(event.kind) for event in self.events(key)]


class AdapterStage:
    """Fixtures of a suite. Subclasses define `host`.

    `not_here` names cases that make no sense for a host, or that its adapter does not pass: each with the reason.
    """

    not_here: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture(autouse=True)
    def is_here(self, request: pytest.FixtureRequest) -> None:
        """Skips a case with the reason for which this adapter has none."""
        if reason := self.not_here.get(request.node.originalname):
            pytest.skip(reason)

    @pytest.fixture
    async def host(self) -> Host:
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture(params=[OracleServer, OracleHttpServer])
    async def server(self, request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Server]:
        """The service, however it is asked."""
        server = await request.param(SmallService(now=clock)).start()
        yield server
        await server.stop()

    @pytest.fixture
    async def world(self, host: Host, server: Server, clock: Clock) -> AsyncIterator[World]:
        world = World(host, server, clock)
        await host.add_nodes(4, 8)
        yield world
        for client in world.clients:
            await client.close()

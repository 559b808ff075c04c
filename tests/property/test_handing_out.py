"""Two replicas, expiry, late and repeated words, in any order: the service never hands out one GPU twice.

The model knows the answers to callers. A job has a *claim* on GPUs from the answer PLACED until its
reservation expires, its host says that it ended, or it gets others; from when its host says that it runs, the
claim has no end. A GPU that comes to a job new must be claimed by no other job. (A host that starts a job after its
reservation has expired is right in any case: from then on the job claims its GPUs beside others that have them.)
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import cache
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_place
from tests.fakes.quick.examples import examples

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.decision import JobDecision, Outcome
from placewise_core.domain.errors import StaleSnapshotError
from placewise_core.domain.job import JobId
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.engine.reporting.reports import ReportOutcome
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry

Gpu = tuple[str, int]
NAMES = ["a", "b", "c"]
TTL_S = 5.0
CLOCK = ManualClock(1_000_000.0)  # of all examples: it only goes on

replicas = st.integers(0, 1)
names = st.sampled_from(NAMES)
some_names = st.lists(names, min_size=1, max_size=2, unique=True)


@cache
def policies() -> Engine:
    """Built once: replicas are twins of it."""
    return build_engine(MemoryStore(CLOCK), CLOCK, Telemetry(), EngineOptions())


class HandingOut(RuleBasedStateMachine):
    """Three jobs of one GPU each, or two, on two GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = MemoryStore(CLOCK)
        self.engines = [policies().twin(self.store, Telemetry()) for _ in range(2)]
        self.claims: dict[str, tuple[frozenset[Gpu], float]] = {}  # until when; 0: without end
        self.ended: set[str] = set()
        self.questions: dict[str, PlaceCommand] = {}

    def run(self, act: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(act)

    @initialize()
    def start(self) -> None:
        self.run(self.engines[0].report_nodes(CLUSTER, [make_node("n0", 2)], full=True))
        self.run(self.engines[1].get_cluster(CLUSTER))

    def teardown(self) -> None:
        for engine in self.engines:
            self.run(engine.close())
        self.loop.close()

    # -- what happens -------------------------------------------------------------------------------------------

    @rule(
        replica=replicas, asked=st.lists(names, min_size=1, max_size=2, unique=True), gpus=st.sampled_from([1.0, 2.0])
    )
    def ask(self, replica: int, asked: list[str], gpus: float) -> None:
        jobs = tuple(make_job(name, gpus=gpus) for name in asked)
        request_id = f"q{len(self.questions)}"
        self.questions[request_id] = PlaceCommand(CLUSTER, jobs, request_id=request_id, reserve_ttl_s=TTL_S)
        self.reported(replica, self.questions[request_id])

    @rule(replica=replicas, which=st.integers(0, 20), has_id=st.booleans())
    def ask_again(self, replica: int, which: int, has_id: bool) -> None:
        """The same question: as a repeat, or by a caller that gives no id."""
        if not self.questions:
            return
        command = list(self.questions.values())[which % len(self.questions)]
        anonymous = PlaceCommand(CLUSTER, command.jobs, reserve_ttl_s=TTL_S)
        self.reported(replica, command if has_id else anonymous)

    @rule(seconds=st.sampled_from([1.0, TTL_S - 1.0, TTL_S, TTL_S + 1.0]))
    def time_passes(self, seconds: float) -> None:
        CLOCK.advance(seconds)

    @rule()
    def reservations_expire(self) -> None:
        """Another process sweeps; these replicas hear of it when they come to it."""
        self.run(self.store.expire(CLUSTER))

    @rule()
    def replicas_catch_up(self) -> None:
        self.run(self.follow())

    async def follow(self) -> None:
        records, _ = await self.store.load(CLUSTER)
        for engine in self.engines:
            while (await engine.get_cluster(CLUSTER)).view.version < records.version:  # noqa: ASYNC110
                await asyncio.sleep(0)

    @rule(replica=replicas, name=names, kind=st.sampled_from([JobEventKind.STARTED, JobEventKind.PROGRESS]))
    def host_starts(self, replica: int, name: str, kind: JobEventKind) -> None:
        outcome = self.printed(replica, name, kind)
        if not outcome.applied:
            return
        loaded = self.run(self.store.load(CLUSTER))
        held = next(job for job in loaded[0].jobs if job.id == name)
        gpus = gpus_of(held)
        shared = {gpu for other in self.live() if other != name for gpu in self.claims[other][0] & gpus}
        if self.claims.get(name, (frozenset(), 0.0))[0] == gpus and name in self.live():
            assert not outcome.overcommits or shared, "only what overlaps is a problem"
        on_disk = {gpu for other in loaded[0].jobs if other.id != name for gpu in gpus_of(other)} & gpus
        assert bool(on_disk) <= bool(outcome.overcommits) or name in self.live(), "an overlap that begins is named"
        self.claims[name] = (gpus, 0.0)

    @rule(replica=replicas, name=names, kind=st.sampled_from([JobEventKind.FINISHED, JobEventKind.CANCELLED]))
    def host_ends(self, replica: int, name: str, kind: JobEventKind) -> None:
        self.printed(replica, name, kind)
        self.claims.pop(name, None)
        self.ended.add(name)

    # -- invariants ---------------------------------------------------------------------------------------------

    def printed(self, replica: int, name: str, kind: JobEventKind) -> ReportOutcome:
        outcome: ReportOutcome = self.run(
            self.engines[replica].report_job_events(CLUSTER, [JobEvent(JobId(name), kind)])
        )
        return outcome

    def live(self) -> list[str]:
        now_s = CLOCK.now_s()
        return [name for name, (_, until_s) in self.claims.items() if not until_s or until_s > now_s]

    def reported(self, replica: int, command: PlaceCommand) -> None:
        try:
            decision = self.run(ask_place(self.engines[replica], command))
        except StaleSnapshotError:  # an honest refusal
            return
        placed = [answer for answer in decision.decisions if answer.outcome is Outcome.PLACED]
        self.handed_out([answer for answer in placed if not self.is_record(answer, decision.meta.is_repeated)])

    def is_record(self, answer: JobDecision, is_repeated: bool) -> bool:
        """True for an ended job's old placement, in the answer to a repeat: its host has reported the end."""
        name = str(answer.job_id)
        is_past = is_repeated or 0 < answer.expire_time_s <= CLOCK.now_s()
        return is_past and name in self.ended and name not in self.live()

    def handed_out(self, placed: Sequence[JobDecision]) -> None:
        """One answer, as a whole: it may move a reservation of one of its jobs out of the way of another."""
        now_s, live = CLOCK.now_s(), self.live()
        names = [str(answer.job_id) for answer in placed]
        before = {name: self.claims[name][0] if name in live else frozenset() for name in names}
        others = {name: self.claims[name][0] for name in live if name not in names}
        for name, answer in zip(names, placed, strict=True):
            gpus = gpus_of(answer)
            for other, claimed in others.items():
                twice = (gpus - before[name]) & claimed
                assert not twice, f"{name} is given {sorted(gpus)}, of which {other} has {sorted(twice)}"
            assert not answer.expire_time_s or answer.expire_time_s > now_s, "a reservation that is over"
            others[name] = gpus - before[name]
            self.claims[name] = (gpus, answer.expire_time_s)
            self.ended.discard(name)


def gpus_of(held: RunningJob | JobDecision) -> frozenset[Gpu]:
    return frozenset((str(a.node), g) for a in held.assignments for g in a.gpu_indices)


TestHandingOut = HandingOut.TestCase
TestHandingOut.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)

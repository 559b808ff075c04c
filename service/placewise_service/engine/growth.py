"""What callers can make in any number, and what bounds it: clusters, queues, rows of profiles. Forgets the idle."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.errors import InvalidRequestError, NotFoundError, StateUnavailableError
from placewise_core.domain.job import Job
from placewise_core.speed.co_runs import row_kind
from placewise_core.view.view import ClusterView
from placewise_service.engine.parts import EngineParts
from placewise_service.engine.views import LiveView

V = TypeVar("V")


@frozen
class Growth:
    """The bounds in force. Replicas check by their own view: a few more may get in if several ask at once."""

    parts: EngineParts

    async def check_cluster(self, name: str) -> None:
        """Raises InvalidRequestError for a cluster too many."""
        if self.parts.views.find(name) is not None:
            return
        names, most = await self.parts.store.clusters(), self.parts.options.most_clusters
        if name not in names and len(names) >= most:
            raise InvalidRequestError(
                f"there are {len(names)} clusters; the limit is {most}: delete one that is no longer used", "cluster"
            )

    async def forget_idle_queues(self, live: LiveView, settings_of: Callable[[str], QueueSettings]) -> None:
        """Removes the queues that nobody has asked about for a long time. Any replica may, any number at once."""
        now_s, idle_s = self.parts.now_s(live), self.parts.options.queue_idle_s
        idle = [
            state
            for name, state in live.view.queues.items()
            if (used_s := used_until_s(state, settings_of(name))) is not None and now_s - used_s > idle_s
        ]
        for state in idle:
            try:
                event = await self.parts.store.forget_queue(live.cluster, state.queue, state.seq)
            except (StateUnavailableError, NotFoundError):
                return  # the next round tries again, unless the cluster was deleted
            if event is not None:
                live.show((event,))

    async def forget_idle_profiles(self, live: LiveView) -> None:
        """Removes the rows of measurements that no job has used for a long time, and dates those in use."""
        view = live.view
        rows = {*view.subtask_profiles, *view.co_runs.kinds, *view.estimates.kinds}
        if not rows and not view.overheads:
            return
        used = rows & {kind for running in view.jobs.values() for kind in kinds_of(running.job)}
        try:
            events = await self.parts.store.forget_profiles(live.cluster, used, self.parts.options.profile_idle_s)
        except (StateUnavailableError, NotFoundError):
            return
        live.show(events)


def kinds_of(job: Job) -> Iterator[str]:
    """Kinds of the rows that decisions about this job look at."""
    if job.model:
        yield row_kind(job.model)
    for subtask in job.subtasks:
        yield subtask.kind


def used_until_s(state: QueueState, settings: QueueSettings) -> float | None:
    """The end of the last slot with a request, or of the head's reservation; None if neither was kept."""
    slot = max([state.slot, *[slot for _, _, slot in state.admitted.values()]])
    slot_end_s = (slot + 1) * settings.slot_s if slot >= 0 else None
    if state.head is None:
        return slot_end_s if slot_end_s is not None or not state.seq else 0.0  # a head that is gone left it empty
    return max(state.head.expire_s, slot_end_s or 0.0)


def check_queue(queue: QueueState, view: ClusterView, most: int) -> None:
    """Raises InvalidRequestError for one queue too many: names are the callers' to invent."""
    if queue.queue not in view.queues and len(view.queues) >= most:
        raise InvalidRequestError(
            f"the cluster has {len(view.queues)} queues; the limit is {most}: idle ones are forgotten in time",
            "queue",
        )


def within(news: Mapping[str, V], known: Iterable[str], most: int) -> dict[str, V]:
    """The rows, or the values of a row, that are known already, and as many new ones as there is room for."""
    there = set(known)
    kept = {kind: row for kind, row in news.items() if kind in there}
    room = max(0, most - len(there))
    return kept | {kind: news[kind] for kind in [kind for kind in news if kind not in there][:room]}

"""An encoder that keeps tokens from look to look encodes as a new one does, after any changes in between."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.cluster import make_job, make_node
from tests.fakes.quick.examples import examples

from placewise_core.basics.arrays import IntArray
from placewise_core.domain.cluster import Node, NodeTelemetry, RunningJob
from placewise_core.domain.events import ClusterRecords, NodesReported
from placewise_core.gang.context import PlaceContext
from placewise_core.inputs.cluster import Encoder
from placewise_core.policies.consolidate import Consolidate
from placewise_core.view.view import ClusterView

CHANGES = ("add", "add wide", "end", "progress", "confirm", "report", "new node", "rows", "all rows", "fork", "later")


def node(i: int, observe_time_s: float = 0.0) -> Node:
    return make_node(f"n{i}", telemetry=NodeTelemetry(cpu_util=0.25, observe_time_s=observe_time_s))


class Cluster:
    """A cluster to which things happen; looked at on some of its nodes, or on all of them."""

    def __init__(self, rng: np.random.Generator, nodes: int) -> None:
        self.view = ClusterView(ClusterRecords("c", 0, "e", nodes=tuple(node(i) for i in range(nodes))))
        self.rng, self.rows, self.now_s, self._count = rng, None, 1000.0, 0
        self.rows: IntArray | None

    def change(self, how: str) -> None:
        view, running = self.view, list(self.view.jobs.values())
        one = running[self.rng.integers(len(running))] if running else None
        size = view.nodes.size
        if how.startswith("add"):
            self._add(5 if how == "add wide" else 1 + int(self.rng.integers(3)))
        elif how == "end" and one is not None:
            view.remove_job(one.id)
        elif how == "progress" and one is not None:
            view.update_jobs([replace(one, epochs_done=one.epochs_done + 0.5)])
        elif how == "confirm" and one is not None:
            view.add_job(replace(one, reservation_id="r"))
        elif how == "report":
            view.apply_change(NodesReported((node(int(self.rng.integers(size)), self.now_s),)))
        elif how == "new node":
            view.apply_change(NodesReported((node(size),)))
            self.rows = None
        elif how == "rows":
            self.rows = np.sort(self.rng.choice(size, self.rng.integers(1, size + 1), replace=False))
        elif how == "all rows":
            self.rows = None
        elif how == "fork":
            self.view = view.fork()
        elif how == "later":
            self.now_s += 60.0

    def _add(self, workers: int) -> None:
        self._count += 1
        job = make_job(f"job-{self._count}", workers=workers)
        proposal = Consolidate().propose(job, self.view, PlaceContext(self.now_s, 0))
        if proposal is not None:
            self.view.add_job(RunningJob(job, proposal.assignments))


@settings(max_examples=examples(200), deadline=None)
@given(
    changes=st.lists(st.sampled_from(CHANGES), max_size=25),
    nodes=st.integers(1, 6),
    most=st.sampled_from([0, 2, 4]),
    has_batch=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_what_is_kept_equals_what_is_new(changes: list[str], nodes: int, most: int, has_batch: bool, seed: int) -> None:
    cluster, kept = Cluster(np.random.default_rng(seed), nodes), Encoder(most)
    batch = (make_job("new", workers=2),) if has_batch else ()
    for how in ("", *changes):
        cluster.change(how)
        given_to = (cluster.view, batch, cluster.now_s)
        seen, anew = (encoder.encode(*given_to, rows=cluster.rows) for encoder in (kept, Encoder(most)))
        for name in ("nodes", "jobs", "placement"):
            ours, wanted = getattr(seen, name), getattr(anew, name)
            assert ours.dtype == wanted.dtype == np.float32
            np.testing.assert_array_equal(ours, wanted, err_msg=f"{name} after {how}")

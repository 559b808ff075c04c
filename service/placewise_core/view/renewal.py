"""A large report of nodes, made ready beside a view and then shown at once: no decision ever sees half of it."""

from placewise_core.domain.events import ClusterRecords, NodesReported
from placewise_core.view.nodes import NodeColumns
from placewise_core.view.view import ClusterView


class Renewal:
    """One report for one view. Made and shown in the view's thread; `prepare` may run in another meanwhile, as long as
    the view takes no other report."""

    def __init__(self, view: ClusterView, change: NodesReported) -> None:
        self._view = view
        self._change = change
        self._nodes = tuple(view.nodes.records)
        self._jobs = tuple(view.jobs.values())
        self._columns: NodeColumns | None = None
        self._fresh: ClusterView | None = None

    def prepare(self) -> None:
        """Does the work: the columns of telemetry, or a whole view if nodes come, go or change their capacity."""
        view, change = self._view, self._change
        if view.keeps_layout(change):
            self._columns = NodeColumns.of(change.nodes)
            return
        removed = set(change.removed)
        merged = {node.id: node for node in self._nodes if node.id not in removed}
        merged.update((node.id, node) for node in change.nodes)
        records = ClusterRecords(view.cluster, view.version, view.epoch, tuple(merged.values()), self._jobs)
        self._fresh = ClusterView(records, view.stale_after_s)
        self._fresh.digest()  # whose first time takes long

    def show(self) -> ClusterView:
        """Gives the view with the report applied: the old view, or a new one that has taken over the old one's later
        changes."""
        old, fresh = self._view, self._fresh
        if fresh is None:
            assert self._columns is not None
            old.nodes.write_columns(self._columns)
            return old
        for job_id in fresh.jobs.keys() - old.jobs.keys():
            fresh.remove_job(job_id)
        for job_id, running in old.jobs.items():
            if fresh.jobs.get(job_id) is not running:
                fresh.add_job(running)
        fresh.take_rest(old)
        return fresh

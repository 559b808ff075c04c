"""Figures of a replay: completion times, queueing, utilisation, decision latency. Pure."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewise_core.basics.frozen import frozen
from placewise_service.replay.host import ReplayResult

Series = NDArray[np.float64]


@frozen
class ReplayFigures:
    """The figures of one run in the table, the JSON and the plot."""

    run: ReplayResult
    jct_s: Series
    queue_s: Series
    utilisation: tuple[Series, Series]  # times (trace seconds) and busy share from each on

    @classmethod
    def of(cls, run: ReplayResult) -> "ReplayFigures":
        submit, start, finish = (np.asarray(v, dtype=np.float64) for v in (run.submit_s, run.start_s, run.finish_s))
        times = np.asarray([t for t, _ in run.busy_gpus], dtype=np.float64)
        share = np.asarray([busy for _, busy in run.busy_gpus], dtype=np.float64)
        capacity = run.plan.nodes * run.plan.gpus_per_node
        return cls(run, finish - submit, start - submit, (times, share / capacity))

    def as_dict(self) -> dict[str, Any]:
        """Numbers by name, units in the names. Percentiles of nothing are absent."""
        run = self.run
        return {
            "policy": run.plan.place_policy,
            "admit_policy": run.plan.admit_policy,
            "jobs_started": len(run.start_s),
            "never_fits": len(run.never_fits),
            "never_admitted": len(run.never_admitted),
            **_spread("jct_s", self.jct_s),
            **_spread("queue_s", self.queue_s),
            "waited_share": float(np.mean(self.queue_s > 0)) if len(self.queue_s) else 0.0,
            "gpu_util": self.mean_utilisation(),
            "makespan_s": self._makespan_s(),
            **_spread("place_ms", np.asarray(run.place_ms)),
            **_spread("admit_ms", np.asarray(run.admit_ms)),
            **_spread("decide_ms", np.asarray(run.decide_ms)),
            "place_calls": len(run.place_ms),
            "admit_calls": len(run.admit_ms),
            "report_calls": len(run.report_ms),
            "place_waits": run.place_waits,
            "fallbacks": run.fallbacks,
            "wall_s": run.wall_s,
            **({"event_hash": run.digest} if run.digest else {}),
        }

    def mean_utilisation(self) -> float:
        """Busy share of all GPUs, averaged over time from the first to the last submission (the tail of a few long
        jobs would otherwise decide the figure)."""
        times, share = self.utilisation
        if len(times) == 0:
            return 0.0
        begin, end = min(self.run.submit_s), max(self.run.submit_s)
        if end <= begin:
            return 0.0
        edges = np.clip(np.append(times, max(end, times[-1])), begin, end)
        return float(np.sum(np.diff(edges) * share) / (end - begin))

    def _makespan_s(self) -> float:
        return max(self.run.finish_s) - min(self.run.submit_s) if self.run.finish_s else 0.0


def _spread(name: str, values: Series) -> dict[str, float]:
    if len(values) == 0:
        return {}
    stem, unit = name.rsplit("_", 1)
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    mean = float(np.mean(values))
    return {f"avg_{name}": mean} | {
        f"{stem}_{p}_{unit}": float(v) for p, v in (("p50", p50), ("p95", p95), ("p99", p99))
    }

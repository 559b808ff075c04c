"""Reads counters."""

from __future__ import annotations

from prometheus_client import Counter


def counted(counter: Counter) -> dict[str, float]:
    """The counts by the value of the counter's only label."""
    samples = (sample for family in counter.collect() for sample in family.samples)
    return {"".join(s.labels.values()): s.value for s in samples if s.name.endswith("_total")}

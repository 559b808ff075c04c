"""The share of the processors taken away during a measurement: it tells how far to trust a figure on a shared host."""

from __future__ import annotations

from pathlib import Path

# Columns of /proc/stat's first line: user nice system idle iowait irq softirq steal.
_IDLE, _STEAL = (3, 4), 7


def processor_times() -> tuple[int, ...]:
    """Ticks since the machine started, by kind; empty if the system does not tell."""
    path = Path("/proc/stat")
    return tuple(int(word) for word in path.read_text().split()[1:9]) if path.exists() else ()


def stolen_pct(before: tuple[int, ...]) -> float:
    """Of the processor time wanted since `before`, the share that the host gave to others."""
    spent = [now - then for now, then in zip(processor_times(), before, strict=True)]
    wanted = sum(spent) - sum(spent[column] for column in _IDLE) if spent else 0
    return 100.0 * spent[_STEAL] / wanted if wanted else 0.0

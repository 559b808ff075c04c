"""Writes the golden files: `make golden ROWS="NAME …"`. README.md says when that is allowed."""

import asyncio
import sys
import time
from collections.abc import Callable

from tests.golden.net import decisions, nets, public, queues, reasons, rows, simulations
from tests.golden.net.seams import admit_policies, place_policies


def _decisions(policy: str) -> int:
    found = asyncio.run(decisions.decided(policy))
    answers, records = decisions.files(policy)
    return rows.write(answers, found.answers) + rows.write(records, found.records)


def _nets(kind: str) -> int:
    return rows.write(nets.FILE.format(kind), asyncio.run(nets.runs_of(kind)))


def _parts() -> dict[str, Callable[[], int]]:
    parts: dict[str, Callable[[], int]] = {}
    for policy in (*place_policies(), decisions.UNITS):
        parts[f"decisions-{policy}"] = lambda policy=policy: _decisions(policy)
    for kind in nets.ASKED:
        parts[f"nets-{kind}"] = lambda kind=kind: _nets(kind)
    for file in public.FILES:
        parts[file] = lambda file=file: rows.write(f"{file}.jsonl", public.names(file))
    parts[public.STATE] = lambda: rows.write(f"{public.STATE}.jsonl", asyncio.run(public.state()))
    parts["why"] = lambda: rows.write(reasons.FILE, asyncio.run(reasons.refused()))
    for policy in admit_policies():
        file = queues.file_of(policy)
        parts[f"admissions-{policy}"] = lambda policy=policy, file=file: rows.write(
            file, asyncio.run(queues.admitted(policy))
        )
    parts["partitions"] = lambda: rows.write(queues.PARTITIONED, asyncio.run(queues.partitioned()))
    if simulations.FILE:
        parts["simulations"] = lambda: rows.write(
            simulations.FILE, map(simulations.simulated, simulations.contenders())
        )
    return parts


def main(wanted: list[str]) -> None:
    total = 0
    parts = _parts()
    for start in wanted:
        if not any(name.startswith(start) for name in parts):
            sys.exit(f"no golden rows are called {start}; there are {', '.join(parts)}")
    for name, write in parts.items():
        if not wanted or any(name.startswith(start) for start in wanted):
            began_s = time.process_time()
            size = write()
            total += size
            print(f"{name:32} {size / 1024:8.1f} KiB {time.process_time() - began_s:6.1f} s")
    print(f"{'in all':32} {total / 1024:8.1f} KiB {time.process_time():6.1f} s of CPU")


if __name__ == "__main__":
    main(sys.argv[1:])

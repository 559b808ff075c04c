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


def parts() -> dict[str, Callable[[], int]]:
    """How each group of rows is written; gives back its size in bytes."""
    found: dict[str, Callable[[], int]] = {}
    for policy in (*place_policies(), decisions.UNITS):
        found[f"decisions-{policy}"] = lambda policy=policy: _decisions(policy)
    for kind in nets.ASKED:
        found[f"nets-{kind}"] = lambda kind=kind: _nets(kind)
    for file in public.FILES:
        found[file] = lambda file=file: rows.write(f"{file}.jsonl", public.names(file))
    found[public.STATE] = lambda: rows.write(f"{public.STATE}.jsonl", asyncio.run(public.state()))
    found["why"] = lambda: rows.write(reasons.FILE, asyncio.run(reasons.refused()))
    for policy in admit_policies():
        file = queues.file_of(policy)
        found[f"admissions-{policy}"] = lambda policy=policy, file=file: rows.write(
            file, asyncio.run(queues.admitted(policy))
        )
    found["partitions"] = lambda: rows.write(queues.PARTITIONED, asyncio.run(queues.partitioned()))
    if simulations.FILE:
        found["simulations"] = lambda: rows.write(
            simulations.FILE, map(simulations.simulated, simulations.contenders())
        )
    return found


def main(wanted: list[str]) -> None:
    total = 0
    known = parts()
    for start in wanted:
        if not any(name.startswith(start) for name in known):
            sys.exit(f"no golden rows are called {start}; there are {', '.join(known)}")
    for name, write in known.items():
        if not wanted or any(name.startswith(start) for start in wanted):
            began_s = time.process_time()
            size = write()
            total += size
            print(f"{name:32} {size / 1024:8.1f} KiB {time.process_time() - began_s:6.1f} s")
    print(f"{'in all':32} {total / 1024:8.1f} KiB {time.process_time():6.1f} s of CPU")


if __name__ == "__main__":
    main(sys.argv[1:])

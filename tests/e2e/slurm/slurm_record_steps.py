"""Records what slurmrestd and slurmdbd show of steps, as tests/cases/slurm/steps.VERSION.json.

python -m tests.e2e.slurm.slurm_record_steps v0.0.38
python -m tests.e2e.slurm.slurm_tree run 24.11 python -m tests.e2e.slurm.slurm_record_steps v0.0.40 v0.0.41 v0.0.42

Of a job with two nodes: its batch script and its step 0 run, then step 0 has ended and step 1 runs. Beside it, the
answers about an unknown job, and while slurmdbd is away.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.e2e.slurm.slurm_accounting import Accounting
from tests.e2e.slurm.slurm_cluster import SlurmCluster, running
from tests.e2e.slurm.slurm_release import Release

from placewise_slurm.http import JsonHttp

CASES = Path(__file__).parents[2] / "cases" / "slurm"
_SCRIPT = "srun -n4 sleep 12; srun -N1 -n1 sleep 12"
_JOB, _STEP = ("cluster", "job_id"), ("step", "state", "nodes", "time")


def record(*versions: str) -> None:
    """Writes one file per REST version, all of the same jobs."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "slurm"
        accounting = Accounting(root)
        release = Release(Release.chosen().root, versions[0])
        cluster = SlurmCluster(root, nodes=2, hooks=accounting.keys, before=accounting.start, release=release)
        with running(cluster):
            first = cluster.submit(_SCRIPT, "-N2", "--ntasks-per-node=2")
            time.sleep(4)  # slurmdbd hears of the step within a second; it runs long enough for all versions
            began = {version: _read(cluster, version, first) for version in versions}
            time.sleep(10)
            for version in versions:
                went_on = _read(cluster, version, first)
                case = {"began": began[version], "went_on": went_on, "unknown": _read(cluster, version, 99_999)}
                (CASES / f"steps.{version}.json").write_text(json.dumps(case, indent=1) + "\n")
            cluster.cancel(first)
            cluster.kill("slurmdbd")
            for version in versions:
                path = CASES / f"steps.{version}.json"
                case = {**json.loads(path.read_text()), "away": _read(cluster, version, first)}
                path.write_text(json.dumps(case, indent=1) + "\n")


def _read(cluster: SlurmCluster, version: str, job_id: int) -> dict[str, Any]:
    cluster.kill("slurmrestd")
    cluster.release = dataclasses.replace(cluster.release, rest=version)
    cluster.start_rest()
    reply = asyncio.run(_get(cluster, f"/slurmdb/{version}/job/{job_id}"))
    if "jobs" not in reply:
        return reply
    jobs = [{**_only(job, _JOB), "steps": [_only(step, _STEP) for step in job["steps"]]} for job in reply["jobs"]]
    return {**reply, "jobs": jobs}


async def _get(cluster: SlurmCluster, path: str) -> dict[str, Any]:
    http = JsonHttp(cluster.rest.rest, cluster.rest.headers, timeout_s=30.0)
    started_s = time.monotonic()
    reply: dict[str, Any] = await http.request("GET", path)
    reply["meta"].pop("client", None)  # the socket of this run
    print(f"{path}: {1000 * (time.monotonic() - started_s):.0f} ms")
    await http.close()
    return reply


def _only(raw: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: raw[key] for key in keys}


if __name__ == "__main__":
    record(*sys.argv[1:])

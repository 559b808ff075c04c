"""Records what slurmrestd of a release really sends, as tests/cases/slurm/VERSION.json: jobs in every stage, and nodes.

python -m tests.e2e.slurm.slurm_tree run 24.11 python -m tests.e2e.slurm.slurm_record v0.0.40 v0.0.41 v0.0.42

Fields that the bridge does not read are left out: there are two hundred of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.slurm.slurm_cluster import SlurmCluster, running
from tests.e2e.slurm.slurm_release import Release

from placewise_slurm.http import JsonHttp
from placewise_slurm.versions import VERSIONS

CASES = Path(__file__).parents[2] / "cases" / "slurm"
GANG = ("-N2", "--gpus-per-node=2", "-c2")


class _Noted(dict[str, Any]):
    """A document that notes which of its fields are asked for."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def record(*versions: str) -> None:
    """Writes one file per REST version, all of the same jobs and nodes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        release = Release(Release.chosen().root, versions[0])
        cluster = SlurmCluster(Path(folder) / "slurm", nodes=4, release=release)
        with running(cluster):
            _make_jobs(cluster)
            for version in versions:
                case = asyncio.run(_read(cluster, version))
                (CASES / f"{version}.json").write_text(json.dumps(case, indent=1) + "\n")


def _make_jobs(cluster: SlurmCluster) -> None:
    """Held for the bridge, running, ended, being ended, and one that states its demand in other words."""
    cluster.run("scontrol", "update", "nodename=n2", "features=ib,a100", "activefeatures=ib,a100")
    held = cluster.submit("true", *GANG, "--hold", "--comment=model=x")
    cluster.run("scontrol", "update", f"job={held}", "admincomment=placewise:held")
    cluster.submit("sleep 600", *GANG, "-w", "n[1-2]")
    ended = cluster.submit("true", *GANG, "-w", "n[3-4]", "--comment=model=x")
    ending = cluster.submit("trap '' TERM; while true; do sleep 1; done", "-N1", "-w", "n4")
    cluster.submit("true", "-N1-2", "-n4", "--gpus-per-task=1", "-C", "ib", "--hold", "-t", "10")
    cluster.wait_for(lambda: cluster.jobs()[ended]["JobState"] == "COMPLETED", "a job to end", 60)
    cluster.wait_for(lambda: cluster.jobs()[ending]["JobState"] == "RUNNING", "a job to start", 60)
    cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    cluster.run("scancel", str(ending))
    cluster.wait_for(lambda: cluster.jobs()[ending]["JobState"] != "RUNNING", "a job to be ended", 60)


async def _read(cluster: SlurmCluster, version: str) -> dict[str, Any]:
    with _rest(cluster, version) as http:
        jobs = await http.request("GET", f"/slurm/{version}/jobs")
        nodes = await http.request("GET", f"/slurm/{version}/nodes")
        await http.close()
    slurm = jobs["meta"].get("slurm") or jobs["meta"]["Slurm"]
    return {
        "provenance": f"recorded from slurmrestd {slurm['release']}, fields not read by the bridge left out",
        "meta": {"plugin": jobs["meta"]["plugin"], "slurm": {"release": slurm["release"]}},
        "errors": len(jobs["errors"]),
        "jobs": [_read_fields(raw, VERSIONS[version].job) for raw in jobs["jobs"]],
        "nodes": [_read_fields(raw, VERSIONS[version].node) for raw in nodes["nodes"]],
    }


def _read_fields(raw: dict[str, Any], read: Any) -> dict[str, Any]:
    noted = _Noted(raw)
    read(noted)
    return {key: value for key, value in raw.items() if key in noted.asked}


@contextmanager
def _rest(cluster: SlurmCluster, version: str) -> Iterator[JsonHttp]:
    """A slurmrestd of this version instead of the one that runs."""
    cluster.kill("slurmrestd")
    cluster.release = dataclasses.replace(cluster.release, rest=version)
    cluster.start_rest()
    yield JsonHttp(cluster.rest.rest, cluster.rest.headers, timeout_s=30.0)


if __name__ == "__main__":
    record(*sys.argv[1:])

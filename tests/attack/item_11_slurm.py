"""The Slurm bridge: where its token goes, and what forged datagrams can make it report."""

import tempfile
from pathlib import Path

from tests.attack.attack import Attack, Figures
from tests.attack.enclave import FOREIGN, FOREIGN_PORT
from tests.attack.enclosed import enclosed
from tests.attack.source import Source

TITLE = "Slurm"
_TOKEN = "eyJhbGciOiJIUzI1NiJ9.attack"


def _token_in_clear(source: Source) -> Figures:
    """`check`, then `run`, of a bridge whose slurmrestd is on another machine, without TLS."""
    heard = refused = 0
    with tempfile.TemporaryDirectory(prefix="placewise-attack-") as name:
        folder = Path(name)
        token, config = folder / "slurm.jwt", folder / "slurm.toml"
        token.write_text(f"SLURM_JWT={_TOKEN}\n")
        config.write_text(
            '[adapter]\ncluster = "c"\n[service]\naddress = "http://127.0.0.1:9"\n'
            f'[slurm]\nrest = "{FOREIGN}:{FOREIGN_PORT}"\nuser = "slurm"\ntoken_file = "{token}"\n'
            '[hooks]\nshares_dir = ""\nlisten_port = 0\n[metrics]\nport = 0\n'
        )
        for command in ("check", "run"):
            words = ["-m", "placewise_slurm.main", "--config", str(config), command]
            found = enclosed(source, {"bridge": (words, "bridging")}, watch_s=2.0)  # `check` ends by itself
            heard += sum(_TOKEN in each for each in found["heard"])
            refused += "plain text" in found["programs"]["bridge"]["text"]
    return {"tokens_heard": heard, "commands_that_refuse": refused}


_FORGER = """
import asyncio, sys, tempfile
from pathlib import Path
from typing import Any
from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.decision_pb2 import PartitionResponse, Share
from placewise_client.adapter.native import AdapterSettings, Placement
from placewise_slurm.pokes import PokeListener
from placewise_slurm.records import SlurmJob
from placewise_slurm.shares import JobShares

class Cut:
    async def partition(self, request, **_):
        return PartitionResponse(shares=[Share(node="n1", unit="gpu0", scale=1.0)])

async def main():
    now = [1000.0]
    shares = JobShares(Cut(), AdapterSettings("c"), Path(tempfile.mkdtemp()), lambda: now[0])
    await shares(SlurmJob(7, "PENDING", comment="divisible=1"), Placement((Assignment(node="n1", gpu_indices=[0]),)))
    ear = PokeListener()
    ear.on_task = shares.hear
    say = lambda text: ear.datagram_received(text.encode(), ("127.0.0.1", 1))
    for step in range(100_000):
        say(f"share begin 7 {step} n1 0")
    began = shares._shared[7]
    kept = len(getattr(began, "began_s", ())) or sum(map(len, getattr(began, "steps", {}).values()))
    now[0] += 5000.0
    say("share end 7 3 n1 0")
    ended = SlurmJob(7, "COMPLETED", nodes="n1", start_time_s=5000, end_time_s=5010)
    done = shares.done(ended if hasattr(shares, "see") else 7)
    print("FIGURES", kept, sum(outcome.seconds for outcome in done.outcomes) if done else 0)

asyncio.run(main())
"""


def _forged_shares(source: Source) -> Figures:
    """100,000 begins of invented steps, for a job that waits; one end 5,000 s later; the job itself took 10 s."""
    done = source.run(["-c", _FORGER])
    kept, seconds = done.stdout.split("FIGURES")[1].split()
    return {"invented_steps_kept": int(kept), "forged_seconds_reported": float(seconds)}


ATTACKS = (
    Attack(
        "slurmrestd on another machine",
        "The token of slurmrestd does not travel in clear off loopback, unless the configuration allows it.",
        "tests/unit/test_slurm_config.py::test_slurms_token_in_clear_is_refused_by_every_command",
        _token_in_clear,
        lambda figures: figures["tokens_heard"] == 0 and figures["commands_that_refuse"] == 2,
    ),
    Attack(
        "forged datagrams of tasks",
        "A share's time counts only where slurmrestd shows the job running, once, and within the job's own time.",
        "tests/unit/test_slurm_shares.py::test_a_time_counts_only_where_slurm_shows_the_job_running_on_the_node",
        _forged_shares,
        lambda figures: int(figures["invented_steps_kept"]) <= 16 and figures["forged_seconds_reported"] == 0,
    ),
)

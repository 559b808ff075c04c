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
    finish = shares.finish if hasattr(shares, "finish") else shares.done
    done = finish(ended if hasattr(shares, "see") else 7)
    if hasattr(shares, "take"):
        done = next((told for _, told in shares.take()), None)
    print("FIGURES", kept, sum(outcome.seconds for outcome in done.outcomes) if done else 0)

asyncio.run(main())
"""

# The job runs, its step 0 has run from 1000 to 1002, slurmrestd shows that, and somebody tells of a step 5.
_STEP_FORGER = (
    _FORGER.partition("async def main")[0]
    + """
async def main():
    now, asked = [1000.0], []
    clock = lambda: now[0]
    shares = JobShares(Cut(), AdapterSettings("c"), Path(tempfile.mkdtemp()), clock)
    if hasattr(shares, "wall_clock"):
        shares.wall_clock = clock
    async def ask(job_id):
        from placewise_slurm.records import SlurmStep
        asked.append(job_id)
        return [SlurmStep("0", "COMPLETED", frozenset({"n1"}), 1000, 1002)]
    async def sleep(seconds):
        now[0] += seconds
    if hasattr(shares, "lookups"):
        from placewise_slurm.steps import StepLookups
        shares.lookups = StepLookups(ask, clock, sleep)
    await shares(SlurmJob(7, "PENDING", comment="divisible=1"), Placement((Assignment(node="n1", gpu_indices=[0]),)))
    running = SlurmJob(7, "RUNNING", nodes="n1", start_time_s=1000)
    for begin_s, end_s, step in ((1000, 1002, 0), (1010, 1090, 5)):
        for what, now[0] in (("begin", begin_s), ("end", end_s)):
            shares.hear(what, 7, str(step), "n1", 0)
            if hasattr(shares, "see"):
                shares.see(running)
    ended = SlurmJob(7, "COMPLETED", nodes="n1", start_time_s=1000, end_time_s=1100)
    finish = shares.finish if hasattr(shares, "finish") else shares.done
    done = finish(ended if hasattr(shares, "see") else 7)
    if hasattr(shares, "take"):
        while shares.lookups._due:
            await shares.lookups.look(shares.learn)
        done = next((told for _, told in shares.take()), None)
    print("FIGURES", len(asked), sum(outcome.seconds for outcome in done.outcomes) if done else 0)

asyncio.run(main())
"""
)


def _forged_shares(source: Source) -> Figures:
    """100,000 begins of invented steps, for a job that waits; one end 5,000 s later; the job itself took 10 s."""
    done = source.run(["-c", _FORGER])
    kept, seconds = done.stdout.split("FIGURES")[1].split()
    return {"invented_steps_kept": int(kept), "forged_seconds_reported": float(seconds)}


def _forged_step(source: Source) -> Figures:
    """One step of 2 s that there is; one of 80 s that there is not, told while the job runs and before it ends."""
    done = source.run(["-c", _STEP_FORGER])
    asked, seconds = done.stdout.split("FIGURES")[1].split()
    return {"lookups": int(asked), "seconds_reported_of_2": float(seconds)}


ATTACKS = (
    Attack(
        "slurmrestd on another machine",
        "The token of slurmrestd does not travel in clear off loopback, unless the configuration allows it.",
        "tests/unit/slurm/test_config.py::test_slurms_token_in_clear_is_refused_by_every_command",
        _token_in_clear,
        lambda figures: figures["tokens_heard"] == 0 and figures["commands_that_refuse"] == 2,
    ),
    Attack(
        "forged datagrams of tasks",
        "A share's time counts only where slurmrestd shows the job running, once, and within the job's own time.",
        "tests/unit/slurm/test_shares.py::test_a_time_counts_only_where_slurm_shows_the_job_running_on_the_node",
        _forged_shares,
        lambda figures: int(figures["invented_steps_kept"]) <= 16 and figures["forged_seconds_reported"] == 0,
    ),
    Attack(
        "a step that there is not",
        "A share's time counts only for a step that slurmrestd shows on its node, for one begin and one end of it.",
        "tests/unit/slurm/test_steps.py::test_what_accounting_does_not_bear_out_does_not_count",
        _forged_step,
        lambda figures: figures["seconds_reported_of_2"] == 2,
    ),
)

"""Trains LDWP's DQN as the paper has it → ldwp_paper.pt, ldwp_paper.json.

    python -m placewise_training.ldwp.printed.train --out var/train/ldwp-paper     (placewise train ldwp-paper)

The net is pre-trained by the choices of ECT (4.2.2), or begins with the transferred parameters of an earlier run, and
then learns by Algorithm 1 while a simulation of the paper's cluster asks it (agent.py), or from a decision log. Every
draw comes from `seed`.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from placewise_core.inputs.cluster import UTILISATION_COLUMNS
from placewise_core.inputs.ldwp_paper import columns
from placewise_core.subtasks.iawp import AsWritten, SubtaskScheduler
from placewise_models.printed.ldwp_paper import LDWP_PAPER_MODEL, LDWP_PAPER_REPORT
from placewise_training.lab.traced import filled
from placewise_training.ldwp.agent import TYPES, Logged, PaperDqn, clone, pretrained
from placewise_training.ldwp.judge import SIZES
from placewise_training.ldwp.net import FixedDqn, transferred
from placewise_training.ldwp.printed.from_log import LogSteps, learned, log_report, log_steps, on_nodes, pretrained_by
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import PipelineWorkload
from placewise_training.sim.pipelines.choosers import BacklogEct, NodeChooser
from placewise_training.sim.pipelines.engine import PipelineResult, PipelineSimulation
from placewise_training.sim.pipelines.units import IawpUnits

SCHEMA, REPORT, CHECKPOINT = "placewise.ldwp-paper/1", "ldwp_paper.json", "ldwp_paper.pt"
TRUTH = "train"
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Args:
    """What `placewise train ldwp-paper` takes; the string beside each becomes its help."""

    out: Path = field(default=Path("var/train/ldwp-paper"), metadata={"help": "Folder for checkpoint and report."})
    nodes: int = field(default=11, metadata={"help": "Nodes of the cluster: the net serves this number alone."})
    seed: int = field(default=0, metadata={"help": "Of every draw."})
    tasks: int = field(default=1500, metadata={"help": "Tasks that the DQN places, and learns from."})
    logged: int = field(default=600, metadata={"help": "Choices of ECT that pre-training learns from."})
    per_minute: float = field(default=50.0, metadata={"help": "Tasks that arrive in a minute."})
    start: Path | None = field(
        default=None,
        metadata={"help": "Folder of an earlier run, or bundle: its parameters are transferred, in place of ECT's."},
    )
    log: str = field(default="", metadata={"help": "Folder or URL of an exported decision log, to learn from."})
    before_s: float = field(
        default=0.0, metadata={"help": "Of the log only decisions before this time (epoch seconds); 0: all."}
    )
    only_log: bool = field(default=False, metadata={"help": "Learn from the log alone, without a simulation."})
    passes: int = field(default=4, metadata={"help": "Times the steps of the log are learned from in their order."})


def train(args: Args, show: Show = lambda title, done, total: None) -> dict[str, Any]:
    """Trains; the report that is also written to `out`. Raises ValueError for a log that holds too little, LogError."""
    if args.only_log and not args.log:
        raise ValueError("--only-log needs a log (--log)")
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    log = log_steps(args.log, args.before_s) if args.log else None
    first = _first(args, log)
    net, metrics = (first, {}) if args.only_log else _served(args, first, show)
    found = {}
    if log is not None:
        before = on_nodes(first, log.nodes)
        net = learned(clone(on_nodes(net, log.nodes)), log, args.seed, args.passes)
        found = {"log": log_report(args.log, log, before, net)}
    save_net(net, args.out / CHECKPOINT)
    report = {
        "schema": SCHEMA,
        "columns": list(columns(TYPES, net.nodes)),
        "seed": args.seed,
        "args": {**{n: v for n, v in asdict(args).items() if n not in ("out", "start")}, "nodes": len(net.nodes)},
        "is_transferred": args.start is not None,
        "parameters": sum(p.numel() for p in net.parameters()),
        "tasks": 0 if args.only_log else args.tasks,
        "seconds": {"training": round(time.perf_counter() - began, 1)},
        "metrics": metrics,
        **found,
    }
    (args.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return report


def _first(args: Args, log: LogSteps | None) -> FixedDqn:
    """The net to begin with."""
    if args.start is not None:
        return begun(args.start)
    return pretrained_by(log, args.seed) if args.only_log and log is not None else _pretrained(args)


def _served(args: Args, first: FixedDqn, show: Show) -> tuple[FixedDqn, dict[str, Any]]:
    """The net after it has served in a simulation, and how that went."""
    names = tuple(spec.id for spec in ldwp_cluster(args.nodes))
    agent = PaperDqn(net=transferred(first, names) if args.start else first, seed=args.seed)
    result = _simulated(args, agent, args.tasks, lambda done, now_s: show("learning", done, args.tasks))
    show("learning", args.tasks, args.tasks)
    assert agent.net is not None
    tenth = max(1, len(agent.throughputs) // 10)
    return agent.net, {
        "throughput_per_min": {
            "all": result.throughput_per_min,
            "first_tenth": float(np.mean(agent.throughputs[:tenth])),
            "last_tenth": float(np.mean(agent.throughputs[-tenth:])),
        },
        "avg_turnaround_s": result.avg_turnaround_s,
    }


def begun(folder: Path) -> FixedDqn:
    """The net of a training run or of a bundle. Raises ValueError for a graph of another form, OSError."""
    if (folder / CHECKPOINT).is_file():
        return load_net(folder / CHECKPOINT)
    names = json.loads((folder / LDWP_PAPER_REPORT).read_text("utf-8"))["columns"]
    nodes = [name.removeprefix("a_") for name in names if name.startswith("a_")]
    return filled(empty_net(nodes), folder / LDWP_PAPER_MODEL)


def save_net(net: FixedDqn, checkpoint: Path) -> None:
    """What load_net reads. A process that dies while it writes leaves the old one."""
    new = checkpoint.with_suffix(".new")
    torch.save({"nodes": list(net.nodes), "net": net.state_dict()}, new)
    new.replace(checkpoint)


def load_net(checkpoint: Path) -> FixedDqn:
    """The net of a training run."""
    stored = torch.load(checkpoint, map_location="cpu", weights_only=True)
    net = empty_net(stored["nodes"])
    net.load_state_dict(stored["net"])
    return net.eval()


def empty_net(nodes: Sequence[str]) -> FixedDqn:
    """Of random weights."""
    return FixedDqn(nodes, len(TYPES) + 1, len(UTILISATION_COLUMNS))


def _pretrained(args: Args) -> FixedDqn:
    log = Logged(BacklogEct(TRUTH))
    _simulated(args, log, args.logged)
    return pretrained(log, args.seed)


def _simulated(
    args: Args, chooser: NodeChooser, tasks: int, progress: Callable[[int, float], None] | None = None
) -> PipelineResult:
    workload = PipelineWorkload(tasks=tasks, per_minute=args.per_minute, sizes=SIZES)
    units = IawpUnits(scheduler=SubtaskScheduler(rules=AsWritten))
    arrivals = workload.generate(TRUTH, args.seed)
    return PipelineSimulation(ldwp_cluster(args.nodes), arrivals, TRUTH, chooser, units, seed=args.seed).run(progress)

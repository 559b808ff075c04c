"""Trains Harmony's actor-critic as the paper has it → harmony_paper.pt, harmony_paper.json.

    python -m placewise_training.policy.printed.train --out var/train/harmony-paper     (placewise train harmony-paper)

Read top to bottom. ∇ log π (r + γ V(s′) − V(s)) + β H by (2), V by temporal difference, samples drawn from a FIFO. β
and the share of explored gangs fall to 0 linearly. [!] A replayed sample was drawn by an older π or by the explorer: it
is weighted by the ratio of the probabilities, clipped, which the paper leaves out. Every random draw comes from `seed`.
"""

import copy
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from placewise_core.inputs.harmony_paper import columns
from placewise_core.policies.registry import placement_policies
from placewise_models.folder import shipped_bundle
from placewise_models.printed.harmony_paper import HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT
from placewise_models.reward import REWARD_MODEL, RewardRuntime
from placewise_training.lab.scalars import Scalars
from placewise_training.lab.traced import filled
from placewise_training.log.later import HeldBack
from placewise_training.policy.logged.from_log import PolicyRow, log_report
from placewise_training.policy.net import masked_log_probabilities
from placewise_training.policy.printed.from_log import Steps, intervals_of, log_decisions, log_pi_of
from placewise_training.policy.printed.net import PaperPolicy, PaperValue
from placewise_training.policy.printed.rollouts import Interval, PaperActor, PaperStep, simulate, situation

SCHEMA, REPORT, CHECKPOINT = "placewise.harmony-paper/1", "harmony_paper.json", "harmony_paper.pt"
FIRST_VALIDATION_SEED = 900_000  # above every training seed
_MOST_RATIO = 2.0  # clips the importance ratio of a replayed sample
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Args:
    """What `placewise train harmony-paper` takes; the string beside each becomes its help."""

    out: Path = field(
        default=Path("var/train/harmony-paper"), metadata={"help": "Folder for checkpoint, report, TensorBoard."}
    )
    nodes: int = field(default=6, metadata={"help": "Servers of the cluster: the net serves this number alone."})
    seed: int = field(default=0, metadata={"help": "Of every draw."})
    tasks: int = field(default=200_000, metadata={"help": "Tasks placed in training simulations: the budget."})
    simulations: int = field(default=8, metadata={"help": "Simulations per round; after each, the nets are updated."})
    jobs: int = field(default=40, metadata={"help": "Jobs per simulation."})
    width: int = field(default=128, metadata={"help": "Neurons per layer, as Harmony."})
    heads: int = field(default=8, metadata={"help": "Attention heads, as Harmony."})
    layers: int = field(default=2, metadata={"help": "Encoder layers, as Harmony."})
    rate: float = field(default=1e-4, metadata={"help": "Adam's learning rate, as Harmony."})
    gamma: float = field(default=0.9, metadata={"help": "Discount per scheduling interval, as Harmony."})
    entropy: float = field(default=0.5, metadata={"help": "Harmony's β, falling to 0."})
    explore: float = field(default=0.5, metadata={"help": "Harmony's ε: gangs by bin packing or load balancing, → 0."})
    replay: int = field(default=8192, metadata={"help": "Samples in the FIFO, as Harmony."})
    batch: int = field(default=32, metadata={"help": "Samples per update, as Harmony."})
    updates: int = field(default=1, metadata={"help": "Updates per scheduling interval, as Harmony."})
    reward_model: Path | None = field(default=None, metadata={"help": "reward.onnx; empty: the shipped bundle's."})
    validate_every: int = field(default=10, metadata={"help": "Rounds between validations."})
    validation_simulations: int = field(default=8, metadata={"help": "Simulations of a validation."})
    threads: int = field(default=1, metadata={"help": "Threads of torch."})
    log: str = field(default="", metadata={"help": "Folder or URL of an exported decision log, to learn from."})
    before_s: float = field(
        default=0.0, metadata={"help": "Of the log only decisions before this time (epoch seconds); 0: all."}
    )
    only_log: bool = field(default=False, metadata={"help": "Learn from the log alone, without simulations."})
    start: Path | None = field(default=None, metadata={"help": "Folder of an earlier run, or bundle, to begin with."})
    passes: int = field(default=4, metadata={"help": "Updates per decision of the log."})


@dataclass(frozen=True, slots=True)
class Sample:
    """A task, the reward of its interval, and the first state of the next interval (None at the end)."""

    step: PaperStep
    reward: float
    discount: float
    after: PaperStep | None


@dataclass(slots=True)
class _PaperTraining:
    policy: PaperPolicy
    value: PaperValue
    optimiser: torch.optim.Optimizer
    replay: deque[Sample]
    tasks: int = 0
    rounds: int = 0
    best: float = float("inf")
    best_state: dict[str, Tensor] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)


def train(args: Args, show: Show = lambda title, done, total: None) -> dict[str, Any]:
    """Trains; the report that is also written to `out`. Keeps the net of the best validation, with a log the last one.
    Raises ValueError for a log that holds too little, LogError."""
    if args.only_log and not args.log:
        raise ValueError("--only-log needs a log (--log)")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    scorer = RewardRuntime.from_file(args.reward_model or shipped_bundle() / REWARD_MODEL)
    run = _run(args)
    before = copy.deepcopy(run.policy)
    log = log_decisions(args.log, args.before_s, run.policy) if args.log else None
    yardsticks = [_yardstick(args, i) for i in range(0 if args.only_log else args.validation_simulations)]
    began = time.perf_counter()
    with Scalars(args.out) as write:
        while run.tasks < args.tasks and not args.only_log:
            share = run.tasks / args.tasks
            episodes, jct_s = _episodes(args, run, share, scorer)
            run.tasks += sum(len(interval.steps) for episode in episodes for interval in episode)
            losses = _learn(args, run, episodes, share)
            losses["jct_minutes"] = jct_s / 60.0
            run.rounds += 1
            if run.rounds % args.validate_every == 0 or run.tasks >= args.tasks:
                losses["validation"] = _validated(args, run, yardsticks)
                _keep(args, run, _report(args, run, time.perf_counter() - began))
            for name, value in losses.items():
                write(f"harmony-paper/{name}", value, run.tasks)
            show(f"training, JCT {run.best:.3f} × consolidate's", min(run.tasks, args.tasks), args.tasks)
    if log is not None:
        _learn_log(args, run, log)
    report = _report(args, run, time.perf_counter() - began)
    if log is not None:
        report["log"] = log_report(args.log, log, log_pi_of(before), log_pi_of(run.policy))
    _keep(args, run, report)
    return report


def _keep(args: Args, run: _PaperTraining, report: dict[str, Any]) -> None:
    """The best net so far, so that a run that is ended early leaves one."""
    torch.save({"shape": run.policy.shape, "policy": run.best_state}, args.out / CHECKPOINT)
    (args.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def load_net(checkpoint: Path) -> PaperPolicy:
    """The best net of a training run."""
    stored = torch.load(checkpoint, map_location="cpu", weights_only=True)
    net = PaperPolicy(**stored["shape"])
    net.load_state_dict(stored["policy"])
    return net.eval()


def _report(args: Args, run: _PaperTraining, seconds: float) -> dict[str, Any]:
    first = 100_000 * args.seed
    machine = ("out", "threads", "reward_model", "start")
    return {
        "schema": SCHEMA,
        "columns": list(columns(args.nodes)),
        "seed": args.seed,
        "args": {**{n: v for n, v in asdict(args).items() if n not in machine}, **run.policy.shape},
        "parameters": sum(p.numel() for p in run.policy.parameters()),
        "data": {"seeds": [first, first + run.rounds * args.simulations]},
        "tasks": run.tasks,
        "seconds": {"training": round(seconds, 1)},
        "history": run.history,
        "metrics": {"validation_vs_consolidate": run.best} if run.history else {},
    }


def _run(args: Args) -> _PaperTraining:
    shape = (args.nodes, args.width, args.heads, args.layers)
    policy = begun(args.start) if args.start else PaperPolicy(*shape)
    value = PaperValue(**policy.shape)
    optimiser = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=args.rate)
    return _PaperTraining(policy, value, optimiser, deque(maxlen=args.replay))


def begun(folder: Path) -> PaperPolicy:
    """The net of a training run or of a bundle. Raises ValueError for a graph of another form, OSError."""
    if (folder / CHECKPOINT).is_file():
        return load_net(folder / CHECKPOINT)
    args = json.loads((folder / HARMONY_PAPER_REPORT).read_text("utf-8"))["args"]
    shape = {name: args[name] for name in ("nodes", "width", "heads", "layers")}
    return filled(PaperPolicy(**shape), folder / HARMONY_PAPER_MODEL)


def _episodes(
    args: Args, run: _PaperTraining, share: float, scorer: RewardRuntime
) -> tuple[list[list[Interval]], float]:
    """The intervals of each simulation of a round, and the mean of their average JCTs in seconds."""
    first = 100_000 * args.seed + run.rounds * args.simulations
    episodes, jct_s = [], []
    for seed in range(first, first + args.simulations):
        actor = PaperActor(run.policy, np.random.default_rng((seed, 58)), scorer, args.explore * (1.0 - share))
        jct_s.append(simulate(situation(seed, args.nodes, args.jobs), actor))
        actor.finish()
        episodes.append(actor.intervals)
    return episodes, float(np.mean(jct_s))


def samples_of(intervals: Sequence[Interval], gamma: float) -> list[Sample]:
    """Every task with its interval's reward and the next interval's first state."""
    following = [*(interval.steps[0] for interval in intervals[1:]), None]
    return [
        Sample(step, interval.reward, gamma**interval.passed, after)
        for interval, after in zip(intervals, following, strict=True)
        for step in interval.steps
    ]


def _learn(args: Args, run: _PaperTraining, episodes: Sequence[Sequence[Interval]], share: float) -> dict[str, float]:
    """One update per interval of the round."""
    rng = np.random.default_rng((args.seed, 59, run.rounds))
    for episode in episodes:
        if episode:
            run.replay.extend(samples_of(episode, args.gamma))
    run.policy.train()
    losses: list[tuple[float, float]] = []
    for _ in range(args.updates * sum(len(episode) for episode in episodes)):
        chosen = [run.replay[int(i)] for i in rng.integers(len(run.replay), size=args.batch)]
        losses.append(_update(run, chosen, args.entropy * (1.0 - share)))
    run.policy.eval()
    policy, value = np.mean(losses, axis=0).tolist() if losses else (0.0, 0.0)
    return {"policy_loss": policy, "value_loss": value}


def _learn_log(args: Args, run: _PaperTraining, log: HeldBack[PolicyRow[Steps]]) -> None:
    """The update of (2) on decisions of the log, drawn as from the FIFO."""
    kept = samples_of(intervals_of(log.learn), args.gamma)
    if not kept:
        raise ValueError("no reward of the log's decisions is known: export a longer log")
    rng, count = np.random.default_rng((args.seed, 60)), args.passes * len(log.learn)
    run.policy.train()
    for number in range(count):
        chosen = [kept[int(i)] for i in rng.integers(len(kept), size=args.batch)]
        _update(run, chosen, args.entropy * (1.0 - number / count))
    run.policy.eval()
    run.best_state = {name: value.detach().clone() for name, value in run.policy.state_dict().items()}


def _update(run: _PaperTraining, chosen: Sequence[Sample], beta: float) -> tuple[float, float]:
    rows, mask = collate([sample.step for sample in chosen])
    known = [sample.after for sample in chosen if sample.after is not None]
    with torch.no_grad():
        ahead = iter(run.value(*collate(known)).tolist() if known else [])
    wanted = torch.tensor([s.reward + s.discount * (next(ahead) if s.after is not None else 0.0) for s in chosen])
    value = run.value(rows, mask)
    open_actions = torch.from_numpy(np.stack([sample.step.mask for sample in chosen]))
    log_pi = masked_log_probabilities(run.policy(rows, mask)[:, 0], open_actions)
    taken = log_pi.gather(1, torch.tensor([[sample.step.action] for sample in chosen]))[:, 0]
    then = torch.tensor([sample.step.probability for sample in chosen])
    weight = torch.exp(taken.detach() - torch.log(then)).clamp(max=_MOST_RATIO)
    entropy = -(log_pi.exp() * log_pi.clamp(min=-50.0)).sum(dim=1).mean()
    value_loss = torch.nn.functional.smooth_l1_loss(value, wanted)
    loss = -(weight * taken * (wanted - value.detach())).mean() - beta * entropy
    run.optimiser.zero_grad()
    (loss + 0.5 * value_loss).backward()
    torch.nn.utils.clip_grad_norm_([*run.policy.parameters(), *run.value.parameters()], 1.0)
    run.optimiser.step()
    return float(loss.detach()), float(value_loss.detach())


def collate(steps: Sequence[PaperStep]) -> tuple[Tensor, Tensor]:
    """rows (B, J, columns) and mask (B, J), padded to the longest."""
    most = max(len(step.rows) for step in steps)
    rows = np.zeros((len(steps), most, steps[0].rows.shape[1]), dtype=np.float32)
    mask = np.zeros((len(steps), most), dtype=np.float32)
    for i, step in enumerate(steps):
        rows[i, : len(step.rows)], mask[i, : len(step.rows)] = step.rows, 1.0
    return torch.from_numpy(rows), torch.from_numpy(mask)


def _yardstick(args: Args, i: int) -> float:
    """Average JCT of consolidate in validation simulation i."""
    drawn = situation(FIRST_VALIDATION_SEED + i, args.nodes, args.jobs)
    return simulate(drawn, placement_policies()["consolidate"])


def _validated(args: Args, run: _PaperTraining, yardsticks: Sequence[float]) -> float:
    """Geometric mean of the net's JCT over consolidate's; the net may become the best of the run."""
    ratios = []
    for i, theirs in enumerate(yardsticks):
        actor = PaperActor(run.policy, np.random.default_rng(i), None, is_sampled=False)
        ratios.append(simulate(situation(FIRST_VALIDATION_SEED + i, args.nodes, args.jobs), actor) / theirs)
    now = float(np.exp(np.mean(np.log(ratios)))) if ratios else 0.0
    run.history.append({"tasks": run.tasks, "validation": now})
    if now < run.best:
        run.best = now
        run.best_state = {name: value.detach().clone() for name, value in run.policy.state_dict().items()}
    return now

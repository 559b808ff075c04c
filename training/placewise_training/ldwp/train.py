"""Trains LDWP's size-agnostic Q net: logged decisions → double DQN from demonstrations → judged on an unseen truth.

    python -m placewise_training.ldwp.train --out var/train/ldwp        (placewise train ldwp)

Read top to bottom. Every random draw comes from `seed`; Ctrl-C leaves a checkpoint that `--resume` goes on from. The
paper's own DQN is in agent.py; it learns while it serves, and the reproduction runs it.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from placewise_core.basics.arrays import Float32, IntArray
from placewise_core.inputs.ldwp import COLUMNS
from placewise_models.folder import shipped_bundle
from placewise_training.lab.device import chosen_device
from placewise_training.lab.scalars import Scalars
from placewise_training.ldwp.data import Recorder, Replay, Situation, situation
from placewise_training.ldwp.from_log import NodeStep, begun, errors, log_report, log_steps, replay_of, values_of
from placewise_training.ldwp.judge import judged
from placewise_training.ldwp.net import NodeDqn
from placewise_training.log.later import HeldBack

SCHEMA = "placewise.ldwp/1"
CHECKPOINT, REPORT = "ldwp.pt", "ldwp.json"
_ABOUT_THE_MACHINE = ("out", "device", "threads", "resume", "start")  # not of the model: left out of its report
_VALIDATION_SEED = 9_000_000
# Sets progress: (title, done, total).
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Args:
    """What `placewise train ldwp` takes; the string beside each becomes its help."""

    out: Path = field(default=Path("var/train/ldwp"), metadata={"help": "Folder for checkpoint, report, TensorBoard."})
    seed: int = field(default=0, metadata={"help": "Of every draw."})
    logged: int = field(
        default=25, metadata={"help": "Episodes of pre-training: the teacher decides, by default a quarter at random."}
    )
    episodes: int = field(default=50, metadata={"help": "Episodes of the net itself after that."})
    tasks: int = field(default=200, metadata={"help": "Tasks of an episode: decisions."})
    updates: int = field(default=150, metadata={"help": "Optimiser steps after each episode."})
    batch: int = field(default=128, metadata={"help": "Transitions per step; the paper has 20."})
    gamma: float = field(default=0.8, metadata={"help": "Discount, as in the paper."})
    rate: float = field(default=1e-3, metadata={"help": "Adam's learning rate, falling to a tenth."})
    width: int = field(default=64, metadata={"help": "Neurons per layer."})
    margin: float = field(default=0.1, metadata={"help": "By how much the teacher's node must lead (DQfD's margin)."})
    margin_weight: float = field(default=1.0, metadata={"help": "Of the margin loss at first; falls to 0."})
    balance: float = field(
        default=2.0, metadata={"help": "Cost of a unit of load (7) above the mean, in turnarounds of 300 s."}
    )
    explore: float = field(default=0.25, metadata={"help": "Random decisions at first; falls to 0.02."})
    target_every: int = field(default=200, metadata={"help": "Optimiser steps between copies to the target net."})
    replay: int = field(default=12_000, metadata={"help": "Transitions kept."})
    validations: int = field(default=4, metadata={"help": "Situations the best net is chosen on."})
    judged_seeds: int = field(default=5, metadata={"help": "Seeds of the judgement on the unseen truth; 0: none."})
    judged_tasks: int = field(default=400, metadata={"help": "Tasks of each run of the judgement."})
    validate_every: int = field(default=15, metadata={"help": "Episodes between validations and checkpoints."})
    threads: int = field(default=1, metadata={"help": "CPU threads."})
    device: str = field(
        default="", metadata={"help": "Torch device. By default a GPU, or the CPU of a machine without GPU."}
    )
    resume: bool = field(default=False, metadata={"help": "Go on from the checkpoint in `out`."})
    log: str = field(default="", metadata={"help": "Folder or URL of an exported decision log, to learn from."})
    before_s: float = field(
        default=0.0, metadata={"help": "Read no decisions of the log after this time (seconds since 1970); 0: all."}
    )
    only_log: bool = field(default=False, metadata={"help": "Learn from the log alone, without simulations."})
    start: Path | None = field(default=None, metadata={"help": "Bundle whose net the training starts from."})


@dataclass(slots=True)
class State:
    """All that a resumed run needs."""

    net: NodeDqn
    target: NodeDqn
    optimiser: torch.optim.Optimizer
    replay: Replay
    episode: int = 0
    updates: int = 0
    best: float = -np.inf
    best_net: Mapping[str, Tensor] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    earlier_s: float = 0.0  # CPU seconds of the runs before this one
    logged: Replay | None = None  # transitions of a log


def train(args: Args, show: Show = lambda title, done, total: None) -> dict[str, Any]:
    """Trains and judges; the report that is also written to `out`. Raises ValueError for a foreign checkpoint and for a
    log that holds too little, LogError."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.process_time()
    log = _log(args)
    state = restored(args) if args.resume else fresh(args)
    state.logged = replay_of(log.learn, args.balance) if log else None
    rounds = args.logged + args.episodes

    # -- the validation set, and the teacher's result on it; of a log, a tenth of its steps --
    held_back = [situation(_VALIDATION_SEED + 1000 * args.seed + i, args.tasks) for i in _validations(args)]
    taught = [_cost(now, args, None) for now in held_back]

    with Scalars(args.out) as write:
        while state.episode < rounds:
            # -- one episode: the teacher's while pre-training, then the net's own --
            is_logged = state.episode < args.logged
            progress = max(0.0, (state.episode - args.logged) / max(1, args.episodes))
            explore = args.explore if is_logged else max(0.02, args.explore * (1.0 - progress))
            if not args.only_log:
                played, seen = play(args, state, explore, guided=1.0 if is_logged else 0.0)
                state.replay = state.replay.with_episode(seen, played, args.replay)
                write("turnaround_s", float(np.mean(list(played.values()))), state.episode)

            # -- learning: temporal differences, and the teacher's lead while it lasts --
            weight = args.margin_weight * (1.0 if is_logged else max(0.0, 1.0 - 2.0 * progress))
            _set_rate(state.optimiser, args.rate * (1.0 - 0.9 * state.episode / rounds))
            loss = float(torch.stack([update(state, args, weight) for _ in range(args.updates)]).mean())
            write("loss", loss, state.episode)
            state.episode += 1

            # -- validation and checkpoint --
            if state.episode % args.validate_every == 0 or state.episode in (args.logged, rounds):
                score = _score(state.net, args, log, held_back, taught)
                write("validation/minus_error" if log else "validation/cost_below_teacher", score, state.episode)
                state.history.append({"episode": state.episode, "score": score, "loss": loss})
                if score > state.best:
                    state.best, state.best_net = score, _copied(state.net)
                keep(args, state, state.earlier_s + time.process_time() - began)
            show(f"training, {state.best:+.3f}" + ("" if log else " against the teacher"), state.episode, rounds)

    trained_s = state.earlier_s + time.process_time() - began
    keep(args, state, trained_s)
    state.net.load_state_dict(state.best_net)
    report = _report(args, state, rounds, trained_s)
    report["metrics"] = judged(TorchValues(state.net), args.judged_seeds, args.judged_tasks, show)
    if log:
        report["log"] = log_report(args.log, log, begun(args.start or shipped_bundle()), state.net, args)
    (args.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return report


def _report(args: Args, state: State, rounds: int, trained_s: float) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "columns": list(COLUMNS),
        "seed": args.seed,
        "args": {name: value for name, value in asdict(args).items() if name not in _ABOUT_THE_MACHINE},
        "parameters": sum(p.numel() for p in state.net.parameters()),
        "data": {"replay": state.replay.fingerprint()},
        "samples": {"decisions": rounds * args.tasks},
        "seconds": {"cpu": round(trained_s, 1)},
        "validation": {"best": state.best, "history": state.history},
    }


def _log(args: Args) -> HeldBack[NodeStep] | None:
    if args.only_log and not args.log:
        raise ValueError("--only-log needs a log (--log)")
    return log_steps(args.log, args.before_s) if args.log else None


def _score(
    net: NodeDqn, args: Args, log: HeldBack[NodeStep] | None, held_back: Sequence[Situation], taught: Sequence[float]
) -> float:
    if log:
        return -float(errors(net, log.choose, args).mean())
    return validated(net, args, held_back, taught)


def _validations(args: Args) -> range:
    return range(0 if args.log else args.validations)


@dataclass(frozen=True, slots=True)
class TorchValues:
    """The net as place.ldwp.NodeValues."""

    net: NodeDqn

    def values(self, rows: Float32) -> Float32:
        return values_of(self.net, rows)


def play(args: Args, state: State, explore: float, guided: float) -> tuple[Mapping[int, float], Recorder]:
    """One episode: turnaround in seconds by task, and the recorded decisions."""
    seed = 1_000_000 * (args.seed + 1) + state.episode
    now = situation(seed, args.tasks)
    seen = Recorder(now.truth, now.has_times, TorchValues(state.net), explore, guided, seed, args.balance)
    return now.simulate(seen)[1], seen


def validated(net: NodeDqn, args: Args, held_back: Sequence[Situation], taught: Sequence[float]) -> float:
    """Mean share by which what decisions cost is below the teacher's, who knows true times."""
    return float(np.mean([1.0 - _cost(now, args, net) / cost for now, cost in zip(held_back, taught, strict=True)]))


def _cost(now: Situation, args: Args, net: NodeDqn | None) -> float:
    """Minus the mean reward of the net's decisions, or of the teacher's."""
    values, guided = (None, 1.0) if net is None else (TorchValues(net), 0.0)
    seen = Recorder(now.truth, now.has_times, values, 0.0, guided, 0, args.balance)
    return -float(seen.rewards(now.simulate(seen)[1]).mean())


def update(state: State, args: Args, margin_weight: float) -> Tensor:
    """One step on a batch of simulated transitions, one of a log's, or both. The loss () stays on its device: reading
    it would make a GPU wait."""
    rng = np.random.default_rng((args.seed, 73, state.updates))
    losses = []
    if len(state.replay):
        losses.append(_loss(state, args, state.replay, rng.integers(len(state.replay), size=args.batch), margin_weight))
    if state.logged is not None:
        losses.append(_loss(state, args, state.logged, rng.integers(len(state.logged), size=args.batch), 0.0))
    loss = torch.stack(losses).mean()
    state.optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(state.net.parameters(), 5.0)
    state.optimiser.step()
    state.updates += 1
    if state.updates % args.target_every == 0:
        state.target.load_state_dict(state.net.state_dict())
    return loss.detach()


def _loss(state: State, args: Args, replay: Replay, chosen: IntArray, margin_weight: float) -> Tensor:
    """Huber loss of double DQN's temporal differences, and the margin loss of demonstrations (Hester et al. 2018): the
    teacher's node must lead by `margin`. Where the reward is a bound, a value below it is right."""
    following = replay.next[chosen]
    device = _device_of(state.net)
    rows, mask, action, taught, reward = (
        torch.from_numpy(kept[chosen]).to(device)
        for kept in (replay.rows, replay.mask, replay.action, replay.taught, replay.reward)
    )
    goes_on = torch.from_numpy((following >= 0).astype(np.float32)).to(device)
    next_rows, next_mask = (torch.from_numpy(kept[following]).to(device) for kept in (replay.rows, replay.mask))

    values = state.net(rows, mask)  # (B, C)
    taken = values.gather(1, action[:, None]).squeeze(1)
    with torch.no_grad():
        best = state.net(next_rows, next_mask).argmax(dim=1, keepdim=True)
        ahead = state.target(next_rows, next_mask).gather(1, best).squeeze(1)
        wanted = reward + args.gamma * ahead * goes_on
        if len(replay.is_bound):
            is_below = torch.from_numpy(replay.is_bound[chosen]).to(device) & (taken < wanted)
            wanted = torch.where(is_below, taken, wanted)
    loss = torch.nn.functional.smooth_l1_loss(taken, wanted)
    if margin_weight > 0:
        lead = torch.full_like(values, args.margin).scatter(1, taught[:, None], 0.0)
        short = (values + lead).amax(dim=1) - values.gather(1, taught[:, None]).squeeze(1)
        loss = loss + margin_weight * short.mean()
    return loss


def fresh(args: Args) -> State:
    """The beginning."""
    device = chosen_device(args.device)
    net = NodeDqn(len(COLUMNS), args.width).to(device)
    if args.start:
        net.load_state_dict(begun(args.start).state_dict())
    target = NodeDqn(len(COLUMNS), args.width).to(device)
    target.load_state_dict(net.state_dict())
    return State(net, target, torch.optim.Adam(net.parameters(), lr=args.rate), Replay.empty())


def _set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate


def _copied(net: NodeDqn) -> dict[str, Tensor]:
    return {name: value.cpu().clone() for name, value in net.state_dict().items()}


def _device_of(net: NodeDqn) -> torch.device:
    return net.value.bias.device


def keep(args: Args, state: State, seconds: float) -> None:
    """Writes the checkpoint in one piece; `seconds` of CPU it took so far."""
    part = args.out / (CHECKPOINT + ".part")
    torch.save(
        {
            "schema": SCHEMA,
            "columns": list(COLUMNS),
            "width": args.width,
            "best_net": state.best_net,
            "net": state.net.state_dict(),
            "target": state.target.state_dict(),
            "optimiser": state.optimiser.state_dict(),
            "replay": {f.name: torch.from_numpy(getattr(state.replay, f.name)) for f in fields(Replay)},
            "progress": [state.episode, state.updates, state.best],
            "history": state.history,
            "seconds": seconds,
        },
        part,
    )
    part.replace(args.out / CHECKPOINT)


def restored(args: Args) -> State:
    """From the checkpoint in `out`. Raises ValueError for one of other columns or width."""
    stored = _stored(args.out / CHECKPOINT)
    if stored["width"] != args.width:
        raise ValueError(f"the checkpoint in {args.out} is {stored['width']} wide, not {args.width}; pass its --width")
    state = fresh(args)
    state.net.load_state_dict(stored["net"])
    state.target.load_state_dict(stored["target"])
    state.optimiser.load_state_dict(stored["optimiser"])
    state.replay = Replay(**{name: array.numpy() for name, array in stored["replay"].items()})
    state.episode, state.updates, state.best = stored["progress"]
    state.best_net, state.history = stored["best_net"], stored["history"]
    state.earlier_s = stored["seconds"]
    return state


def load_net(checkpoint: Path) -> NodeDqn:
    """The best net of a training run. Raises ValueError for other columns than this version encodes."""
    stored = _stored(checkpoint)
    net = NodeDqn(len(COLUMNS), stored["width"])
    net.load_state_dict(stored["best_net"])
    return net.eval()


def _stored(checkpoint: Path) -> dict[str, Any]:
    stored: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
    if stored.get("schema") != SCHEMA or stored["columns"] != list(COLUMNS):
        raise ValueError(f"{checkpoint} is no checkpoint of LDWP with this version's columns; train it again")
    return stored

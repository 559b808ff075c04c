"""Trains the reward model: samples from simulations → net → errors on a truth it never saw → reward.pt, reward.json.

    python -m placewise_training.reward.train --out var/train/reward        (placewise train reward)

Read top to bottom. Every random draw comes from `seed`; Ctrl-C leaves a checkpoint that `--resume` goes on from.
"""

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from placewise_core.inputs.cluster import PART_FEATURES, feature_schema
from placewise_core.inputs.reward import REPORTED
from placewise_models.folder import shipped_bundle
from placewise_training.lab.device import chosen_device
from placewise_training.lab.scalars import Scalars
from placewise_training.log.later import named
from placewise_training.reward import data as reward_samples
from placewise_training.reward.data import (
    Sample,
    Situation,
    collate,
    fingerprint,
    judging_situation,
    training_situation,
    wide_situation,
)
from placewise_training.reward.from_log import LogSamples, gain_of, log_samples
from placewise_training.reward.judge import beyond, calibration, constant_error, errors, judge, spread_limit
from placewise_training.reward.net import SPREAD_PARAMETERS, RewardNet, relative_error, scale_loss
from placewise_training.reward.uncertainty import choose_gain, train_ensemble
from placewise_training.reward.unfamiliar import PRACTICE
from placewise_training.reward.weights import begun, file_of

SCHEMA = "placewise.reward/1"
CHECKPOINT, REPORT = "reward.pt", "reward.json"
_ABOUT_THE_MACHINE = ("out", "device", "threads", "start", "resume")  # not of the model: left out of its report
_INTERVAL_S = 1200.0  # Harmony's scheduling interval
_SCALE_WEIGHT = 0.02  # of the likelihood beside the relative error: it must not bend the trunk
_FIRST_PRACTICE_SEED = 800_000  # beyond those of training
# Test sets: the truth that made them, and the seconds between two rounds of scheduling (0: at every event).
JUDGED = {
    "unseen_train": ("train", 0.0),
    "unseen_judge": ("judge", 0.0),
    "unseen_judge_intervals": ("judge", _INTERVAL_S),
}
# Sets progress: (title, done, total).
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Args:
    """What `placewise train reward` takes; the string beside each becomes its help."""

    out: Path = field(
        default=Path("var/train/reward"), metadata={"help": "Folder for checkpoint, report, TensorBoard."}
    )
    seed: int = field(default=0, metadata={"help": "Of every draw."})
    simulations: int = field(default=400, metadata={"help": "Simulations the training samples come from."})
    judged_simulations: int = field(default=12, metadata={"help": "Simulations of each test set."})
    wide_share: float = field(
        default=0.0,
        metadata={"help": "Share of the simulations on wide ranges of networks, links between GPUs and disturbance."},
    )
    steps: int = field(default=4000, metadata={"help": "Optimiser steps."})
    batch: int = field(default=64, metadata={"help": "Placements per step."})
    width: int = field(default=64, metadata={"help": "Neurons per layer; Harmony has 128."})
    heads: int = field(default=8, metadata={"help": "Attention heads, as Harmony."})
    layers: int = field(default=2, metadata={"help": "Encoder layers, as Harmony."})
    members: int = field(default=4, metadata={"help": "Heads on the trunk, each with weights of its own."})
    doubt_steps: int = field(
        default=1200, metadata={"help": "Training steps of the ensemble that estimates the uncertainty."}
    )
    practice: int = field(default=8, metadata={"help": "Simulations of each kind that calibrate the uncertainty."})
    new_weight: float = field(
        default=3.0, metadata={"help": "Loss weight of the new job, which has no reported speed; others have 1."}
    )
    peak_rate: float = field(default=2e-3, metadata={"help": "Learning rate at the end of the warm-up."})
    warm_up: int = field(default=200, metadata={"help": "Warm-up steps, in which the learning rate rises to its peak."})
    blind_share: float = field(default=0.15, metadata={"help": "Samples whose reported speeds are hidden."})
    held_back: float = field(default=0.05, metadata={"help": "Share of the simulations kept for validation."})
    validate_every: int = field(default=250, metadata={"help": "Steps between validations and checkpoints."})
    threads: int = field(default=1, metadata={"help": "CPU threads."})
    device: str = field(
        default="", metadata={"help": "Torch device. By default a GPU, or the CPU of a machine without GPU."}
    )
    start: str = field(
        default="", metadata={"help": "reward.pt, reward.onnx or bundle: initial weights, of a net of this size."}
    )
    log: str = field(default="", metadata={"help": "Folder or URL of an exported decision log, to learn from."})
    before_s: float = field(
        default=0.0, metadata={"help": "Learn from no decision after this time (seconds since 1970); 0: from all."}
    )
    only_log: bool = field(default=False, metadata={"help": "Learn from the log alone, without simulations."})
    log_share: float = field(default=0.5, metadata={"help": "Share of the batches that come from the log."})
    spread_only: bool = field(
        default=False, metadata={"help": "Freeze the predicted speeds; train only their expected error."}
    )
    resume: bool = field(default=False, metadata={"help": "Go on from the checkpoint in `out`."})


class _Source(NamedTuple):
    """Samples with their numbers of tokens."""

    samples: Sequence[Sample]
    lengths: Any


class _Data(NamedTuple):
    """Samples of simulations and of the log to learn from, and those to choose by. `log` has what it is judged on."""

    simulated: Sequence[Sample]
    logged: Sequence[Sample]
    held_back: Sequence[Sample]
    log: LogSamples | None

    @property
    def training(self) -> list[Sample]:
        return [*self.simulated, *self.logged]

    @property
    def values(self) -> list[Sample]:
        """Those to learn from without bounds."""
        return [sample for sample in self.training if not sample.is_bound]


@dataclass(slots=True)
class _RewardTraining:
    """A net in training, with the rest of its checkpoint and the device."""

    net: RewardNet
    optimiser: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    device: torch.device
    best_state: Mapping[str, torch.Tensor]
    best: float = float("inf")
    step: int = 0


def train(args: Args, show: Show = lambda title, done, total: None) -> dict[str, Any]:
    """Trains and judges; the report that is also written to `out`. Raises ValueError for a foreign checkpoint or a log
    that holds too little, LogError for one that cannot be read."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    device = chosen_device(args.device)
    args.out.mkdir(parents=True, exist_ok=True)

    began = time.perf_counter()
    data = _data(args, show)
    simulated_s = time.perf_counter() - began  # next to nothing where samples were kept from an earlier run

    began = time.perf_counter()
    run = _run(args, device)
    _train_net(args, run, data, show)
    practice, gains = _train_uncertainty(args, run, data, show)
    train_s = time.perf_counter() - began

    report = {
        **_described(args, run.net),
        "data": {
            "training": fingerprint(data.training),
            "held_back": fingerprint(data.held_back),
            **_start_digest(args),
        },
        "samples": {"training": len(data.training), "held_back": len(data.held_back)},
        "seconds": {"data": round(simulated_s, 1), "training": round(train_s, 1)},
        "doubt": {"gain": float(run.net.uncertainty.gain), "likelihood_by_gain": gains},
        **_judge(args, run, data, practice, show),
    }
    (args.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return report


def _data(args: Args, show: Show) -> _Data:
    """Of the log the later part is held back for judging, and a tenth before it for choosing."""
    if args.only_log and not args.log:
        raise ValueError("--only-log needs a log (--log)")
    log = log_samples(args.log, args.before_s) if args.log else None
    held_back, simulated = ([], []) if args.only_log else _split(args, show)
    return _Data(simulated, log.learn if log else (), [*held_back, *(log.choose if log else ())], log)


def _split(args: Args, show: Show) -> tuple[list[Sample], list[Sample]]:
    """Held back and training. Whole simulations are held back, so that no sample has a sibling on the other side."""
    seeds = [100_000 * args.seed + i for i in range(args.simulations)]
    cut = max(1, round(args.held_back * len(seeds)))
    make = partial(_situation, args.wide_share)
    of = f" wide {args.wide_share}" if args.wide_share else ""
    held_back = _samples(args.out / "held_back.npz", make, seeds[:cut], "simulating (held back)", show, of)
    return held_back, _samples(args.out / "training.npz", make, seeds[cut:], "simulating", show, of)


def _situation(wide_share: float, seed: int) -> Situation:
    is_wide = np.random.default_rng((seed, 27)).random() < wide_share
    return wide_situation(seed) if is_wide else training_situation(seed)


def _run(args: Args, device: torch.device) -> _RewardTraining:
    """Net, optimiser and schedule, new or as an earlier run left them: Adam with the Transformer's warm-up, as in the
    paper."""
    net = RewardNet(PART_FEATURES, args.width, args.heads, args.layers, args.members).to(device)
    for name, parameter in net.named_parameters():
        is_of_uncertainty = name.startswith("uncertainty.")  # which is trained at the end, on the finished net's errors
        parameter.requires_grad = not is_of_uncertainty and (name in SPREAD_PARAMETERS or not args.spread_only)
    optimiser = torch.optim.Adam(net.parameters(), lr=args.peak_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step + 1, args.warm_up, args.steps))
    if args.start:
        net.load_state_dict(_same(begun(Path(args.start)), net).state_dict())
    run = _RewardTraining(net, optimiser, schedule, device, _copied(net))
    if args.resume:
        _restore(args, run)
    return run


def _train_net(args: Args, run: _RewardTraining, data: _Data, show: Show) -> None:
    """All but the uncertainty. The net ends with its best weights on the samples held back."""
    given = [samples for samples in (data.simulated, data.logged) if samples]
    sources = [_Source(samples, np.array([len(sample.job) for sample in samples])) for samples in given]
    with Scalars(args.out) as write:
        for step in range(run.step, args.steps):
            rng = np.random.default_rng((args.seed, 32, step))
            loss = _learn(args, run, _source(args, sources, rng), rng)
            run.step = step + 1
            if step % 20 == 0:
                write("loss/training", float(loss), step)
            if run.step % args.validate_every == 0 or run.step == args.steps:
                now = _validation_error(run.net, data.held_back, run.device)
                write("loss/held_back", now, step)
                if now <= run.best:  # equal where only the spread learns: then the latest
                    run.best, run.best_state = now, _copied(run.net)
                _keep(args, run)
            show(f"training, held-back error {run.best:.1%}", run.step, args.steps)
    run.net.load_state_dict(run.best_state)


def _source(args: Args, sources: Sequence[_Source], rng: np.random.Generator) -> _Source:
    """The samples of a step: of the simulations, the first, or of the log. One source alone is not drawn from."""
    return sources[-1] if len(sources) == 1 or rng.random() < args.log_share else sources[0]


def _learn(args: Args, run: _RewardTraining, source: _Source, rng: np.random.Generator) -> torch.Tensor:
    """One step of the optimiser on one batch; its loss. `rng` is of the step: a resumed run goes on as it would
    have."""
    batch = collate([source.samples[i] for i in _alike(source.lengths, args.batch, rng)])
    _blind(batch, args.blind_share, rng)
    tokens, job, node, speed, weight, bound = _tensors(batch, run.device)
    level, scale = run.net.members(tokens, job, node)
    true, weights = speed.unsqueeze(2), _weights(job, weight, args, rng)
    loss = relative_error(level.exp(), true, weights, bound.unsqueeze(2))
    loss = loss + _SCALE_WEIGHT * scale_loss(level, scale, true, weights * ~bound.unsqueeze(2))
    run.optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(run.net.parameters(), 1.0)
    run.optimiser.step()
    run.schedule.step()
    detached: torch.Tensor = loss.detach()
    return detached


def _train_uncertainty(
    args: Args, run: _RewardTraining, data: _Data, show: Show
) -> tuple[list[list[Sample]], Mapping[str, float]]:
    """An ensemble on the finished net's errors, scaled on placements that the net was not trained on. Returns these
    and the likelihood by gain."""
    show("training the uncertainty", 0, 1)
    for parameter in run.net.uncertainty.learned.parameters():
        parameter.requires_grad = True
    train_ensemble(run.net, data.values, args.doubt_steps, np.random.default_rng((args.seed, 33)))
    practice = [] if args.only_log else _practice(args, show)
    gains = choose_gain(run.net, [[sample for sample in data.held_back if not sample.is_bound], *practice])
    run.step, run.best_state = args.steps, _copied(run.net)
    _keep(args, run)
    return practice, gains


def _described(args: Args, net: RewardNet) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "feature_schema": feature_schema("reward")["hash"],
        "seed": args.seed,
        "args": {name: value for name, value in asdict(args).items() if name not in _ABOUT_THE_MACHINE},
        "parameters": sum(p.numel() for p in net.parameters()),
    }


def _start_digest(args: Args) -> dict[str, str]:
    return {"start": hashlib.sha256(file_of(Path(args.start)).read_bytes()).hexdigest()} if args.start else {}


def _copied(net: RewardNet) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def _same(begin: RewardNet, net: RewardNet) -> RewardNet:
    """The net to begin with. Raises ValueError where its shape is another."""
    if [p.shape for p in begin.parameters()] != [p.shape for p in net.parameters()]:
        raise ValueError("--start is a net of another shape; pass its --width, --heads, --layers and --members")
    return begin


def _weights(job: torch.Tensor, weight: torch.Tensor, args: Args, rng: np.random.Generator) -> torch.Tensor:
    """(B, P, members): a new job counts more, and every member sees every placement with a weight of its own."""
    weight = weight * torch.where(job == 0, args.new_weight, 1.0)
    own = rng.poisson(1.0, (len(job), 1, args.members)) if args.members > 1 else np.ones((len(job), 1, 1))
    drawn: torch.Tensor = weight.unsqueeze(2) * torch.from_numpy(0.5 + 0.5 * own.astype(np.float32)).to(weight.device)
    return drawn


def _validation_error(net: RewardNet, held_back: Sequence[Sample], device: torch.device) -> float:
    """Half that of all jobs, half that of the new ones: the net is for the second, most jobs are in the first."""
    found = errors(judge(net, held_back, device))
    return 0.5 * (found["mean_relative_error"] + found["mean_relative_error_new"])


def _judge(
    args: Args, run: _RewardTraining, data: _Data, practice: Sequence[Sequence[Sample]], show: Show
) -> dict[str, Any]:
    """On other measurements, another arrival pattern and other seeds, with the noise that no model can know; with a log
    also on its later part, beside the net that it began with."""
    unfamiliar = [sample for samples in practice for sample in samples]
    limit, separates = spread_limit(judge(run.net, [*data.held_back, *unfamiliar], run.device))
    sets: dict[str, Sequence[Sample]] = {"held_back": data.held_back}
    seeds = range(10_000, 10_000 + args.judged_simulations)
    for name, (truth, every_s) in () if args.only_log else JUDGED.items():
        sets[name] = _samples(args.out / f"{name}.npz", _maker(truth, every_s), seeds, f"simulating {name}", show)
    judged = {name: _judged(run.net, limit, samples, data.values, run.device) for name, samples in sets.items()}
    report = {
        "spread_limit": limit,
        "spread_separates": separates,
        "metrics": {name: found["errors"] for name, found in judged.items()},
        "calibration": {name: found["calibration"] for name, found in judged.items()},
    }
    if data.log is not None:
        before = begun(Path(args.start) if args.start else shipped_bundle()).to(run.device)
        later = gain_of(before, run.net, data.log, run.device)
        report["log"] = {
            **named(args.log),
            "samples": len(data.logged),
            "counts": dict(data.log.counts),
            "later": later,
        }
    return report


def _judged(
    net: RewardNet, limit: float, samples: Sequence[Sample], training: Sequence[Sample], device: torch.device
) -> Mapping[str, Any]:
    seen = judge(net, samples, device)
    figures = {
        **errors(seen),
        "mean_relative_error_blind": errors(judge(net, samples, device, is_blind=True))["mean_relative_error"],
        "mean_relative_error_constant": constant_error(training, samples),
        "samples": float(len(samples)),
        **beyond(seen, limit),
    }
    return {"errors": figures, "calibration": calibration(seen)}


def _practice(args: Args, show: Show) -> list[list[Sample]]:
    """Unfamiliar placements on training truths, by seeds of their own."""
    seeds = range(_FIRST_PRACTICE_SEED, _FIRST_PRACTICE_SEED + args.practice)
    return [
        _samples(args.out / f"practice_{i}.npz", make, seeds, f"simulating {name}", show)
        for i, (name, make) in enumerate(PRACTICE.items())
    ]


def _maker(truth: str, every_s: float) -> Callable[[int], reward_samples.Situation]:
    return lambda seed: judging_situation(seed, truth, every_s=every_s)


def _samples(
    path: Path, make: Callable[[int], Situation], seeds: Sequence[int], title: str, show: Show, of: str = ""
) -> list[Sample]:
    """Kept beside the checkpoint, stamped with features, seeds, sampling code and the options `of` the maker: a resumed
    run need not simulate."""
    stamp = path.with_suffix(".txt")
    code = hashlib.sha256(inspect.getsource(reward_samples).encode()).hexdigest()
    wanted = f"{feature_schema('reward')['hash']} {code} {seeds[0]}-{seeds[-1]}{of}"
    if path.is_file() and stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return reward_samples.read(path)
    samples = list(reward_samples.records(make, seeds, lambda done: show(title, done, len(seeds))))
    reward_samples.save(path, samples)
    stamp.write_text(wanted, "utf-8")
    return samples


def _rate(step: int, warm_up: int, steps: int) -> float:
    """Linear rise, then 1/√step as in the Transformer, times a linear fall to nothing over the last fifth."""
    rising = min(1.0, step / warm_up) * min(1.0, (warm_up / step) ** 0.5)
    return float(rising * min(1.0, max(0.0, (steps - step) / (0.2 * max(1, steps)))))


def _alike(lengths: Any, count: int, rng: np.random.Generator) -> Any:
    """Samples of about the same length: in a batch drawn blindly two thirds of the work would be padding."""
    by_length = np.argsort(lengths + rng.uniform(0.0, 3.0, len(lengths)), kind="stable")
    start = int(rng.integers(0, max(1, len(lengths) // count))) * count
    return by_length[start : start + count]


def _blind(batch: Mapping[str, Any], share: float, rng: np.random.Generator) -> None:
    """Hides the reported speeds of some samples: a host need not report any."""
    chosen = rng.random(len(batch["tokens"])) < share
    batch["tokens"][chosen, :, REPORTED] = 0.0


def _tensors(batch: Mapping[str, Any], device: torch.device) -> list[torch.Tensor]:
    names = ("tokens", "job", "node", "speed", "weight", "bound")
    return [torch.from_numpy(np.asarray(batch[name])).to(device) for name in names]


def _shape(args: Args) -> dict[str, int]:
    return {"width": args.width, "heads": args.heads, "layers": args.layers, "members": args.members}


def _keep(args: Args, run: _RewardTraining) -> None:
    """Whole or not at all: written beside and renamed."""
    torch.save(
        {
            "feature_schema": feature_schema("reward")["hash"],
            "shape": _shape(args),
            "step": run.step,
            "net": run.net.state_dict(),
            "optimiser": run.optimiser.state_dict(),
            "schedule": run.schedule.state_dict(),
            "best": run.best_state,
            "best_error": run.best,
        },
        args.out / "reward.part",
    )
    (args.out / "reward.part").replace(args.out / CHECKPOINT)


def _restore(args: Args, run: _RewardTraining) -> None:
    path = args.out / CHECKPOINT
    stored = torch.load(path, map_location="cpu", weights_only=True)  # it may have been written beside a GPU
    if stored["feature_schema"] != feature_schema("reward")["hash"] or stored["shape"] != _shape(args):
        raise ValueError(f"{path}: a checkpoint of another net or of other features; choose another --out")
    run.net.load_state_dict(stored["net"])
    run.optimiser.load_state_dict(stored["optimiser"])
    run.schedule.load_state_dict(stored["schedule"])
    run.step, run.best, run.best_state = int(stored["step"]), float(stored["best_error"]), stored["best"]

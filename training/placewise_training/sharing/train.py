"""Trains what completes a model's slowdowns on shared GPUs, and judges it: measured pairs → net → errors → files.

    python -m placewise_training.sharing.train --out var/train/sharing        (placewise train sharing)

Read top to bottom. Every random draw comes from `seed`; Ctrl-C leaves finished judgements; `--resume` goes on.
Data: data.py.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placewise_core.domain.model_names import canonical, nearest
from placewise_core.speed.interference import MeasuredInterference
from placewise_core.speed.sharing_row import Square, columns_of
from placewise_core.speed.site_pairs import RowCompleter
from placewise_models.folder import shipped_bundle
from placewise_training.data.measured import GpuPair, profiled_gpu_pairs
from placewise_training.data.placement_tables import usable_pairs
from placewise_training.data.site_rows import NO_ROWS, PAIRS, SiteRows, read_site_rows
from placewise_training.lab.device import chosen_device
from placewise_training.lab.judging import Show, cpu_s, judged_all
from placewise_training.lab.scalars import Scalars
from placewise_training.sharing.data import (
    Examples,
    Matrix,
    SharedJob,
    as_row,
    as_speeds,
    examples,
    floors,
    profiled_jobs,
    shared_jobs,
    table_of,
    without_jobs,
    without_networks,
)
from placewise_training.sharing.from_log import begun, log_pairs, log_report, with_log
from placewise_training.sharing.judge_own import judge_own
from placewise_training.sharing.net import CoRunCompletion, log_odds
from placewise_training.stdm.completion import Completer, chosen_factors, chosen_neighbours, column_means, holes
from placewise_training.stdm.data import PROFILE_ERROR, Table
from placewise_training.stdm.train import Args as NcfArgs
from placewise_training.stdm.train import complete_by_ncf

SCHEMA = "placewise.sharing/1"
CHECKPOINT, REPORT = "sharing.pt", "sharing.json"
LIMITS = (1.5, 2.0)  # of max_slowdown, whose decisions are counted: 2 is the default
# They change no figure, or are reported elsewhere.
_APART = ("out", "threads", "processes", "resume", "device", "measured", "start")
_SIGMA = PROFILE_ERROR * (np.pi / 2.0) ** 0.5  # a co-run is a short profile, with IAWP's error of those
_LEAST = 0.02
_WITH_STEPS = "_with_steps"
_GIVEN = 0.7  # the share of draws in which training shows a job's steps
# True for the jobs that are asked about.
Asked = Callable[[SharedJob], bool]
# A method's answers, the true values, and the judged cells: (N, C) each.
Answers = tuple[Matrix, Matrix, NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Args:
    """What `placewise train sharing` takes; the string beside each becomes its help."""

    out: Path = field(default=Path("var/train/sharing"), metadata={"help": "Folder for checkpoint and report."})
    seed: int = field(default=0, metadata={"help": "Seed of every random draw."})
    steps: int = field(default=400, metadata={"help": "Completion: steps of AdamW."})
    batch: int = field(default=256, metadata={"help": "Rows per step."})
    rate: float = field(default=2e-2, metadata={"help": "Learning rate of the four numbers."})
    net_rate: float = field(default=3e-3, metadata={"help": "Learning rate of the nets on top, if there are any."})
    members: int = field(default=0, metadata={"help": "Small nets that correct the completion; none ship."})
    unsure: float = field(
        default=0.5,
        metadata={"help": "Standard deviation, in log-odds, of the noise on half of the assumed rows."},
    )
    draws: int = field(default=6, metadata={"help": "Questions about each job that is judged."})
    ncf_steps: int = field(default=900, metadata={"help": "NCF: steps of SGD, after a third of them with Adam."})
    threads: int = field(default=1, metadata={"help": "CPU threads of each process."})
    processes: int = field(default=2, metadata={"help": "Settings judged at a time; changes no figure."})
    device: str = field(
        default="", metadata={"help": "Torch device. By default a GPU, or the CPU of a machine without GPU."}
    )
    resume: bool = field(default=False, metadata={"help": "Go on from the finished part in `out`."})
    measured: Path | None = field(default=None, metadata={"help": "Folder with the site's own rows (pairs.csv)."})
    log: str = field(default="", metadata={"help": "Folder or URL of an exported decision log, to learn from."})
    before_s: float = field(
        default=0.0, metadata={"help": "Learn from no decision after this time (seconds since 1970); 0: from all."}
    )
    only_log: bool = field(default=False, metadata={"help": "Learn from the log alone."})
    start: Path | None = field(default=None, metadata={"help": "Bundle whose net the training starts from."})


@dataclass(frozen=True, slots=True)
class Questions:
    """About jobs that no method has learned from, rows (N, C): known values, true values (NaN for steps, which nobody
    asks for), values assumed of their model; `hardware` and `models` (N,)."""

    hardware: tuple[str, ...]
    models: tuple[str, ...]
    known: Matrix
    true: Matrix
    prior: Matrix


@dataclass(frozen=True, slots=True)
class Fold:
    """Pairs to learn from, and questions by the known values: a number of co-runs, with or without the job's steps."""

    history: tuple[GpuPair, ...]
    questions: Mapping[str, Questions]


def train(args: Args, show: Show = lambda title, done, total: None) -> dict[str, Any]:
    """Judges every method on held-back pairs, trains the net that ships; the report, also written to `out`. With a log
    its later rows judge instead. Raises ValueError for a log that holds too little, LogError."""
    torch.set_num_threads(args.threads)
    own = read_site_rows(args.measured)
    logged = log_pairs(args.log, args.before_s) if args.log else None
    if args.only_log:
        if not logged:
            raise ValueError("--only-log needs a log (--log)")
        own = NO_ROWS
    if logged:
        own = with_log(own, logged.learn)
    args.out.mkdir(parents=True, exist_ok=True)
    began, began_cpu = time.perf_counter(), cpu_s()
    settings = {} if logged else folds(args)
    ask = partial(judge, args=args)
    judged = judged_all(settings, ask, args.out, _numbers(args), args.processes, args.resume, show)

    # -- the one that ships: every usable pair, the profiler's, and the site's own --
    show("training", len(settings), len(settings) + 1)
    pairs = usable_pairs()
    with Scalars(args.out) as write:
        net, losses = fit(pairs, args, own=own, checkpoint=args.out / CHECKPOINT, write=write)
    show("done", len(settings) + 1, len(settings) + 1)
    report = {
        "schema": SCHEMA,
        "seed": args.seed,
        "args": _numbers(args),
        "columns": list(columns_of(table_of(pairs).references)),
        "parameters": sum(p.numel() for p in net.parameters()),
        "data": {"training": hashlib.sha256(repr((pairs, profiled_jobs(()))).encode()).hexdigest()} | own.data(PAIRS),
        "samples": {"pairs": len(pairs), "profiled_pairs": 15} | ({"site_pairs": len(own.pairs)} if own.pairs else {}),
        "seconds": {"wall": round(time.perf_counter() - began, 1), "cpu": round(cpu_s() - began_cpu, 1)},
        "loss": {"first": losses[0], "last": losses[-1]},
        "metrics": {name: _summary(by_known) for name, by_known in judged.items()},
        "judged": judged,
        "floors": floors(),
        "own_models": {} if logged else judge_own(partial(_completer, args=args), args.draws, args.seed),
    }
    if logged:
        report["log"] = log_report(args.log, logged, pairs, begun(args.start or shipped_bundle()), net)
    (args.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return report


def _completer(history: Sequence[GpuPair], has_profiled: bool, args: Args) -> RowCompleter:
    return NetCompleter(fit(history, args, has_profiled=has_profiled)[0])


def folds(args: Args) -> dict[str, list[Fold]]:
    """The folds of each setting: networks that are part of no pair of the history; jobs of known networks, at batches
    that are part of none; the GPU model on which nothing of the history was measured."""
    pairs = usable_pairs()
    networks = sorted({canonical(p.model_a) for p in pairs})
    held_back: dict[str, list[tuple[Sequence[GpuPair], Asked]]] = {
        "networks": [(without_networks(pairs, {name}), _among("network", {name})) for name in networks],
        "pairs": [(without_jobs(pairs, jobs), _among("job", jobs)) for jobs in _batches(pairs)],
    }
    for gpu in sorted({p.gpu_type for p in pairs}):
        held_back[f"gpu_{gpu.lower()}"] = [([p for p in pairs if p.gpu_type != gpu], _among("hardware", {gpu}))]
    made = {name: [_fold(history, is_asked, args) for history, is_asked in each] for name, each in held_back.items()}
    return made | {"gpu_h200": [_fold(pairs, lambda job: True, args, profiled_gpu_pairs())]}


def _among(name: str, wanted: Collection[object]) -> Asked:
    return lambda job: getattr(job, name) in wanted


def _summary(by_known: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Mean absolute errors of the shipped completion and of the rule before it, for a bundle's manifest."""
    shown = ("completion", "rule")
    return {known: {name: found["methods"][name]["mae"] for name in shown} for known, found in by_known.items()}


def _batches(pairs: Iterable[GpuPair]) -> list[set[tuple[str, float]]]:
    """Jobs to hold back together: one batch of each network that has others."""
    of_network: dict[str, set[float]] = {}
    for p in pairs:
        of_network.setdefault(canonical(p.model_a), set()).add(p.batch_a)
        of_network.setdefault(canonical(p.model_b), set()).add(p.batch_b)
    several = {name: sorted(batches) for name, batches in of_network.items() if len(batches) > 1}
    most = max(map(len, several.values()))
    return [{(name, batches[i]) for name, batches in several.items() if i < len(batches)} for i in range(most)]


def _fold(history: Sequence[GpuPair], is_asked: Asked, args: Args, judged: Sequence[GpuPair] = ()) -> Fold:
    """Of the `judged` pairs, by default those that were published. Steps are given only if the history has the GPU
    model: on another they are no measure."""
    table = table_of(history)
    asked = [job for job in shared_jobs(judged or usable_pairs(), table.references) if is_asked(job)]
    is_measured = all(job.hardware in table.pairs for job in asked)
    return Fold(
        tuple(history),
        {
            f"{known}{_WITH_STEPS if has_steps else ''}": _questions(asked, table, known, args, has_steps=has_steps)
            for known in (1, 2)
            for has_steps in ((False, True) if is_measured else (False,))
        },
    )


def _questions(
    jobs: Sequence[SharedJob], table: MeasuredInterference, known: int, args: Args, *, has_steps: bool
) -> Questions:
    """`draws` of each job: one batch of each partner, as many of the partners known as short co-runs see them."""
    rng = np.random.default_rng((args.seed, 71, known, len(jobs)))
    repeated = [job for job in jobs if (job.batches > 0).sum() > known for _ in range(args.draws)]
    speeds = np.stack([_drawn(job, rng) for job in repeated])
    seen = _short_co_runs(speeds, np.full(len(speeds), known), rng)
    steps = np.array([job.step_s for job in repeated])
    nothing = np.full(len(repeated), np.nan)
    return Questions(
        hardware=tuple(job.hardware for job in repeated),
        models=tuple(job.network for job in repeated),
        known=as_row(seen, steps if has_steps else nothing),
        true=as_row(speeds, nothing),
        prior=np.stack([_prior(table, job.network, table.gpu_of(job.hardware)) for job in repeated]),
    )


def _drawn(job: SharedJob, rng: np.random.Generator) -> Matrix:
    """(P + 1, 2) speeds beside one batch of each partner."""
    chosen = (rng.random(len(job.pairs)) * np.maximum(1, job.batches)).astype(np.int64)
    found: Matrix = job.pairs[np.arange(len(job.pairs)), chosen]
    return found


def _short_co_runs(speeds: Matrix, counts: NDArray[np.int64], rng: np.random.Generator) -> Matrix:
    """(N, P + 1, 2) `speeds` of `counts` (N,) partners of each row, with the error of short profiles; NaN elsewhere."""
    is_there = ~np.isnan(speeds[:, :, 0])
    order = np.where(is_there, rng.random(is_there.shape), 2.0).argsort(axis=1).argsort(axis=1)
    is_known = is_there & (order < counts[:, None])
    noisy = np.clip(speeds * (1.0 + _SIGMA * rng.standard_normal(speeds.shape)), _LEAST, 1.0)
    return np.where(is_known[:, :, None], noisy, np.nan)


def _prior(table: MeasuredInterference, network: str, gpu: str) -> Matrix:
    """The service's assumption about the network."""
    like = nearest(network, table.references)
    return Square.of(table, gpu).row(None if like is None else table.references.index(like))


def judge(of_setting: Sequence[Fold], args: Args) -> dict[str, Any]:
    """By the known values: mean absolute and root mean square error over the values not measured, by method, and which
    decisions would have been wrong."""
    torch.set_num_threads(args.threads)
    found: dict[str, dict[str, list[Answers]]] = {}
    for fold in of_setting:
        nets = {
            "completion": fit(fold.history, args)[0],
            "completion_gavel_alone": fit(fold.history, args, has_profiled=False)[0],
            "completion_with_nets": fit(fold.history, replace(args, members=4))[0],
        }
        for known, asked in fold.questions.items():
            judged = holes(asked.true, asked.known)
            for name, values in _answers(fold.history, nets, asked, known, args).items():
                found.setdefault(known, {}).setdefault(name, []).append((values, asked.true, judged))
    return {known: _judgement(by_method) for known, by_method in found.items()}


def _judgement(by_method: Mapping[str, Sequence[Answers]]) -> dict[str, Any]:
    methods = {}
    for name, several in by_method.items():
        wrong = np.concatenate([(values - true)[judged & ~np.isnan(values)] for values, true, judged in several])
        methods[name] = {"mae": float(np.abs(wrong).mean()), "rmse": float(np.sqrt(np.square(wrong).mean()))}
        methods[name] |= _wrong_decisions(several)
    return {"methods": methods, "cells": int(sum(judged.sum() for _, _, judged in by_method["completion"]))}


def _wrong_decisions(several: Sequence[Answers]) -> dict[str, float]:
    """Shares of pairs that would be put together although one of the two is slowed down beyond its limit, and of pairs
    that would be kept apart without need; both have the same limit."""
    shares: dict[str, float] = {}
    for limit in LIMITS:
        wrongly: list[Matrix] = []
        for values, true, judged in several:
            count = (values.shape[1] - 2) // 2
            own, other = slice(count), slice(count, 2 * count)
            both = judged[:, own] & judged[:, other] & ~np.isnan(values[:, own])
            says = np.minimum(values[:, own], values[:, other])[both] * limit >= 1.0
            is_so = np.minimum(true[:, own], true[:, other])[both] * limit >= 1.0
            wrongly.append(np.stack([says & ~is_so, ~says & is_so]))
        together, apart = np.concatenate(wrongly, axis=1).mean(axis=1)
        shares |= {f"wrongly_together_{limit:g}": float(together), f"wrongly_apart_{limit:g}": float(apart)}
    return shares


def _answers(
    history: Sequence[GpuPair], nets: Mapping[str, CoRunCompletion], asked: Questions, known: str, args: Args
) -> dict[str, Matrix]:
    """(N, C) of every method. Those that complete a matrix learn from the rows of the same hardware, if there are any.
    NCF is trained on the known values of all new rows at once: it is asked once of each job, and not with steps."""
    table = table_of(history)
    found = {name: complete(net, asked.prior, asked.known) for name, net in nets.items()}
    found["assumed"] = asked.prior
    found["rule"] = _by_name(table, asked)
    cautious = np.array([[table.default[table.gpu_of(gpu)]] for gpu in asked.hardware])
    found["default"] = cautious.repeat(asked.true.shape[1], axis=1)
    count = int(known.removesuffix(_WITH_STEPS))
    ncf = NcfArgs(seed=args.seed, device=args.device, pretrain_steps=args.ncf_steps // 3, sgd_steps=args.ncf_steps)
    for gpu in sorted(set(asked.hardware)):
        rows = np.array(asked.hardware) == gpu
        past = _past(history, table, table.gpu_of(gpu), args)
        completers: dict[str, Completer] = {
            "mean": column_means,
            "knn": chosen_neighbours(past, count, _hidden_rows),
            "mf": chosen_factors(past, count, _hidden_rows),
        }
        if not known.endswith(_WITH_STEPS):
            completers["ncf"] = lambda values, seen: complete_by_ncf(values, seen, ncf)[0]
        for name, completer in completers.items():
            asked_of = rows & (np.arange(len(rows)) % args.draws == 0) if name == "ncf" else rows
            into = found.setdefault(name, np.full_like(asked.true, np.nan))
            into[asked_of] = completer(past.values, _in_unit(asked.known[asked_of]))
    return found


def _in_unit(rows: Matrix) -> Matrix:
    """Rows with steps on a scale of 0 (a millisecond) to 1 (ten seconds), as a matrix method wants its values."""
    steps = np.clip((np.log10(rows[:, -1:]) + 3.0) / 4.0, 0.0, 1.0)
    return np.concatenate([rows[:, :-1], steps], axis=1)


def _by_name(table: MeasuredInterference, asked: Questions) -> Matrix:
    """The predictions of a service that knows no co-run of these models: the nearest name, or the careful default."""
    rows = [
        [table.pair(model, other, gpu) for other in table.references]
        + [table.pair(other, model, gpu) for other in table.references]
        + [table.pair(model, model, gpu), np.nan]
        for model, gpu in zip(asked.models, asked.hardware, strict=True)
    ]
    return np.array(rows)


def _past(history: Sequence[GpuPair], table: MeasuredInterference, gpu: str, args: Args) -> Table:
    """The jobs of a GPU model as rows of a matrix, some for each job, each with other batches of its partners."""
    rng = np.random.default_rng((args.seed, 72))
    jobs = [job for job in shared_jobs(history, table.references) if job.hardware == gpu for _ in range(3)]
    values = _in_unit(as_row(np.stack([_drawn(job, rng) for job in jobs]), np.array([job.step_s for job in jobs])))
    return Table(tuple(job.network for job in jobs), columns_of(table.references), values)


def _hidden_rows(values: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Rows as `count` short co-runs see them, steps untold."""
    return as_row(_short_co_runs(as_speeds(values), np.full(len(values), count), rng), np.full(len(values), np.nan))


_HOW_OFTEN = (0.3, 0.35, 0.2, 0.15)  # each of the four is assumed


def fit(
    history: Sequence[GpuPair],
    args: Args,
    *,
    has_profiled: bool = True,
    own: SiteRows = NO_ROWS,
    checkpoint: Path | None = None,
    write: Callable[[str, float, int], None] = lambda name, value, step: None,
) -> tuple[CoRunCompletion, list[float]]:
    """One to three co-runs of a job known, the error of its speeds beside the others; net and losses."""
    torch.manual_seed(args.seed)
    learnt = examples(history, has_profiled=has_profiled, own=own, is_own_alone=args.only_log)
    net = CoRunCompletion(learnt.speeds.shape[1] - 1, args.members)
    if args.start is not None:
        net.load_state_dict(begun(args.start).state_dict())
    net.to(chosen_device(args.device))
    nets = [*net.weights, *net.biases, *net.out]
    groups = [{"params": [net.steps, net.shrinkage], "weight_decay": 0.0}, {"params": nets, "lr": args.net_rate}]
    optimiser = torch.optim.AdamW(groups if nets else groups[:1], lr=args.rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, args.steps)
    losses = []
    for step in range(args.steps):
        rng = np.random.default_rng((args.seed, 73, step))
        error = mean_error(net, *_batch(learnt, args, rng))
        optimiser.zero_grad()
        error.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        losses.append(float(error.detach()))
        write("loss/sharing", losses[-1], step)
    if checkpoint is not None:
        _keep(checkpoint, net.cpu(), args)
    return net.cpu().eval(), losses


def mean_error(
    net: CoRunCompletion, prior: Matrix, known: Matrix, true: Matrix, is_bound: NDArray[np.bool_] | None = None
) -> Tensor:
    """Mean absolute error over the unknown values, on the net's device; below a bound there is none."""
    device = net.steps.device
    is_asked = torch.from_numpy(holes(true, known)).float().to(device)
    filled = net(*(array.to(device) for array in _inputs(prior, known)))
    above = filled - torch.from_numpy(np.nan_to_num(true)).float().to(device)
    gaps = above.abs()
    if is_bound is not None:
        gaps = torch.where(torch.from_numpy(is_bound).to(device), above.clamp(min=0.0), gaps)
    error: Tensor = (gaps * is_asked).sum() / is_asked.sum()
    return error


def _batch(learnt: Examples, args: Args, rng: np.random.Generator) -> tuple[Matrix, Matrix, Matrix, NDArray[np.bool_]]:
    """(B, C) each: assumed values, known values, true ones beside other batches of the partners, and which are bounds:
    nobody knows these."""
    rows = rng.integers(len(learnt.speeds), size=args.batch)
    which = rng.choice(4, size=args.batch, p=_HOW_OFTEN)
    is_given = (which < 2) & (rng.random(args.batch) < _GIVEN)  # as in the service: not from another GPU model
    steps = np.where(is_given, learnt.step_s[rows], np.nan)
    seen, seen_bound = _some(learnt, rows, rng)
    seen = np.where(seen_bound.any(axis=-1, keepdims=True), np.nan, seen)
    known = as_row(_short_co_runs(seen, rng.integers(1, 4, size=args.batch), rng), steps)
    prior = learnt.priors[rows, which]
    own, other = args.unsure * rng.standard_normal((2, args.batch, 1)) * (rng.random((args.batch, 1)) < 0.5)
    count = learnt.speeds.shape[1] - 1
    moves = np.concatenate([np.repeat(own, count, 1), np.repeat(other, count, 1), own], axis=1)
    moved = torch.sigmoid(log_odds(torch.from_numpy(prior[:, :-1])) + torch.from_numpy(moves)).numpy()
    speeds, bound = _some(learnt, rows, rng)
    nothing = np.full(args.batch, np.nan)
    is_bound = as_row(bound.astype(np.float64), np.zeros(args.batch)) > 0
    return np.concatenate([moved, prior[:, -1:]], axis=1), known, as_row(speeds, nothing), is_bound


def _some(learnt: Examples, rows: NDArray[np.int64], rng: np.random.Generator) -> tuple[Matrix, NDArray[np.bool_]]:
    """(B, P + 1, 2) speeds of these jobs, beside one batch of each partner; and which are bounds."""
    batches = learnt.batches[rows]
    chosen = (rng.random(batches.shape) * np.maximum(1, batches)).astype(np.int64)
    at = (rows[:, None], np.arange(batches.shape[1])[None], chosen)
    return learnt.speeds[at], learnt.is_bound[at]


def _inputs(prior: Matrix, known: Matrix) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.from_numpy(~np.isnan(known)).float()
    return torch.from_numpy(np.nan_to_num(prior, nan=1.0)).float(), torch.from_numpy(np.nan_to_num(known)).float(), mask


def complete(net: CoRunCompletion, prior: Matrix, known: Matrix) -> Matrix:
    """(N, C) all values of rows with holes."""
    with torch.no_grad():
        found: Matrix = net(*_inputs(prior, known)).double().numpy()
    return found


@dataclass(frozen=True, slots=True)
class NetCompleter:
    """Implements the core's RowCompleter, as the service does by ONNX Runtime."""

    net: CoRunCompletion

    def complete(self, prior: Matrix, known: Matrix) -> Matrix:
        """(C,) the row with its measurements unchanged."""
        return np.where(np.isnan(known), complete(self.net, prior[None], known[None])[0], known)


def _keep(checkpoint: Path, net: CoRunCompletion, args: Args) -> None:
    """In one piece."""
    part = checkpoint.with_name(checkpoint.name + ".part")
    columns = columns_of(table_of(usable_pairs()).references)
    torch.save({"net": net.state_dict(), "columns": columns, "of": _numbers(args)}, part)
    part.replace(checkpoint)


def load_net(checkpoint: Path) -> CoRunCompletion:
    """The net of a training run."""
    stored = torch.load(checkpoint, map_location="cpu", weights_only=True)
    net = CoRunCompletion((len(stored["columns"]) - 2) // 2, int(stored["of"]["members"]))
    net.load_state_dict(stored["net"])
    return net.eval()


def _numbers(args: Args) -> dict[str, float]:
    """What makes one run differ from another."""
    return {name: value for name, value in asdict(args).items() if name not in _APART}

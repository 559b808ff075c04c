"""Trains what completes IAWP's subtask description matrix, and judges it: matrix → NCF and completion → errors → files.

    python -m placewise_training.stdm.train --out var/train/stdm        (placewise train stdm)

Read top to bottom. Every random draw comes from `seed`; Ctrl-C leaves finished judgements and a checkpoint of the net,
from which `--resume` goes on. The data: data.py.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from placewise_core.subtasks.completed_metrics import LEAST_KNOWN
from placewise_core.subtasks.metrics import METRICS
from placewise_models.folder import shipped_bundle
from placewise_models.stdm import STDM_MODEL
from placewise_training.data.site_rows import SUBTASKS, SiteRows, read_site_rows
from placewise_training.lab.device import chosen_device
from placewise_training.lab.judging import cpu_s, judged_all
from placewise_training.lab.scalars import Scalars
from placewise_training.lab.traced import filled
from placewise_training.stdm.completion import Completer, chosen_factors, chosen_neighbours, column_means, holes
from placewise_training.stdm.data import (
    PROFILE_ERROR,
    Matrix,
    Table,
    profile_rows,
    subtask_matrix,
    truth_matrix,
)
from placewise_training.stdm.from_log import completion_report, log_metrics
from placewise_training.stdm.net import MetricCompletion, Ncf, loss, with_subtasks

SCHEMA = "placewise.stdm/1"
CHECKPOINT, REPORT = "stdm.pt", "stdm.json"
_ABOUT_THE_MACHINE = ("out", "device", "threads", "processes", "resume", "start", "measured")
_FIRST_JUDGED_DRAW = 500
# Sets progress: (title, done, total).
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Args:
    """What `placewise train stdm` takes; the string beside each becomes its help."""

    out: Path = field(default=Path("var/train/stdm"), metadata={"help": "Folder for checkpoint, report, TensorBoard."})
    seed: int = field(default=0, metadata={"help": "Of every draw."})
    draws: int = field(default=20, metadata={"help": "Training rows drawn per kind of subtask."})
    known: int = field(default=2, metadata={"help": "Metrics that are profiled of a new subtask; two in IAWP's paper."})
    pretrain_steps: int = field(default=500, metadata={"help": "NCF: steps of Adam on the history."})
    sgd_steps: int = field(default=2500, metadata={"help": "NCF: steps of SGD on the history and the new subtasks."})
    sgd_rate: float = field(default=5.0, metadata={"help": "NCF: learning rate of SGD."})
    decay: float = field(default=1e-3, metadata={"help": "NCF: λ of (5)."})
    completion_steps: int = field(default=4000, metadata={"help": "Completion net: steps of AdamW."})
    completion_rate: float = field(default=3e-3, metadata={"help": "Completion net: learning rate of AdamW."})
    batch: int = field(default=128, metadata={"help": "Rows or cells per step."})
    device: str = field(
        default="", metadata={"help": "Torch device. By default a GPU, or the CPU of a machine without GPU."}
    )
    threads: int = field(default=1, metadata={"help": "CPU threads of each process."})
    processes: int = field(default=2, metadata={"help": "Settings judged at a time; changes no figure."})
    resume: bool = field(
        default=False, metadata={"help": "Continue a run that was stopped: keep the settings that `out` has already."}
    )
    measured: Path | None = field(default=None, metadata={"help": "Folder with the site's own rows (subtasks.csv)."})
    log: str = field(default="", metadata={"help": "Folder or URL of an exported decision log, to learn from."})
    before_s: float = field(
        default=0.0, metadata={"help": "Learn from decisions before this time alone (seconds since 1970); 0: from all."}
    )
    only_log: bool = field(default=False, metadata={"help": "Learn from the log alone, without drawn rows."})
    start: Path | None = field(
        default=None, metadata={"help": "With --log: bundle whose net the training starts from."}
    )


@dataclass(frozen=True, slots=True)
class Fold:
    """A completer's training rows, and the rows that judge it: short profiles and the truth."""

    history: Table
    partial: Matrix
    true: Matrix


def train(args: Args, show: Show = lambda title, done, total: None) -> dict[str, Any]:
    """Judges every method on held-back rows, trains the completion that ships; the report, also written to `out`. With
    a log its later entries judge instead. Raises ValueError for a log that holds too little, LogError."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    own = read_site_rows(args.measured)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.log or args.only_log:
        return train_from_log(args, own, show)
    began, began_cpu = time.perf_counter(), cpu_s()
    settings = folds(args)

    # -- every method on the same folds and the same profiles; a setting that an earlier run judged is skipped --
    judged = partial(judge, args=args)
    metrics = judged_all(settings, judged, args.out, _numbers(args), args.processes, args.resume, show)

    # -- the one that ships: every kind, only draws of the training side, and the site's own rows --
    show("training the completion", len(settings), len(settings) + 1)
    everything = subtask_matrix(args.draws)
    history = with_rows(everything.values, completable(own.subtask_matrix()))
    with Scalars(args.out) as write:
        net, losses = train_completion(history, args, args.out / CHECKPOINT, write)
    show("done", len(settings) + 1, len(settings) + 1)
    converged = convergence(settings["subtasks_unseen_kinds"][0], args)
    report = {
        "schema": SCHEMA,
        "seed": args.seed,
        "args": _numbers(args),
        "columns": list(everything.columns),
        "parameters": sum(p.numel() for p in net.parameters()),
        "data": {"training": hashlib.sha256(everything.values.tobytes()).hexdigest()} | own.data(SUBTASKS),
        "samples": {"training": len(history)},
        "seconds": {"wall": round(time.perf_counter() - began, 1), "cpu": round(cpu_s() - began_cpu, 1)},
        "loss": {"first": losses[0], "last": losses[-1]},
        "convergence": converged,
        "metrics": metrics,
        "floors": floors(),
        "is_better": is_better(metrics["subtasks_unseen_kinds"]),
    } | site_report(own)
    (args.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return report


def completable(rows: Matrix) -> Matrix:
    """The kinds of which three metrics are known: two to complete from, and one to learn."""
    found: Matrix = rows[(~np.isnan(rows)).sum(axis=1) > LEAST_KNOWN]
    return found


def with_rows(drawn: Matrix, rows: Matrix) -> Matrix:
    """The drawn rows, and a site's: together as many as the drawn ones are."""
    if not len(rows):
        return drawn
    joined: Matrix = np.concatenate([drawn, rows[np.arange(len(drawn)) % len(rows)]])
    return joined


def site_report(own: SiteRows) -> dict[str, Any]:
    """The part of the report about a site's own kinds; empty without."""
    used = len(completable(own.subtask_matrix()))
    return {"site_rows": {"used": used, "too_few": len(own.subtasks) - used}} if own.subtasks else {}


def train_from_log(args: Args, own: SiteRows, show: Show) -> dict[str, Any]:
    """The completion on the kinds of a log, and the site's own rows, beside the drawn ones; with `only_log` on those of
    the log alone."""
    if not args.log:
        raise ValueError("--only-log needs a log (--log)")
    own = SiteRows() if args.only_log else own
    log = log_metrics(args.log, args.before_s)
    rows = completable(log.cells)
    if not len(rows):
        raise ValueError("the log has no kind of subtask of which three metrics are known")
    show("training the completion", 0, 1)
    site = np.concatenate([rows, completable(own.subtask_matrix())])
    history = rows if args.only_log else with_rows(subtask_matrix(args.draws).values, site)
    with Scalars(args.out) as write:
        first = begun(args.start) if args.start else None
        net, losses = train_completion(history, args, args.out / CHECKPOINT, write, first)
    show("done", 1, 1)
    before = begun(args.start or shipped_bundle())
    report = {
        "schema": SCHEMA,
        "seed": args.seed,
        "args": _numbers(args),
        "columns": list(METRICS),
        "parameters": sum(p.numel() for p in net.parameters()),
        "data": {"training": hashlib.sha256(history.tobytes()).hexdigest()} | own.data(SUBTASKS),
        "samples": {"training": len(history)},
        "loss": {"first": losses[0], "last": losses[-1]},
        "metrics": {},
        "log": completion_report(args.log, log, partial(complete, before), partial(complete, net)),
    } | site_report(own)
    (args.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return report


def begun(bundle: Path) -> MetricCompletion:
    """The net of a bundle. Raises ValueError for a graph of another form, OSError."""
    return filled(MetricCompletion(len(METRICS)), bundle / STDM_MODEL)


def folds(args: Args) -> dict[str, list[Fold]]:
    """The folds of each setting; kinds of the judged rows are in no history they are judged from, but for
    `subtasks_judge`, whose kinds are known and whose values are the judging truth's."""
    rng = np.random.default_rng((args.seed, 51))
    drawn, fresh = subtask_matrix(args.draws), subtask_matrix(24, _FIRST_JUDGED_DRAW)
    kinds = list(dict.fromkeys(drawn.groups))
    judged = np.repeat(truth_matrix("judge").values, 10, axis=0)
    return {
        "subtasks_unseen_kinds": [_fold(drawn, fresh, set(kinds[i::3]), args, rng) for i in range(3)],
        "subtasks_judge": [Fold(drawn, profile_rows(judged, args.known, rng), judged)],
    }


def _fold(history: Table, judged: Table, held_back: set[str], args: Args, rng: np.random.Generator) -> Fold:
    true = judged.of(held_back).values
    return Fold(history.of(held_back, inside=False), profile_rows(true, args.known, rng), true)


def judge(of_setting: Sequence[Fold], args: Args) -> dict[str, Any]:
    """Mean absolute and root mean square error over the holes, by method; columns that never vary do not count."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)  # a resumed run draws as a whole one does
    wrong: dict[str, list[Matrix]] = {}
    for fold in of_setting:
        varies = np.nan_to_num(fold.true, nan=-1.0).max(axis=0) > np.nan_to_num(fold.true, nan=2.0).min(axis=0)
        judged = holes(fold.true, fold.partial) & varies
        for name, completer in methods(fold.history, args).items():
            found = completer(fold.history.values, fold.partial)
            wrong.setdefault(name, []).append((found - fold.true)[judged])
    joined = {name: np.concatenate(errors) for name, errors in wrong.items()}
    table = {
        name: {"mae": float(np.abs(e).mean()), "rmse": float(np.sqrt(np.square(e).mean()))}
        for name, e in joined.items()
    }
    rows = sum(len(fold.true) for fold in of_setting)
    return {"methods": table, "rows": rows, "cells": len(joined["mean"])}


def methods(history: Table, args: Args) -> Mapping[str, Completer]:
    """By name, with their strengths chosen on this history."""
    return {
        "mean": column_means,
        "knn": chosen_neighbours(history, args.known),
        "mf": chosen_factors(history, args.known),
        "ncf": lambda values, partial: complete_by_ncf(values, partial, args)[0],
        "completion": lambda values, partial: complete(train_completion(values, args)[0], partial),
    }


def floors() -> dict[str, float]:
    """Error that no completion can go below: of a full four-second profile."""
    share = float(np.mean(subtask_matrix(20, _FIRST_JUDGED_DRAW).values[:, 1:]))
    return {"subtasks_profile": PROFILE_ERROR * share}


def is_better(metrics: Mapping[str, Any]) -> bool:
    """Whether the completion has earned its place: a smaller error than the mean and than kNN."""
    found = metrics["methods"]
    return bool(found["completion"]["mae"] < min(found["mean"]["mae"], found["knn"]["mae"]))


@dataclass(frozen=True, slots=True)
class Cells:
    """The known cells of a matrix, as NCF reads them."""

    subtask: Tensor
    metric: Tensor
    value: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, values: Matrix, device: torch.device) -> "Cells":
        rows, columns = np.nonzero(~np.isnan(values))
        known = torch.from_numpy(values[rows, columns]).float()
        subtask, metric, value = (t.to(device) for t in (torch.from_numpy(rows), torch.from_numpy(columns), known))
        return cls(subtask, metric, value, (len(values), values.shape[1]))


def complete_by_ncf(history: Matrix, partial: Matrix, args: Args) -> tuple[Matrix, list[float]]:
    """Adam on the history, then SGD with the new rows stitched on (4.3.4); values, and the losses of SGD."""
    device = chosen_device(args.device)
    known = Cells.of(history, device)
    net = Ncf(*known.shape).to(device)
    fit(net, known, torch.optim.Adam(net.parameters(), lr=5e-3, fused=True), args.pretrain_steps, args)
    stitched = Cells.of(np.concatenate([history, partial]), device)
    net = with_subtasks(net, len(partial)).to(device)
    losses = fit(net, stitched, torch.optim.SGD(net.parameters(), lr=args.sgd_rate, fused=True), args.sgd_steps, args)
    with torch.no_grad():
        found = net.table()[len(history) :].double().cpu().numpy()
    return np.where(np.isnan(partial), found, partial), losses


def fit(net: Ncf, cells: Cells, optimiser: torch.optim.Optimizer, steps: int, args: Args) -> list[float]:
    """Minimises (5) over random batches of known cells; the loss of every step."""
    rng = np.random.default_rng((args.seed, 52))
    size = cells.shape[0] * cells.shape[1]
    losses = []
    for _ in range(steps):
        chosen = torch.from_numpy(rng.integers(len(cells.value), size=args.batch)).to(cells.value.device)
        predicted = net(cells.subtask[chosen], cells.metric[chosen])
        value = loss(predicted, cells.value[chosen], net.weights(), args.decay, size)
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(value.detach()))
    return losses


def convergence(fold: Fold, args: Args) -> dict[str, float]:
    """Steps until the loss over the stitched matrix is within half as much again of its best: pre-trained, and not."""
    without = losses_from_scratch(fold, args, args.pretrain_steps)
    _, with_pretraining = complete_by_ncf(fold.history.values, fold.partial, args)
    goal = 1.5 * float(np.min(_smooth(without)))
    return {"pretrained_sgd_steps": _reached(with_pretraining, goal), "scratch_adam_steps": _reached(without, goal)}


def losses_from_scratch(fold: Fold, args: Args, steps: int) -> list[float]:
    """NCF without pre-training (4.3.4): Adam on history and new rows from random weights; the loss of every step."""
    device = chosen_device(args.device)
    stitched = Cells.of(np.concatenate([fold.history.values, fold.partial]), device)
    scratch = Ncf(*stitched.shape).to(device)
    return fit(scratch, stitched, torch.optim.Adam(scratch.parameters(), lr=5e-3, fused=True), steps, args)


def _smooth(losses: Sequence[float]) -> Matrix:
    width = min(20, len(losses))
    return np.convolve(losses, np.full(width, 1.0 / width), mode="valid")


def _reached(losses: Sequence[float], goal: float) -> float:
    """First step at which the smoothed loss is at the goal; −1 if it never is."""
    below = np.flatnonzero(_smooth(losses) <= goal)
    return float(below[0]) if len(below) else -1.0


def train_completion(
    history: Matrix,
    args: Args,
    checkpoint: Path | None = None,
    write: Callable[[str, float, int], None] = lambda name, value, step: None,
    net: MetricCompletion | None = None,
) -> tuple[MetricCompletion, list[float]]:
    """Rows with most of their values hidden and profiling noise on the rest → all values; net and losses. Keeps a
    checkpoint if asked to, and with `resume` goes on from it. Begins with `net` if one is given."""
    torch.manual_seed(args.seed)
    net = (net or MetricCompletion(history.shape[1])).train().to(chosen_device(args.device))
    optimiser = torch.optim.AdamW(net.parameters(), lr=args.completion_rate, weight_decay=1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, args.completion_steps)
    parts = {"net": net, "optimiser": optimiser, "schedule": schedule}
    losses = _restored(checkpoint, args, parts) if checkpoint is not None and args.resume else []
    for step in range(len(losses), args.completion_steps):
        rng = np.random.default_rng((args.seed, 53, step))  # by step: a resumed run goes on as it would have
        rows = history[rng.integers(len(history), size=args.batch)]
        error = mean_error(net, rows, _hidden(rows, args.known, rng))
        optimiser.zero_grad()
        error.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        losses.append(float(error.detach()))
        if step % 50 == 0:
            write("loss/completion", losses[-1], step)
        if checkpoint is not None and ((step + 1) % _KEEP_EVERY == 0 or step + 1 == args.completion_steps):
            _keep(checkpoint, args, parts, losses)
    return net.cpu().eval(), losses


def mean_error(net: MetricCompletion, true: Matrix, partial: Matrix) -> Tensor:
    """Mean absolute error over the holes, on the net's device."""
    device = net.out.weight.device
    is_asked = torch.from_numpy(holes(true, partial)).float().to(device)
    gaps = (_forward(net, partial) - torch.from_numpy(np.nan_to_num(true)).float().to(device)).abs()
    error: Tensor = (gaps * is_asked).sum() / is_asked.sum()
    return error


_KEEP_EVERY = 500


def _keep(checkpoint: Path, args: Args, parts: Mapping[str, Any], losses: Sequence[float]) -> None:
    """In one piece."""
    part = checkpoint.with_name(checkpoint.name + ".part")
    states = {name: of.state_dict() for name, of in parts.items()}
    torch.save({**states, "columns": subtask_matrix(1).columns, "of": _numbers(args), "losses": list(losses)}, part)
    part.replace(checkpoint)


def _restored(checkpoint: Path, args: Args, parts: Mapping[str, Any]) -> list[float]:
    """Loads a checkpoint into net, optimiser and schedule; the losses so far, none if there is no checkpoint of
    these arguments."""
    if not checkpoint.is_file():
        return []
    stored = torch.load(checkpoint, map_location="cpu", weights_only=True)
    if stored.get("of") != _numbers(args):
        return []
    for name, of in parts.items():
        of.load_state_dict(stored[name])
    return list(stored["losses"])


def _numbers(args: Args) -> dict[str, float]:
    """What makes one run differ from another."""
    return {name: value for name, value in asdict(args).items() if name not in _ABOUT_THE_MACHINE}


def _hidden(rows: Matrix, known: int, rng: np.random.Generator) -> Matrix:
    """Half of the rows keep `known` values, the others one to six."""
    cut = len(rows) // 2
    return np.concatenate(
        [profile_rows(rows[:cut], known, rng), profile_rows(rows[cut:], int(rng.integers(1, 7)), rng)]
    )


def _forward(net: MetricCompletion, partial: Matrix) -> Tensor:
    known, mask = torch.from_numpy(np.nan_to_num(partial)).float(), torch.from_numpy(~np.isnan(partial)).float()
    found: Tensor = net(*(array.to(net.out.weight.device) for array in (known, mask)))
    return found


def complete(net: MetricCompletion, partial: Matrix) -> Matrix:
    """All values of rows with holes."""
    with torch.no_grad():
        return _forward(net, partial).double().numpy()


def load_net(checkpoint: Path) -> MetricCompletion:
    """The completion of a training run."""
    stored = torch.load(checkpoint, map_location="cpu", weights_only=True)
    net = MetricCompletion(len(stored["columns"]))
    net.load_state_dict(stored["net"])
    return net.eval()

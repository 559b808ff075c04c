"""Co-runs from a decision log for the completion, and its error on the later ones beside the incumbent's.

The error is that of the service's question: the speeds of a job with one earlier co-run beside another network.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from placewise_core.domain.model_names import canonical, nearest
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.speed.interference import MeasuredInterference
from placewise_core.speed.sharing_row import Square
from placewise_models.sharing import SHARING_MODEL
from placewise_training.data.measured import GpuPair
from placewise_training.data.site_rows import SiteRows
from placewise_training.lab.traced import filled
from placewise_training.log.co_runs import CoRunRow, CoRunRows
from placewise_training.log.later import HeldBack, gain, held_back
from placewise_training.sharing.data import Matrix, table_of
from placewise_training.sharing.net import CoRunCompletion


class _Side(NamedTuple):
    """A job (GPU model, network, batch) beside a network: speeds of both, and which are bounds."""

    job: tuple[str, str, float]
    partner: str
    speeds: tuple[float, float]
    is_bound: tuple[bool, bool]


def log_pairs(where: str, before_s: float = 0.0) -> HeldBack[CoRunRow]:
    """Of decisions before `before_s`, 0 for all. Raises LogError, and ValueError for too few rows."""
    return held_back(CoRunRows, where, before_s)


def with_log(own: SiteRows, rows: Sequence[CoRunRow]) -> SiteRows:
    """The site's rows with those of its log, and the steps that its jobs declare."""
    alone_s = {
        (pair.gpu_type, canonical(model), batch): step_s
        for pair, _, steps in rows
        for model, batch, step_s in ((pair.model_a, pair.batch_a, steps[0]), (pair.model_b, pair.batch_b, steps[1]))
        if step_s > 0
    }
    return replace(own, pairs=(*own.pairs, *(row.pair for row in rows)), alone_s={**alone_s, **own.alone_s})


def begun(bundle: Path) -> CoRunCompletion:
    """The net of a bundle. Raises ValueError for a graph of another form, OSError."""
    return filled(CoRunCompletion(len(packaged_tables().interference.references)), bundle / SHARING_MODEL)


def log_report(
    where: str, log: HeldBack[CoRunRow], history: Sequence[GpuPair], before: CoRunCompletion, after: CoRunCompletion
) -> dict[str, Any]:
    """The part of the report about the log: rows, and the errors of both nets on later co-runs. Raises ValueError if
    none of the later jobs has a co-run before."""
    table = table_of(history)
    known = [side for row in log.learn for side in _sides(row, table)]
    asked = [(row.time_s, side, _known(side, known)) for row in log.later for side in _sides(row, table)]
    rows = [(time_s, side, seen) for time_s, side, seen in asked if seen is not None]
    if not rows:
        raise ValueError("no job of the later co-runs ran beside another network of the table before")
    errors = [_errors(net, [(side, seen) for _, side, seen in rows], table) for net in (before, after)]
    return log.report(where, gain(errors[0], errors[1], np.array([time_s for time_s, _, _ in rows])))


def _sides(row: CoRunRow, table: MeasuredInterference) -> list[_Side]:
    """The pair from the side of each job whose partner is a network of the table."""
    p = row.pair
    a, b = canonical(p.model_a), canonical(p.model_b)
    both = (
        _Side((p.gpu_type, a, p.batch_a), b, (p.norm_a, p.norm_b), (p.is_bound_a, p.is_bound_b)),
        _Side((p.gpu_type, b, p.batch_b), a, (p.norm_b, p.norm_a), (p.is_bound_b, p.is_bound_a)),
    )
    return [side for side in both if side.partner in table.references]


def _known(side: _Side, known: Sequence[_Side]) -> _Side | None:
    """The latest earlier co-run of the job beside another network."""
    fits = (each for each in reversed(known) if each.job == side.job and each.partner != side.partner)
    return next((each for each in fits if not any(each.is_bound)), None)


def _errors(net: CoRunCompletion, asked: Sequence[tuple[_Side, _Side]], table: MeasuredInterference) -> Matrix:
    """(N,) mean absolute error of the two speeds; below a bound there is none."""
    names = table.references
    count = len(names)
    prior = np.stack([_prior(side, table) for side, _ in asked])
    known = np.full(prior.shape, np.nan)
    for i, (_, seen) in enumerate(asked):
        column = names.index(seen.partner)
        known[i, [column, count + column]] = np.minimum(1.0, seen.speeds)
    with torch.no_grad():
        given = (np.nan_to_num(prior, nan=1.0), np.nan_to_num(known), (~np.isnan(known)).astype(np.float64))
        found = net(*(torch.from_numpy(array).float() for array in given)).double().numpy()
    at = np.array([names.index(side.partner) for side, _ in asked])
    each = np.arange(len(asked))
    above = np.stack([found[each, at], found[each, count + at]], axis=1)
    above -= np.minimum(1.0, np.array([side.speeds for side, _ in asked]))
    is_bound = np.array([side.is_bound for side, _ in asked])
    errors: Matrix = np.where(is_bound, np.maximum(above, 0.0), np.abs(above)).mean(axis=1)
    return errors


def _prior(side: _Side, table: MeasuredInterference) -> Matrix:
    """As the service assumes it of the network."""
    gpu_type, network, _ = side.job
    like = nearest(network, table.references)
    index = None if like is None else table.references.index(like)
    return Square.of(table, table.gpu_of(gpu_type)).row(index)

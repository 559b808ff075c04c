"""What fills the holes of the description matrix in IAWP's experiments: the paper's NCF, the shipped completion."""

import functools
from collections.abc import Sequence

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.subtasks.completed_metrics import CompletedMetrics
from placewise_core.subtasks.metrics import METRICS, KnownMetrics, SubtaskMetrics
from placewise_core.subtasks.scale import from_unit, to_unit
from placewise_training.reproduce.design import NeedsBundleError
from placewise_training.sim.pipelines.applications import subtask_truths
from placewise_training.sim.policies import shipped

_SHOWN = 300  # iterations of the convergence curve


@functools.cache
def by_completion() -> SubtaskMetrics:
    """The net of the shipped bundle on what requests say. Raises NeedsBundleError if there is none."""
    net = shipped().stdm
    if net is None:
        raise NeedsBundleError("needs a bundle: there is no net that completes metrics")
    return CompletedMetrics(KnownMetrics({}), net)


@functools.cache
def by_ncf(known: tuple[str, ...], steps: int) -> SubtaskMetrics:
    """The paper's NCF, trained on with the judging truth's rows, of which only `known` are given."""
    kinds, rows = _judged_rows()
    return _completed(kinds, np.where([name in known for name in METRICS], rows, np.nan), steps)


@functools.cache
def by_random_ncf(seed: int, steps: int) -> SubtaskMetrics:
    """The same with two random metrics of each kind, which a short profile measures with its error."""
    from placewise_training.stdm.data import profile_rows  # noqa: PLC0415 (torch takes seconds to import)
    from placewise_training.stdm.train import Args  # noqa: PLC0415

    kinds, rows = _judged_rows()
    return _completed(kinds, profile_rows(rows, Args().known, np.random.default_rng((seed, 56))), steps)


def _judged_rows() -> tuple[Sequence[str], FloatArray]:
    """The kinds that have a GPU version, and their metrics as the judging truth has them."""
    kinds = {name: truth.profile() for name, truth in subtask_truths("judge").items() if truth.has_gpu_version}
    return tuple(kinds), np.array([to_unit(profile) for profile in kinds.values()])


def _completed(kinds: Sequence[str], partial: FloatArray, steps: int) -> SubtaskMetrics:
    from placewise_training.stdm.data import subtask_matrix  # noqa: PLC0415
    from placewise_training.stdm.train import Args, complete_by_ncf  # noqa: PLC0415

    args = Args(sgd_steps=steps)
    found, _ = complete_by_ncf(subtask_matrix(args.draws).values, partial, args)
    return KnownMetrics({name: from_unit(row) for name, row in zip(kinds, found, strict=True)})


@functools.cache
def ncf_losses(seed: int, *, is_pretrained: bool) -> Sequence[float]:
    """Loss (5) by iteration over the history and rows of held-back kinds."""
    from placewise_training.stdm.train import Args, complete_by_ncf, folds, losses_from_scratch  # noqa: PLC0415

    args = Args(seed=seed, sgd_steps=_SHOWN)
    fold = folds(args)["subtasks_unseen_kinds"][0]
    if is_pretrained:
        return tuple(complete_by_ncf(fold.history.values, fold.partial, args)[1])
    return tuple(losses_from_scratch(fold, args, _SHOWN))

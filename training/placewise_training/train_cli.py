"""`placewise train`: the trainers, each with its table on the terminal. Trains nothing itself."""

from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from placewise_training.capability import card as capability_card
from placewise_training.capability import train as train_capability
from placewise_training.lab.register import Report, Trainer, register
from placewise_training.ldwp import card as ldwp_card
from placewise_training.ldwp import train as train_ldwp
from placewise_training.ldwp.export import export_ldwp
from placewise_training.ldwp.online.command import learn_online
from placewise_training.ldwp.printed import card as ldwp_paper_card
from placewise_training.ldwp.printed import train as train_ldwp_paper
from placewise_training.ldwp.printed.export import export_ldwp_paper
from placewise_training.policy import args as policy_args
from placewise_training.policy import card as policy_card
from placewise_training.policy import train as train_policy
from placewise_training.policy.checkpoint import CHECKPOINT as POLICY_CHECKPOINT
from placewise_training.policy.export import export_policy
from placewise_training.policy.printed import card as printed_card
from placewise_training.policy.printed import train as train_printed
from placewise_training.policy.printed.export import export_harmony_paper
from placewise_training.reward import card as reward_card
from placewise_training.reward import train as train_reward
from placewise_training.reward.export import export_reward
from placewise_training.sharing import card as sharing_card
from placewise_training.sharing import train as train_sharing
from placewise_training.sharing.export import export_sharing
from placewise_training.stdm import card as stdm_card
from placewise_training.stdm import ncf as train_ncf
from placewise_training.stdm import train as train_stdm
from placewise_training.stdm.export import export_ncf, export_stdm
from placewise_training.throughput import card as throughput_card
from placewise_training.throughput import train as train_throughput

Rows = Iterator[tuple[str, ...]]
# The papers' own methods have trainers of their own: their nets and options are others.
_PRINTED = {("policy", "actor-critic"): "harmony-paper", ("ldwp", "dqn"): "ldwp-paper"}
_ONLINE = "ldwp-online"


class _ByMethod(TyperGroup):
    """Finds the trainer of `policy --method actor-critic` and `ldwp --method dqn [--online]`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # types of click, or of typer's copy of it
        return super().resolve_command(ctx, by_method(args))


train_app = typer.Typer(
    cls=_ByMethod, help="Train the models, export them to ONNX, and write their cards.", no_args_is_help=True
)


def by_method(args: Sequence[str]) -> list[str]:
    """The same arguments with the command that trains by the method asked for, without the option that named it."""
    name, *rest = args
    given = [*rest]
    for i, word in enumerate(rest):
        method, width = (rest[i + 1 : i + 2], 2) if word == "--method" else ([word.removeprefix("--method=")], 1)
        command = _PRINTED.get((name, method[0])) if method and word.startswith("--method") else None
        if command is not None:
            del given[i : i + width]
            if command == "ldwp-paper" and "--online" in given:
                given.remove("--online")
                command = _ONLINE
            return [command, *given]
    return [name, *rest]


@train_app.callback()
def _group() -> None:
    """Train the models, export them to ONNX, and write their cards."""


def _reward_rows(report: Report) -> Rows:
    cells = ("mean_relative_error", "within_10_percent", "mean_relative_error_blind", "mean_relative_error_constant")
    for name, row in report["metrics"].items():
        yield name, *(f"{row[cell]:.1%}" for cell in cells)


def _policy_rows(report: Report) -> Rows:
    for name, by_seed in report["metrics"].get("avg_jct_s", {}).items():
        yield name, f"{sum(by_seed.values()) / len(by_seed):,.0f}"


def _printed_rows(report: Report) -> Rows:
    for row in report["history"]:
        yield f"{row['tasks']:,}", f"{row['validation']:.3f}"


def _ldwp_rows(report: Report) -> Rows:
    for load, found in report["metrics"].items():
        for name, row in found.items():
            cells = (row["throughput"], row["turnaround_s"])
            yield load, name, *(f"{cell['mean']:.1f} ± {cell['half_width']:.1f}" for cell in cells)


def _ldwp_paper_rows(report: Report) -> Rows:
    for part, value in report["metrics"].get("throughput_per_min", {}).items():
        yield f"{value:.1f}", part.replace("_", " ")


def _stdm_rows(report: Report) -> Rows:
    for name, found in report["metrics"].items():
        for method, errors in found["methods"].items():
            yield name, method, f"{errors['mae']:.4f}"


def _ncf_rows(report: Report) -> Rows:
    loss = report["metrics"]["loss"]
    yield str(len(report["kinds"])), str(report["gpus"]), f"{loss['first']:.4f}", f"{loss['last']:.4f}"


def _sharing_rows(report: Report) -> Rows:
    for name, by_known in report["judged"].items():
        for known, found in by_known.items():
            for method, errors in found["methods"].items():
                yield name, known, method, f"{errors['mae']:.4f}"


def _throughput_rows(report: Report) -> Rows:
    cells = ("held_out_mean_error", "held_out_median_error", "held_out_within_10_percent")
    for form, row in report["held_out"].items():
        yield form, *(f"{row[cell]:.1%}" for cell in cells)


def _capability_rows(report: Report) -> Rows:
    for name, value in report["weights"].items():
        yield name, f"{value:.4f}"


TRAINERS = (
    Trainer(
        "reward",
        "Train the reward model: where jobs are → how fast each of them runs.",
        train_reward.Args,
        train_reward.train,
        train_reward.REPORT,
        ("samples of", "error", "within 10 %", "error, no reports", "best constant"),
        _reward_rows,
        reward_card.card,
        figures={reward_card.CALIBRATION: reward_card.draw_calibration},
        export=export_reward,
        checkpoint=train_reward.CHECKPOINT,
    ),
    Trainer(
        "policy",
        "Train Harmony's policy: tokens of nodes and jobs → where each task goes, and which job goes first. "
        "`--method actor-critic` is `harmony-paper`.",
        policy_args.Args,
        train_policy.train,
        train_policy.REPORT,
        ("policy", "average JCT on the judging truth, seconds"),
        _policy_rows,
        policy_card.card,
        export=export_policy,
        checkpoint=POLICY_CHECKPOINT,
    ),
    Trainer(
        "harmony-paper",
        "Train Harmony's actor-critic as its paper prints it, for `harmony-paper` on one number of nodes.",
        train_printed.Args,
        train_printed.train,
        train_printed.REPORT,
        ("tasks", "JCT over consolidate's"),
        _printed_rows,
        printed_card.card,
        export=export_harmony_paper,
    ),
    Trainer(
        "ldwp",
        "Train LDWP's Q net: a pipeline task and the state of nodes → the value of each. `--method dqn` is "
        "`ldwp-paper`, with `--online` `ldwp-online`.",
        train_ldwp.Args,
        train_ldwp.train,
        train_ldwp.REPORT,
        ("load", "nodes chosen by", "tasks per minute", "mean turnaround (s)"),
        _ldwp_rows,
        ldwp_card.card,
        export=export_ldwp,
        checkpoint=train_ldwp.CHECKPOINT,
    ),
    Trainer(
        "ldwp-paper",
        "Train LDWP's DQN as its paper prints it, for `ldwp-paper` on one number of nodes; transfers it to others.",
        train_ldwp_paper.Args,
        train_ldwp_paper.train,
        train_ldwp_paper.REPORT,
        ("tasks per minute", "of the run"),
        _ldwp_paper_rows,
        ldwp_paper_card.card,
        export=export_ldwp_paper,
    ),
    Trainer(
        "stdm",
        "Train what completes subtask metrics (IAWP), and judge it against plain methods.",
        train_stdm.Args,
        train_stdm.train,
        train_stdm.REPORT,
        ("rows judged", "method", "mean absolute error"),
        _stdm_rows,
        stdm_card.card,
        export=export_stdm,
        stage="stdm",
    ),
    Trainer(
        "ncf",
        "Train the NCF of the IAWP paper on measured kinds of subtasks, for `iawp-paper`; copies it to more GPUs.",
        train_ncf.Args,
        train_ncf.train,
        train_ncf.REPORT,
        ("kinds", "GPUs of a node", "loss (5) at first", "at last"),
        _ncf_rows,
        stdm_card.ncf_card,
        export=export_ncf,
        stage="ncf",
    ),
    Trainer(
        "sharing",
        "Train what completes slowdowns on shared GPUs from one or two co-runs, and judge it.",
        train_sharing.Args,
        train_sharing.train,
        train_sharing.REPORT,
        ("held back", "co-runs known", "method", "mean absolute error"),
        _sharing_rows,
        sharing_card.card,
        export=export_sharing,
        stage="sharing",
    ),
    Trainer(
        "throughput",
        "Fit the throughput model: shape and batch → samples per second, per network and GPU model.",
        train_throughput.Args,
        train_throughput.train,
        train_throughput.REPORT,
        ("form", "error, placements held back", "median", "within 10 %"),
        _throughput_rows,
        throughput_card.card,
        stage="fitting",
    ),
    Trainer(
        "capability",
        "Fit capability and heat of units to the shares of a site's own tasks, from its log.",
        train_capability.Args,
        train_capability.train,
        train_capability.REPORT,
        ("component", "weight"),
        _capability_rows,
        capability_card.card,
        stage="fitting",
        needs_log=True,
    ),
)
register(train_app, TRAINERS)
train_app.command(name=_ONLINE)(learn_online)

"""The state of a policy's training run, written to disk and restored. Trains nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from placewise_core.inputs.cluster import feature_schema
from placewise_training.policy.net import PolicyNet

CHECKPOINT = "policy.pt"


@dataclass(slots=True)
class Checkpoint:
    """The contents of a checkpoint."""

    net: PolicyNet
    optimiser: torch.optim.Optimizer
    rounds: int = 0
    tasks: int = 0
    best: float = float("inf")
    best_state: Mapping[str, torch.Tensor] = field(default_factory=dict)
    digest: str = ""
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


def load_net(checkpoint: Path) -> PolicyNet:
    """The best net of a training run. Raises ValueError if it was trained on other features than today's."""
    stored = torch.load(checkpoint, map_location="cpu", weights_only=True)
    if stored["feature_schema"] != feature_schema("policy")["hash"]:
        raise ValueError(f"{checkpoint}: trained on other features than this version encodes; train it again")
    net = PolicyNet(**stored["shape"])
    net.load_state_dict(stored["best_state"])
    return net.eval()


def keep(out: Path, run: Checkpoint) -> None:
    """Whole or not at all: written beside and renamed."""
    torch.save(
        {
            "feature_schema": feature_schema("policy")["hash"],
            "shape": run.net.shape,
            "net": run.net.state_dict(),
            "optimiser": run.optimiser.state_dict(),
            "rounds": run.rounds,
            "tasks": run.tasks,
            "best": run.best,
            "best_state": run.best_state,
            "digest": run.digest,
            "seconds": run.seconds,
            "history": run.history,
        },
        out / "policy.part",
    )
    (out / "policy.part").replace(out / CHECKPOINT)


def restore(out: Path, run: Checkpoint) -> None:
    """Replay samples are not in a checkpoint: they are collected again."""
    path = out / CHECKPOINT
    stored = torch.load(path, map_location="cpu", weights_only=True)
    if stored["feature_schema"] != feature_schema("policy")["hash"] or stored["shape"] != run.net.shape:
        raise ValueError(f"{path}: a checkpoint of another net or of other features; choose another --out")
    run.net.load_state_dict(stored["net"])
    run.optimiser.load_state_dict(stored["optimiser"])
    run.rounds, run.tasks, run.digest = int(stored["rounds"]), int(stored["tasks"]), str(stored["digest"])
    run.seconds = float(stored["seconds"])
    run.best, run.best_state, run.history = float(stored["best"]), stored["best_state"], list(stored["history"])


def copied(net: PolicyNet) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone() for name, value in net.state_dict().items()}

"""The trainers that learn from a log, with their options for a retraining, each in a folder of its own.

A step that is done, on the same log and from the same bundle, is not done again; one that was interrupted goes on if
its trainer can.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from placewise_models.ncf import NCF_MODEL
from placewise_models.policy import POLICY_GRAPHS
from placewise_models.printed.harmony_paper import HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT
from placewise_models.printed.ldwp_paper import LDWP_PAPER_MODEL, LDWP_PAPER_REPORT
from placewise_models.reward import REWARD_MODEL
from placewise_training.capability import train as train_capability
from placewise_training.lab.register import Show, Trainer
from placewise_training.ldwp import train as train_ldwp
from placewise_training.ldwp.printed import train as train_ldwp_paper
from placewise_training.policy import args as train_policy_args
from placewise_training.policy.printed import train as train_printed
from placewise_training.reward import train as train_reward
from placewise_training.sharing import train as train_sharing
from placewise_training.stdm import ncf as train_ncf
from placewise_training.stdm import train as train_stdm
from placewise_training.throughput import train as train_throughput
from placewise_training.train_cli import TRAINERS

_DONE, _BEGUN = "done.json", "begun.json"


@dataclass(frozen=True, slots=True)
class Source:
    """The log, its digest, and the time from which on it judges; the bundle to begin with; the share of the usual
    effort. `ray`: where simulations are done, which changes nothing in a step."""

    log: Path
    digest: str
    before_s: float
    start: Path
    start_digest: str
    effort: float = 1.0
    seed: int = 0
    ray: str | None = None


@dataclass(frozen=True, slots=True)
class TrainerStep:
    """One trainer: `args` are its options for a source and a folder, `files` those that go into the bundle. With
    `needs_gain`, they go there only if the error on later rows fell: the gate judges placements, which say little of
    this model. Without the file `needs_start` in the bundle to begin with there is nothing to go on from."""

    name: str
    args: Callable[[Source, Path, bool], Any]
    files: Sequence[str]
    can_resume: bool = False
    needs_gain: bool = False
    needs_start: str = ""

    @property
    def trainer(self) -> Trainer:
        return next(each for each in TRAINERS if each.name == self.name)


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a step: the folder of its files, or why it left the model as it was; errors on later rows."""

    name: str
    folder: Path
    files: Sequence[str]
    left: str = ""
    later: Mapping[str, Any] | None = None


def run_step(step: TrainerStep, source: Source, work: Path, show: Show) -> Done:
    """Trains and exports, unless that is done. A log that holds too little for the trainer is no error: the model stays
    as it was. Raises LogError, OSError."""
    if step.needs_start and not (source.start / step.needs_start).is_file():
        return Done(step.name, work, (), f"{source.start.name} has no {step.needs_start}")
    folder = work / step.name
    folder.mkdir(parents=True, exist_ok=True)
    key = _key(step, source)
    done = _read(folder / _DONE)
    if done.get("key") != key or not (done["left"] or _is_whole(folder, step)):
        is_begun = _read(folder / _BEGUN).get("key") == key
        if not is_begun:  # its checkpoint is of other data
            shutil.rmtree(folder)
            folder.mkdir()
        can_go_on = step.can_resume and is_begun and any(folder.glob("*.pt"))
        _write(folder / _BEGUN, {"key": key})
        left = ""
        try:
            step.trainer.make(step.args(source, folder, can_go_on), show)
        except ValueError as error:
            left = str(error)
        done = {"key": key, "left": left}
        _write(folder / _DONE, done)
    if done["left"]:
        return Done(step.name, folder, (), done["left"])
    report = json.loads((folder / step.trainer.report).read_text("utf-8"))
    later = report.get("log", {}).get("later")
    if step.needs_gain and later["gain_interval"][0] <= 0:
        return Done(step.name, folder, (), "the error on later rows did not fall", later)
    return Done(step.name, folder, step.files, "", later)


def _is_whole(folder: Path, step: TrainerStep) -> bool:
    """Whether the files that the step made are still there."""
    return all((folder / name).is_file() for name in (*step.files, step.trainer.report))


def _key(step: TrainerStep, source: Source) -> str:
    args = step.args(source, Path(), False)
    text = f"{step.name} {source.digest} {source.start_digest} {args}"
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content) + "\n", "utf-8")
    part.replace(path)


def _throughput(source: Source, out: Path, resume: bool) -> Any:
    """Profiles of the start stay for models and GPUs that the log has nothing of."""
    return train_throughput.Args(
        out=out, splits=1, log=str(source.log), before_s=source.before_s, only_log=True, start=source.start
    )


def _reward(source: Source, out: Path, resume: bool) -> Any:
    """Half of the batches are simulated: the net must not forget placements that the log lacks."""
    return train_reward.Args(
        out=out, seed=source.seed, simulations=_scaled(100, source), judged_simulations=_scaled(4, source),
        steps=_scaled(800, source), validate_every=_scaled(100, source), warm_up=_scaled(80, source), peak_rate=5e-4,
        doubt_steps=_scaled(400, source), practice=_scaled(4, source), start=str(source.start), log=str(source.log),
        before_s=source.before_s, resume=resume,
    )  # fmt: skip


def _sharing(source: Source, out: Path, resume: bool) -> Any:
    """The published pairs stay: a log has few jobs beside several others."""
    return train_sharing.Args(
        out=out, seed=source.seed, steps=_scaled(400, source), log=str(source.log), before_s=source.before_s,
        start=source.start,
    )  # fmt: skip


def _stdm(source: Source, out: Path, resume: bool) -> Any:
    return train_stdm.Args(
        out=out, seed=source.seed, completion_steps=_scaled(1000, source), log=str(source.log),
        before_s=source.before_s, start=source.start, resume=resume,
    )  # fmt: skip


def _ncf(source: Source, out: Path, resume: bool) -> Any:
    """A bundle that has none gets one, with the kinds of the log."""
    start = str(source.start) if (source.start / NCF_MODEL).is_file() else ""
    return train_ncf.Args(
        out=out, seed=source.seed, start=start, log=str(source.log), before_s=source.before_s,
        sgd_steps=_scaled(2500, source),
    )  # fmt: skip


def _capability(source: Source, out: Path, resume: bool) -> Any:
    return train_capability.Args(out=out, log=str(source.log), before_s=source.before_s, start=source.start)


def _ldwp(source: Source, out: Path, resume: bool) -> Any:
    return train_ldwp.Args(
        out=out, seed=source.seed, logged=0, episodes=_scaled(12, source), validate_every=2, rate=5e-4, judged_seeds=0,
        log=str(source.log), before_s=source.before_s, start=source.start, resume=resume,
    )  # fmt: skip


def _ldwp_paper(source: Source, out: Path, resume: bool) -> Any:
    """As the service would have learned while it served."""
    return train_ldwp_paper.Args(
        out=out, seed=source.seed, log=str(source.log), before_s=source.before_s, only_log=True, start=source.start
    )


def _policy(source: Source, out: Path, resume: bool) -> Any:
    """The search that teaches it looks at the reward model that the step before has made of the log."""
    made = out.parent / "reward" / REWARD_MODEL
    return train_policy_args.Args(
        out=out, seed=source.seed, tasks=_scaled(6000, source), simulations=_scaled(8, source), imitation_rate=3e-4,
        reward_model=made if made.is_file() else None, validation_simulations=0, judged_seeds=0, log=str(source.log),
        before_s=source.before_s, start=source.start, resume=resume, ray=source.ray,
    )  # fmt: skip


def _harmony_paper(source: Source, out: Path, resume: bool) -> Any:
    return train_printed.Args(
        out=out, seed=source.seed, log=str(source.log), before_s=source.before_s, only_log=True, start=source.start
    )


def _scaled(count: int, source: Source) -> int:
    return max(2, round(count * source.effort))


STEPS: Final = (
    TrainerStep("throughput", _throughput, ("throughput.json",)),
    TrainerStep("reward", _reward, ("reward.onnx", "reward.json"), can_resume=True),
    TrainerStep("sharing", _sharing, ("sharing.onnx", "sharing.json"), needs_gain=True),
    TrainerStep("stdm", _stdm, ("stdm.onnx", "stdm.json"), can_resume=True, needs_gain=True),
    TrainerStep("ncf", _ncf, ("ncf.onnx", "ncf.json"), needs_gain=True),
    TrainerStep("capability", _capability, ("capability.json",), needs_gain=True),
    TrainerStep("ldwp", _ldwp, ("ldwp.onnx", "ldwp.json"), can_resume=True, needs_gain=True),
    TrainerStep(
        "ldwp-paper", _ldwp_paper, (LDWP_PAPER_MODEL, LDWP_PAPER_REPORT), needs_gain=True, needs_start=LDWP_PAPER_MODEL
    ),
    TrainerStep("policy", _policy, (*POLICY_GRAPHS, "policy.json"), can_resume=True, needs_gain=True),
    TrainerStep(
        "harmony-paper",
        _harmony_paper,
        (HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT),
        needs_gain=True,
        needs_start=HARMONY_PAPER_MODEL,
    ),
)

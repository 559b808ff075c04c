"""One retraining: log → trainers → candidate bundle → gate → the bundle in its place. Never touches the bundle that it
starts from, and nothing stands at `out` before the gate has passed.

Its folder `OUT.retrain` keeps each step, so that the same command goes on after an interruption.
"""

import errno
import fcntl
import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from placewise_log.auditing import audited
from placewise_log.manifest import LogManifest, ManifestError
from placewise_log.store import LogError, LogStore
from placewise_models.bundle import MANIFEST, Manifest, load, schema_in, write_manifest
from placewise_models.public_key import SIGNATURES
from placewise_training.evaluate.logged import Usable
from placewise_training.evaluate.stretches import Stretches
from placewise_training.gate.gate import RETRAINED, GateArgs, GateVerdict, gate
from placewise_training.gate.report import REPORT, record, write
from placewise_training.gate.simulated import WINDOWS
from placewise_training.lab.origin import origin
from placewise_training.lab.register import Show
from placewise_training.lab.work.asked import workers_of
from placewise_training.log.nodes import nodes_of
from placewise_training.log.placed import REWARD, placed_jobs
from placewise_training.retrain.steps import STEPS, Done, Source, TrainerStep, run_step

DISK_FULL: Final = "the disk is full: free some of it"
_FULL_BYTES: Final = 1 << 16


class BusyError(Exception):
    """Another retraining writes the same bundle."""

    exit_code = 6


class RetrainError(Exception):
    """It cannot begin; the message names the reason and the remedy."""

    exit_code = 2


class WrittenMeanwhileError(RetrainError):
    """The log changed while it was learned from."""


@dataclass(frozen=True, slots=True)
class RetrainArgs:
    """As the command's options. `only` names steps, () for all."""

    log: Path
    start: Path
    out: Path
    cluster: str = ""
    policies: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    reward: str = REWARD
    block_min: float = 120.0
    windows: int = WINDOWS
    effort: float = 1.0
    seed: int = 0
    ray: str | None = None
    processes: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Retrained:
    """The verdict (None if no model learnt), the result of each step, and the folder of bundle or candidate."""

    verdict: GateVerdict | None
    steps: Sequence[Done]
    folder: Path

    @property
    def is_promoted(self) -> bool:
        return self.verdict is not None and self.verdict.is_promoted


def retrain(args: RetrainArgs, show: Show) -> Retrained:
    """Raises RetrainError, BusyError, LogError, OSError for a full disk, ValueError for a log that is too short,
    LostItemError, RayUnreachableError."""
    with audited("retrain", args.out.resolve().name) as outcome:
        found = _retrained(args, show)
        if not found.is_promoted:
            outcome.result = "NEGATIVE"
        return found


def _retrained(args: RetrainArgs, show: Show) -> Retrained:
    if args.out.exists():
        raise RetrainError(f"{args.out} exists, and a bundle never changes: choose another --out")
    work = work_of(args.out)
    with alone(work), workers_of(args.ray, args.processes) as workers:
        load(args.start)
        log = _checked(args.log)
        source = Source(
            args.log, log.digest, _first_stretch_ends_s(args), args.start, manifest_digest(args.start), args.effort,
            args.seed, args.ray,
        )  # fmt: skip
        steps = [run_step(step, source, work, show) for step in _steps(args.only)]
        learnt = [step for step in steps if step.files]
        if not learnt:
            return Retrained(None, steps, work)
        candidate = _packed(args, work / "bundle" / args.out.name, learnt, log)
        if _checked(args.log).digest != log.digest:
            raise WrittenMeanwhileError(f"{args.log} was written to meanwhile: retrain from a copy of it")
        show("gate", 0, 1)
        verdict = gate(
            GateArgs(
                args.log, candidate, args.start, args.policies, args.cluster, args.reward, args.block_min,
                args.windows, work / "gate",
            ),
            workers,
        )  # fmt: skip
        write(verdict, work / "gate")
        if verdict.is_promoted:
            record(verdict, candidate, args.out)
            return Retrained(verdict, steps, args.out)
        refused = work / "refused" / args.out.name
        shutil.rmtree(refused.parent, ignore_errors=True)
        refused.parent.mkdir()
        record(verdict, candidate, refused)
        return Retrained(verdict, steps, refused)


def work_of(out: Path) -> Path:
    """The folder that keeps each step."""
    return out.with_name(f"{out.name}.retrain")


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """One process at a time. The lock goes with the process, however it ends."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyError(f"another retraining writes {work}: wait for it, or choose another --out") from error
        yield


def is_disk_full(error: Exception, folder: Path) -> bool:
    """True for an error of a full disk. torch hides the system's reason: then the space that is left decides."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if isinstance(error, sqlite3.Error):
        return "disk is full" in str(error)
    return shutil.disk_usage(folder).free < _FULL_BYTES


def _checked(log: Path) -> LogManifest:
    """The log's manifest, whose files are all there and whole. Raises LogError."""
    try:
        found = LogManifest.read(log)
        found.check(log)
    except ManifestError as error:
        raise LogError(f"{error}; run `placewise log export {log}` to its end") from error
    return found


def _first_stretch_ends_s(args: RetrainArgs) -> float:
    """Trainers learn from decisions before it. The gate chooses and judges on the others."""
    jobs = [one for one in placed_jobs(args.log, args.reward) if not args.cluster or one.record.cluster == args.cluster]
    usable = Usable.of(jobs, 60.0 * args.block_min)
    train = Stretches.of(usable.block).train
    return float(np.array([one.time_s for one in usable.jobs])[train].max()) + 1e-3


def _steps(only: Sequence[str]) -> Sequence[TrainerStep]:
    unknown = set(only) - {step.name for step in STEPS}
    if unknown:
        raise RetrainError(f"no step is called {min(unknown)!r}; there are {', '.join(step.name for step in STEPS)}")
    return [step for step in STEPS if not only or step.name in only]


def _packed(args: RetrainArgs, folder: Path, learnt: Sequence[Done], log: LogManifest) -> Path:
    """The start's files with those that were learnt in their place, and a manifest that names parent and log."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    parent = msgspec.json.decode((args.start / MANIFEST).read_bytes(), type=Manifest)
    for file in parent.files:
        shutil.copyfile(args.start / file, folder / file)
    for step in learnt:
        for file in step.files:
            shutil.copyfile(step.folder / file, folder / file)
    hashes = {name: file.sha256 for name, file in log.files.items()}
    described = {
        "log": {"where": str(args.log), "digest": log.digest, "files": hashes, "nodes": nodes_of(LogStore(args.log))},
        "steps": {step.name: {"files": list(step.files), "later": step.later} for step in learnt},
        "origin": origin(),
    }
    (folder / RETRAINED).write_text(json.dumps(described, indent=1) + "\n", "utf-8")
    files = sorted({*parent.files, RETRAINED, *(file for step in learnt for file in step.files)} - {SIGNATURES, REPORT})
    write_manifest(folder, _manifest(folder, parent, args, files, {step.name for step in learnt}, log))
    load(folder)
    return folder


def _manifest(
    folder: Path, parent: Manifest, args: RetrainArgs, files: Sequence[str], learnt: Set[str], log: LogManifest
) -> Manifest:
    """The parent's manifest with the candidate's files. Facts about retrained models stand in their reports now."""

    def kept(facts: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in facts.items() if name.partition("/")[0] not in learnt}

    return msgspec.structs.replace(
        parent,
        name=args.out.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        files=dict.fromkeys(files, ""),
        feature_schema=schema_in(folder, files),
        seeds=kept(parent.seeds),
        data_sha256=kept(parent.data_sha256),
        metrics=kept(parent.metrics),
        parent={"name": args.start.resolve().name, "digest": manifest_digest(args.start)},
        logs={str(args.log): log.digest},
        gate={},
    )


def manifest_digest(bundle: Path) -> str:
    """A bundle's digest; its files are not looked at. Raises OSError."""
    return hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()

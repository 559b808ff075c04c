"""Trains Harmony's policy: imitation of a search, the paper's actor-critic on our net, or PPO → policy.pt, policy.json.

    python -m placewise_training.policy.train --out var/train/policy        (placewise train policy)

Read top to bottom, with updates.py for the learning of a round. `method` names the learner: one of the three alone,
or "imitate+ppo" and "imitate+actor-critic", which warm up by imitation for `warm_share` of the tasks. All spend one
budget, tasks placed in simulations of the training truths, so that they compare. Every random draw comes from `seed`;
Ctrl-C leaves a checkpoint that `--resume` goes on from.
"""

import copy
import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from placewise_core.inputs.cluster import feature_schema
from placewise_models.folder import shipped_bundle
from placewise_models.policy import PolicyRuntime
from placewise_models.reward import REWARD_MODEL, RewardRuntime
from placewise_training.lab.compare import FIRST_SEED, Contender, Setting, average_jct_s
from placewise_training.lab.device import chosen_device
from placewise_training.lab.scalars import Scalars
from placewise_training.lab.work.asked import workers_of
from placewise_training.lab.work.workers import Workers
from placewise_training.log.later import HeldBack
from placewise_training.policy.acting import Acting, Graphs, Situations, graphs_in, harmony_of, heuristic
from placewise_training.policy.args import Args, check, method_at, reward_of
from placewise_training.policy.checkpoint import Checkpoint, copied, keep, restore
from placewise_training.policy.graphs import write_onnx
from placewise_training.policy.logged.from_log import PolicyRow, episode_of, log_pi_of, log_report, log_rows, reading
from placewise_training.policy.logged.weights import begun
from placewise_training.policy.net import PolicyNet
from placewise_training.policy.rollouts import Chunk, Conduct, Episode
from placewise_training.policy.updates import Replay, actor_critic, imitate, ppo

SCHEMA = "placewise.policy/3"
REPORT = "policy.json"
FIRST_VALIDATION_SEED = 900_000  # beyond those of training, below those of nothing else
_ACTING = "acting"  # folder of the net in its served form
# Not of the model: left out of the report.
_ABOUT_THE_MACHINE = ("out", "device", "threads", "ray", "resume", "reward_model", "start")
# Sets progress: (title, done, total).
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class _Memory:
    """The samples of earlier rounds. They are not in a checkpoint: a resumed run collects them again."""

    imitated: deque[Chunk]
    replay: Replay


def train(args: Args, show: Show = lambda title, done, total: None) -> dict[str, Any]:
    """Trains and judges; the report that is also written to `out`. Raises ValueError for an unknown method, teacher or
    reward, for a checkpoint of another net and for a log that holds too little; LogError."""
    check(args)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    device = chosen_device(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    run = _run(args, device)
    before = copy.deepcopy(run.net)
    log = _log(args, run.net)
    memory = _Memory(deque(maxlen=40_000), Replay(args.replay))
    yardsticks: list[float] = []
    began = time.perf_counter()

    with Scalars(args.out) as write, workers_of(args.ray) as workers:
        while run.tasks < args.tasks:
            share = run.tasks / args.tasks
            method = method_at(args, share)
            episodes = [] if args.only_log else list(_episodes(args, run, method, share, workers, show))
            episodes += [episode_of(log.learn)] if log else []
            run.tasks += sum(episode.steps for episode in episodes)
            run.digest = _digest(run.digest, episodes)
            losses = _learn(args, run, method, share, memory, episodes, device)
            if run.rounds % args.validate_every == 0 or run.tasks >= args.tasks:
                yardsticks = yardsticks or _yardsticks(args, workers)
                losses["validation"] = _validated(args, run, method, yardsticks, workers)
            for name, value in losses.items():
                write(f"{method}/{name}", value, run.tasks)
            run.seconds += time.perf_counter() - began
            began = time.perf_counter()
            keep(args.out, run)
            show(f"training, {method}: JCT {run.best:.3f} × consolidate's", min(run.tasks, args.tasks), args.tasks)

        run.net.load_state_dict(run.best_state)
        report = _report(args, run, workers, show)
    if log:
        report["log"] = log_report(args.log, log, log_pi_of(before), log_pi_of(run.net))
    (args.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return report


def _run(args: Args, device: torch.device) -> Checkpoint:
    start = args.start or (shipped_bundle() if args.log else None)
    net = begun(start) if start else PolicyNet(args.width, args.heads, args.layers)
    net.to(device)  # before Adam, which keeps its moments there
    run = Checkpoint(net, torch.optim.Adam(net.parameters(), lr=args.rate))
    if args.resume:
        restore(args.out, run)
    net.cpu().eval()  # it acts on the CPU, through ONNX Runtime, and goes to the device to learn
    run.best_state = run.best_state or copied(net)
    return run


def _log(args: Args, net: PolicyNet) -> HeldBack[PolicyRow[Chunk]] | None:
    if not args.log:
        return None
    file = args.reward_model or (args.start or shipped_bundle()) / REWARD_MODEL
    actor = reading(exported(net, args.out), RewardRuntime.from_file(file), args.seed)
    return log_rows(args.log, args.before_s, actor.along, actor.taught)


def _learn(
    args: Args,
    run: Checkpoint,
    method: str,
    share: float,
    memory: _Memory,
    episodes: Sequence[Episode],
    device: torch.device,
) -> dict[str, float]:
    """One round of learning from the episodes; its losses, and their average JCT in minutes."""
    rng = np.random.default_rng((args.seed, 61, run.rounds))
    run.net.to(device).train()
    if method == "imitate":
        losses = imitate(args, run, memory.imitated, episodes, share, rng, device)
    elif method == "ppo":
        losses = ppo(args, run, episodes, rng, device)
    else:
        losses = actor_critic(args, run, memory.replay, episodes, share, rng, device)
    run.net.cpu().eval()
    run.rounds += 1
    return {**losses, "jct_minutes": float(np.mean([episode.avg_jct_s for episode in episodes])) / 60.0}


def _validated(args: Args, run: Checkpoint, method: str, yardsticks: Sequence[float], workers: Workers) -> float:
    """The validation of the net as it is now, which may become the best of the run."""
    if not yardsticks:
        run.best_state = copied(run.net)
        return 0.0
    now = _validate(args, run.net, yardsticks, workers)
    run.history.append({"tasks": run.tasks, "validation": now})
    # Imitation ends on a rate that has fallen to a tenth: its last weights are its best, and a validation
    # of a few simulations would only choose by chance. Reinforcement has no such end.
    if method == "imitate" or now < run.best:
        run.best, run.best_state = now, copied(run.net)
    return now


def _report(args: Args, run: Checkpoint, workers: Workers, show: Show) -> dict[str, Any]:
    first = 100_000 * args.seed
    return {
        "schema": SCHEMA,
        "feature_schema": feature_schema("policy")["hash"],
        "seed": args.seed,
        "args": {name: value for name, value in asdict(args).items() if name not in _ABOUT_THE_MACHINE},
        "dims": run.net.shape,
        "parameters": sum(p.numel() for part in (run.net.encoder, run.net.decoder) for p in part.parameters()),
        "data": {"rollouts": run.digest, "seeds": [first, first + run.rounds * args.simulations]},
        "tasks": run.tasks,
        "seconds": {"training": round(run.seconds, 1)},
        "history": run.history,
        "metrics": {
            **({"validation_vs_consolidate": run.best} if run.history else {}),
            **_judged(args, run.net, workers, show),
        },
    }


def _episodes(
    args: Args, run: Checkpoint, method: str, share: float, workers: Workers, show: Show
) -> Iterator[Episode]:
    """Those of one round, in the order of their seeds: all act by the net as it is now."""
    first = 100_000 * args.seed + run.rounds * args.simulations
    acting = _acting(args, run, method, share)
    for i, episode in enumerate(workers.mapped(acting.episode, range(first, first + args.simulations))):
        yield episode
        show(f"simulating, round {run.rounds + 1}", i + 1, args.simulations)


def _acting(args: Args, run: Checkpoint, method: str, share: float) -> Acting:
    graphs, drawn = _graphs(run.net, args.out), _situations(args)
    scorer = _scorer(args)
    if method == "imitate":
        # At first the teacher acts, later mostly the net: it must learn about the states it leads to.
        is_student_new = run.rounds < 2
        conduct = Conduct(sampled=True, taught=0.8 if is_student_new else 0.3, temperature=args.temperature)
        return Acting(graphs, conduct, drawn, True, scorer if args.teacher == "reward" else None)
    if method == "ppo":
        conduct = Conduct(reward=reward_of(args, method))
    else:
        conduct = Conduct(explore=args.explore * (1.0 - share), reward=reward_of(args, method))
    return Acting(graphs, conduct, drawn, False, scorer if conduct.reward == "progress" else None)


def _situations(args: Args) -> Situations:
    return Situations(args.jobs, args.large_share, args.interval_s)


def exported(net: PolicyNet, folder: Path) -> PolicyRuntime:
    """The net in its served form: the same code acts in training and in service, several times as fast as torch."""
    acting = folder / _ACTING
    acting.mkdir(exist_ok=True)
    write_onnx(net, acting)
    return PolicyRuntime.from_folder(acting)


def _graphs(net: PolicyNet, folder: Path) -> Graphs:
    exported(net, folder)
    return graphs_in(folder / _ACTING)


def _yardsticks(args: Args, workers: Workers) -> list[float]:
    """Average JCT of consolidate in each validation simulation."""
    return list(workers.mapped(_situations(args).yardstick_s, _validation_seeds(args)))


def _validate(args: Args, net: PolicyNet, yardsticks: Sequence[float], workers: Workers) -> float:
    """Geometric mean of the net's JCT over consolidate's in the same order, over the validation simulations."""
    acting = Acting(_graphs(net, args.out), Conduct(sampled=False), _situations(args))
    ours = list(workers.mapped(acting.avg_jct_s, _validation_seeds(args)))
    return float(np.exp(np.mean(np.log(np.array(ours) / np.array(yardsticks)))))


def _validation_seeds(args: Args) -> range:
    return range(FIRST_VALIDATION_SEED, FIRST_VALIDATION_SEED + args.validation_simulations)


def _judged(args: Args, net: PolicyNet, workers: Workers, show: Show) -> dict[str, Any]:
    """Average JCT per seed on the judging truth, Harmony's default setting, beside two heuristics in that order."""
    if not args.judged_seeds:
        return {}
    seeds = range(FIRST_SEED, FIRST_SEED + args.judged_seeds)
    setting = Setting(jobs=args.judged_jobs, every_s=args.interval_s)
    contenders: dict[str, Contender] = {
        "harmony": (partial(harmony_of, _graphs(net, args.out)), "policy"),
        "consolidate": (partial(heuristic, "consolidate"), "declared"),
        "load-balance": (partial(heuristic, "load-balance"), "declared"),
    }
    found = {}
    for done, (name, contender) in enumerate(contenders.items(), start=1):
        found[name] = {str(seed): jct for seed, jct in average_jct_s(setting, contender, seeds, workers).items()}
        show("judging", done, len(contenders))
    return {"avg_jct_s": found}


def _scorer(args: Args) -> Path | None:
    """The file of the reward model, where anything asks for it."""
    needs = args.teacher == "reward" or (
        "actor-critic" in args.method and reward_of(args, "actor-critic") == "progress"
    )
    if not needs:
        return None
    return args.reward_model or shipped_bundle() / REWARD_MODEL


def _digest(before: str, episodes: Sequence[Episode]) -> str:
    """SHA-256 chained over the rounds: identifies the training data, in order."""
    digest = hashlib.sha256(before.encode())
    for episode in episodes:
        for interval in episode.intervals:
            for chunk in interval.chunks:
                digest.update(chunk.seen.nodes.tobytes() + chunk.seen.jobs.tobytes())
                digest.update(np.array([step.action for step in chunk.steps]).tobytes())
    return digest.hexdigest()

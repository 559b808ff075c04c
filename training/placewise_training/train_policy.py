"""Trains Harmony's policy: imitation of a search, actor-critic as the paper has it, or PPO → policy.pt, policy.json.

    python -m placewise_training.train_policy --out var/train/policy        (placewise train policy)

Read top to bottom. `method` says what learns: one of the three alone, or "imitate+ppo" and "imitate+actor-critic",
which warm up by imitation for `warm_share` of the tasks. All spend one budget, tasks placed in simulations of the
training truths, so that they compare. Every random draw comes from `seed`; Ctrl-C leaves a checkpoint that `--resume`
goes on from.
"""

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from placewise_core.features import feature_schema
from placewise_core.place.harmony import Harmony
from placewise_core.place.registry import placement_policies
from placewise_core.place.search import SpeedScorer
from placewise_training.evaluate_policy import FIRST_SEED, Contender, Setting, average_jct_s
from placewise_training.models.policy import PolicyNet
from placewise_training.policy_batches import ask, collate, entropy, imitation_loss, log_pi_taken
from placewise_training.policy_checkpoint import Run, copied, keep, restore
from placewise_training.policy_onnx import write_onnx
from placewise_training.policy_rollouts import (
    Chunk,
    Conduct,
    Episode,
    Interval,
    Reward,
    Step,
    jobs_of,
    rollout,
    situation,
)
from placewise_training.policy_teacher import Teacher
from placewise_training.scalars import Scalars
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.engine import SimOptions, Simulation
from placewise_training.sim.nets import OnnxPolicy, OnnxScorer

SCHEMA = "placewise.policy/2"
REPORT = "policy.json"
METHODS = ("imitate", "actor-critic", "ppo", "imitate+actor-critic", "imitate+ppo")
FIRST_VALIDATION_SEED = 900_000  # beyond those of training, below those of nothing else
_ABOUT_THE_MACHINE = ("out", "device", "threads", "resume", "reward_model")  # not of the model: left out of its report
_REWARD_SCALE = 0.05  # a returns' order of magnitude becomes that of 1
_CLIP = 0.2  # PPO's
_MOST_RATIO = 2.0  # importance ratio of a replayed sample: beyond it, it says more about the past than about π
# Sets progress: (title, done, total).
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Args:
    """What `placewise train policy` takes; the string beside each becomes its help."""

    out: Path = field(
        default=Path("var/train/policy"), metadata={"help": "Folder for checkpoint, report, TensorBoard."}
    )
    method: str = field(default="imitate", metadata={"help": f"One of {', '.join(METHODS)}."})
    seed: int = field(default=0, metadata={"help": "Of every draw."})
    tasks: int = field(default=48_000, metadata={"help": "Tasks placed in training simulations: the budget."})
    warm_share: float = field(default=0.6, metadata={"help": "Of the budget, for imitation before the other method."})
    simulations: int = field(default=16, metadata={"help": "Simulations per round; after each, the net is updated."})
    jobs: int = field(default=40, metadata={"help": "Jobs per simulation."})
    interval_s: float = field(default=INTERVAL_S, metadata={"help": "Scheduling interval; Harmony's is 20 minutes."})
    width: int = field(default=64, metadata={"help": "Neurons per layer; Harmony has 128."})
    heads: int = field(default=8, metadata={"help": "Attention heads, as Harmony."})
    layers: int = field(default=2, metadata={"help": "Encoder layers, as Harmony."})
    # imitation
    teacher: str = field(default="truth", metadata={"help": "Speeds a search learns from: truth (train) or reward."})
    imitation_rate: float = field(default=1e-3, metadata={"help": "Adam's learning rate, falling to a tenth."})
    passes: float = field(default=10.0, metadata={"help": "Times each kept encoding is learned from on average."})
    chunks: int = field(default=32, metadata={"help": "Encodings per optimiser step."})
    temperature: float = field(default=0.02, metadata={"help": "Of the targets: share of a gang's own cost."})
    # reinforcement
    rate: float = field(default=1e-4, metadata={"help": "Adam's learning rate, as Harmony."})
    gamma: float = field(default=0.9, metadata={"help": "Discount per scheduling interval, as Harmony."})
    entropy: float = field(default=0.5, metadata={"help": "Harmony's β of actor-critic, falling to 0; PPO takes 2 %."})
    explore: float = field(default=0.5, metadata={"help": "Harmony's ε: gangs by bin packing or load balancing, → 0."})
    replay: int = field(default=8192, metadata={"help": "Actor-critic's FIFO of samples; 0: none."})
    batch: int = field(default=32, metadata={"help": "Actor-critic's samples per step."})
    value: bool = field(default=True, metadata={"help": "Learn a value net; without it rewards are used as they are."})
    reward: str = field(default="", metadata={"help": "progress (reward model) or jct (truth); empty: the method's."})
    epochs: int = field(default=3, metadata={"help": "PPO's passes over a round."})
    gae: float = field(default=0.9, metadata={"help": "PPO's λ of generalised advantage estimation."})
    reward_model: Path | None = field(default=None, metadata={"help": "reward.onnx; empty: the shipped bundle's."})
    # judgement
    validate_every: int = field(default=6, metadata={"help": "Rounds between validations."})
    validation_simulations: int = field(default=12, metadata={"help": "Simulations of a validation."})
    judged_seeds: int = field(
        default=5, metadata={"help": "Seeds of the final judgement on the judging truth; 0: none."}
    )
    judged_jobs: int = field(default=200, metadata={"help": "Jobs per judged simulation."})
    threads: int = field(default=1, metadata={"help": "CPU threads."})
    device: str = field(default="", metadata={"help": "torch device; empty: a GPU if there is one."})
    resume: bool = field(default=False, metadata={"help": "Go on from the checkpoint in `out`."})


def train(args: Args, show: Show = lambda title, done, total: None) -> dict[str, Any]:
    """Trains and judges; the report that is also written to `out`. Raises ValueError for an unknown method, teacher or
    reward, and for a checkpoint of another net."""
    _check(args)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    args.out.mkdir(parents=True, exist_ok=True)
    scorer = _scorer(args)

    net = PolicyNet(args.width, args.heads, args.layers).to(device)  # where the optimiser keeps its moments
    run = Run(net, torch.optim.Adam(net.parameters(), lr=args.rate))
    if args.resume:
        restore(args.out, run)
    net.cpu().eval()  # it acts on the CPU, through ONNX Runtime, and goes to the device to learn
    run.best_state = run.best_state or copied(net)
    kept: deque[Chunk] = deque(maxlen=40_000)  # what imitation learned from so far
    replay: deque[tuple[Interval, Chunk, Step, Interval | None]] = deque(maxlen=max(1, args.replay))
    yardsticks: list[float] = []
    began = time.perf_counter()

    with Scalars(args.out) as write:
        while run.tasks < args.tasks:
            # -- a round of simulations under the method of the hour --
            share = run.tasks / args.tasks
            method = _method_at(args, share)
            episodes = list(_episodes(args, run, method, share, scorer, show))
            run.tasks += sum(episode.steps for episode in episodes)
            run.digest = _digest(run.digest, episodes)
            rng = np.random.default_rng((args.seed, 61, run.rounds))

            # -- learning from it --
            net.to(device).train()
            if method == "imitate":
                losses = _imitate(args, run, kept, episodes, share, rng, device)
            elif method == "ppo":
                losses = _ppo(args, run, episodes, rng, device)
            else:
                losses = _actor_critic(args, run, replay, episodes, share, rng, device)
            net.cpu().eval()
            run.rounds += 1
            losses["jct_minutes"] = float(np.mean([episode.avg_jct_s for episode in episodes])) / 60.0

            # -- validation: greedy, on the training truths, simulations never trained on --
            if run.rounds % args.validate_every == 0 or run.tasks >= args.tasks:
                yardsticks = yardsticks or [_yardstick(args, i) for i in range(args.validation_simulations)]
                losses["validation"] = now = _validate(args, net, yardsticks)
                run.history.append({"tasks": run.tasks, "validation": now})
                # Imitation ends on a rate that has fallen to a tenth: its last weights are its best, and a validation
                # of a few simulations would only choose by chance. Reinforcement has no such end.
                if method == "imitate" or now < run.best:
                    run.best, run.best_state = now, copied(net)
            for name, value in losses.items():
                write(f"{method}/{name}", value, run.tasks)
            run.seconds += time.perf_counter() - began
            began = time.perf_counter()
            keep(args.out, run)
            show(f"training, {method}: JCT {run.best:.3f} × consolidate's", min(run.tasks, args.tasks), args.tasks)

    net.load_state_dict(run.best_state)
    report = {
        "schema": SCHEMA,
        "feature_schema": feature_schema("policy")["hash"],
        "seed": args.seed,
        "args": {name: value for name, value in asdict(args).items() if name not in _ABOUT_THE_MACHINE},
        "dims": net.shape,
        "parameters": sum(p.numel() for part in (net.encoder, net.decoder) for p in part.parameters()),
        "data": {
            "rollouts": run.digest,
            "seeds": [100_000 * args.seed, 100_000 * args.seed + run.rounds * args.simulations],
        },
        "tasks": run.tasks,
        "seconds": {"training": round(run.seconds, 1)},
        "history": run.history,
        "metrics": {"validation_vs_consolidate": run.best, **_judged(args, net, show)},
    }
    (args.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return report


# -- simulations -----------------------------------------------------------------------------------------------------


def _episodes(
    args: Args, run: Run, method: str, share: float, scorer: SpeedScorer | None, show: Show
) -> Iterator[Episode]:
    first = 100_000 * args.seed + run.rounds * args.simulations
    net = exported(run.net, args.out)
    for i in range(args.simulations):
        drawn = situation(first + i, args.jobs)
        teacher = None
        if method == "imitate":
            # At first the teacher acts, later mostly the net: what it will meet is what it must have learned about.
            is_student_new = run.rounds < 2
            conduct = Conduct(sampled=True, taught=0.8 if is_student_new else 0.3, temperature=args.temperature)
            of_reward = scorer if args.teacher == "reward" else None
            teacher = Teacher(np.random.default_rng((drawn.seed, 71)), scorer=of_reward)
        elif method == "ppo":
            conduct = Conduct(reward=_reward(args, method))
        else:
            conduct = Conduct(explore=args.explore * (1.0 - share), reward=_reward(args, method))
        is_rewarded_by_model = method != "imitate" and conduct.reward == "progress"
        yield rollout(
            drawn,
            net,
            conduct,
            teacher=teacher,
            scorer=scorer if is_rewarded_by_model else None,
            interval_s=args.interval_s,
        )
        show(f"simulating, round {run.rounds + 1}", i + 1, args.simulations)


def exported(net: PolicyNet, folder: Path) -> OnnxPolicy:
    """The net as it is served: what acts in training is what ships, and it is several times as fast as torch."""
    encoder, decoder = folder / "acting_encoder.onnx", folder / "acting_decoder.onnx"
    write_onnx(net, encoder, decoder)
    return OnnxPolicy.load(encoder, decoder)


def _yardstick(args: Args, i: int) -> float:
    """Average JCT of consolidate, shortest first, in validation simulation i."""
    drawn = situation(FIRST_VALIDATION_SEED + i, args.jobs)
    policy = placement_policies()["consolidate"]
    options = SimOptions(discipline=Discipline(every_s=args.interval_s, order="declared"), reports_progress=True)
    sim = Simulation(drawn.nodes, jobs_of(drawn), drawn.truth, policy, options=options, seed=drawn.seed)
    return sim.run().metrics.avg_jct_s


def _validate(args: Args, net: PolicyNet, yardsticks: Sequence[float]) -> float:
    """Geometric mean of the net's JCT over consolidate's in the same order, over the validation simulations."""
    greedy = Conduct(sampled=False)
    drawn = [situation(FIRST_VALIDATION_SEED + i, args.jobs) for i in range(args.validation_simulations)]
    acting = exported(net, args.out)
    ours = [rollout(each, acting, greedy, interval_s=args.interval_s).avg_jct_s for each in drawn]
    return float(np.exp(np.mean(np.log(np.array(ours) / np.array(yardsticks)))))


# -- updates ---------------------------------------------------------------------------------------------------------


def _imitate(
    args: Args,
    run: Run,
    kept: deque[Chunk],
    episodes: Sequence[Episode],
    share: float,
    rng: np.random.Generator,
    device: torch.device,
) -> dict[str, float]:
    """Towards the teacher's distributions, on what was kept so far."""
    fresh = [chunk for episode in episodes for interval in episode.intervals for chunk in interval.chunks]
    kept.extend(fresh)
    rate = args.imitation_rate * (1.0 - 0.9 * min(1.0, share / _warm_share(args)))
    divergences, wrongs = [], []
    pool = list(kept)
    sizes = np.array([len(chunk.seen.nodes) for chunk in pool])
    for _ in range(max(1, round(args.passes * len(fresh) / args.chunks))):
        chosen = [pool[i] for i in _alike(sizes, args.chunks, rng)]
        batch = collate(chosen, device)
        said = ask(run.net, batch)
        divergence, wrong = imitation_loss(batch, said)
        _step(run, divergence + 0.2 * wrong, rate)
        divergences.append(float(divergence.detach()))
        wrongs.append(float(wrong.detach()))
    return {"divergence": float(np.mean(divergences)), "minutes_error": float(np.mean(wrongs))}


def _ppo(
    args: Args, run: Run, episodes: Sequence[Episode], rng: np.random.Generator, device: torch.device
) -> dict[str, float]:
    """Proximal policy optimisation: clipped ratios, advantages by GAE over scheduling intervals."""
    samples: list[tuple[Chunk, float, float]] = []  # encoding, advantage, return
    for episode in episodes:
        values = _values(run.net, [interval.chunks[0] for interval in episode.intervals], device)
        rewards = [interval.reward * _REWARD_SCALE for interval in episode.intervals]
        discounts = [args.gamma**interval.passed for interval in episode.intervals]
        advantages = gae(rewards, values if args.value else [0.0] * len(values), discounts, args.gae)
        for interval, advantage, value in zip(episode.intervals, advantages, values, strict=True):
            samples += [(chunk, advantage, advantage + value) for chunk in interval.chunks]
    spread = np.array([advantage for _, advantage, _ in samples])
    mean, deviation = float(spread.mean()), float(spread.std()) + 1e-6
    policy_losses, value_losses = [], []
    sizes = np.array([len(chunk.seen.nodes) for chunk, _, _ in samples])
    for _ in range(args.epochs * max(1, round(len(samples) / args.chunks))):
        chosen = [samples[i] for i in _alike(sizes, args.chunks, rng)]
        batch = collate([chunk for chunk, _, _ in chosen], device)
        said = ask(run.net, batch)
        normal = torch.tensor([(a - mean) / deviation for _, a, _ in chosen], device=device)[batch.chunk]
        wanted = torch.tensor([r for _, _, r in chosen], device=device)
        ratio = torch.exp(log_pi_taken(batch, said) - torch.log(batch.probability))
        clipped = torch.minimum(ratio * normal, ratio.clamp(1.0 - _CLIP, 1.0 + _CLIP) * normal)
        value_loss = torch.nn.functional.smooth_l1_loss(said.value, wanted)
        loss = -clipped.mean() + 0.5 * value_loss * args.value - 0.02 * args.entropy * entropy(batch, said).mean()
        _step(run, loss, args.rate)
        policy_losses.append(float(-clipped.detach().mean()))
        value_losses.append(float(value_loss.detach()))
    return {"policy_loss": float(np.mean(policy_losses)), "value_loss": float(np.mean(value_losses))}


def _actor_critic(
    args: Args,
    run: Run,
    replay: deque[tuple[Interval, Chunk, Step, Interval | None]],
    episodes: Sequence[Episode],
    share: float,
    rng: np.random.Generator,
    device: torch.device,
) -> dict[str, float]:
    """Harmony's (2): ∇ log π (Q − V) + β H, Q = r + γ V(s′) of the interval, V by temporal difference, samples drawn
    from a FIFO. [!] A replayed sample was drawn by an older π or by the explorer: it is weighted by the ratio of the
    probabilities, clipped, which the paper leaves out."""
    begun = sum(len(episode.intervals) for episode in episodes)
    if not args.replay:
        replay.clear()
    fresh = [
        (interval, chunk, step, following)
        for episode in episodes
        for interval, following in zip(episode.intervals, [*episode.intervals[1:], None], strict=True)
        for chunk in interval.chunks
        for step in chunk.steps
    ]
    if args.replay:
        replay.extend(fresh)
    pool = list(replay) if args.replay else fresh
    losses, value_losses = [], []
    for update in range(begun):  # as in the paper: one mini-batch per interval
        if args.replay:
            chosen = [pool[i] for i in rng.integers(0, len(pool), args.batch)]
        else:  # the interval's own samples, in order
            at = update * len(pool) // begun
            chosen = pool[at : at + args.batch]
        after = [following.chunks[0] if following else None for _, _, _, following in chosen]
        with torch.no_grad():
            known = [chunk for chunk in after if chunk is not None]
            ahead = iter(_values(run.net, known, device) if known else [])
        worth = [next(ahead) if chunk is not None else 0.0 for chunk in after]
        batch = collate([chunk for _, chunk, _, _ in chosen], device, [[step] for _, _, step, _ in chosen])
        said = ask(run.net, batch)
        q = torch.tensor(
            [
                interval.reward * _reward_scale(args) + args.gamma**interval.passed * v
                for (interval, _, _, _), v in zip(chosen, worth, strict=True)
            ],
            device=device,
        )
        taken = log_pi_taken(batch, said)
        weight = torch.exp(taken.detach() - torch.log(batch.probability)).clamp(max=_MOST_RATIO)
        advantage = q - said.value.detach() if args.value else q
        value_loss = torch.nn.functional.smooth_l1_loss(said.value, q) if args.value else torch.zeros((), device=device)
        bonus = args.entropy * (1.0 - share) * entropy(batch, said).mean()
        loss = -(weight * taken * advantage).mean() - bonus + 0.5 * value_loss
        _step(run, loss, args.rate)
        losses.append(float(loss.detach()))
        value_losses.append(float(value_loss.detach()))
    return {"loss": float(np.mean(losses)), "value_loss": float(np.mean(value_losses))}


def gae(rewards: Sequence[float], values: Sequence[float], discounts: Sequence[float], smoothing: float) -> list[float]:
    """Generalised advantage estimates: A_t = δ_t + γ_t λ A_{t+1}, δ_t = r_t + γ_t V_{t+1} − V_t, zero after the end."""
    advantages: list[float] = []
    following, worth = 0.0, 0.0
    for reward, value, discount in zip(reversed(rewards), reversed(values), reversed(discounts), strict=True):
        following = reward + discount * worth - value + discount * smoothing * following
        worth = value
        advantages.append(following)
    return advantages[::-1]


def _step(run: Run, loss: torch.Tensor, rate: float) -> None:
    for group in run.optimiser.param_groups:
        group["lr"] = rate
    run.optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(run.net.parameters(), 1.0)
    run.optimiser.step()


def _values(net: PolicyNet, chunks: Sequence[Chunk], device: torch.device) -> list[float]:
    found: list[float] = []
    with torch.no_grad():
        for first in range(0, len(chunks), 128):
            batch = collate(chunks[first : first + 128], device)
            nodes, jobs, _ = net.encoder(batch.nodes, batch.jobs, batch.placement, batch.job_mask, batch.node_mask)
            found += net.worth(nodes, jobs, batch.job_mask, batch.node_mask).tolist()
    return found


def _alike(sizes: Any, count: int, rng: np.random.Generator) -> Any:
    """Encodings of about the same number of nodes: less of a batch is padding."""
    order = np.argsort(sizes + rng.uniform(0.0, 4.0, len(sizes)), kind="stable")
    first = int(rng.integers(0, max(1, len(order) - count + 1)))
    return order[first : first + count]


# -- judgement, checkpoints ------------------------------------------------------------------------------------------


def _judged(args: Args, net: PolicyNet, show: Show) -> dict[str, Any]:
    """Average JCT per seed on the judging truth, Harmony's default setting, beside two heuristics in that order."""
    if not args.judged_seeds:
        return {}
    seeds = range(FIRST_SEED, FIRST_SEED + args.judged_seeds)
    setting = Setting(jobs=args.judged_jobs, every_s=args.interval_s)
    known = placement_policies()
    acting = exported(net, args.out)
    contenders: dict[str, Contender] = {
        "harmony": (lambda: Harmony(acting, known["consolidate"]), "policy"),
        "consolidate": (lambda: known["consolidate"], "declared"),
        "load-balance": (lambda: known["load-balance"], "declared"),
    }
    found = {}
    for done, (name, contender) in enumerate(contenders.items(), start=1):
        found[name] = {str(seed): jct for seed, jct in average_jct_s(setting, contender, seeds).items()}
        show("judging", done, len(contenders))
    return {"avg_jct_s": found}


def _check(args: Args) -> None:
    if args.method not in METHODS:
        raise ValueError(f"no method is called {args.method!r}; there are: {', '.join(METHODS)}")
    if args.teacher not in ("truth", "reward"):
        raise ValueError(f"a teacher looks at the truth or at the reward model, not at {args.teacher!r}")
    if args.reward not in ("", "jct", "progress"):
        raise ValueError(f"a reward is jct or progress, not {args.reward!r}")


def _warm_share(args: Args) -> float:
    return 1.0 if args.method == "imitate" else args.warm_share


def _method_at(args: Args, share: float) -> str:
    first, _, then = args.method.partition("+")
    return first if not then or share < args.warm_share else then


def _reward(args: Args, method: str) -> Reward:
    """Harmony's actor-critic has its (1) from the reward model, PPO the time jobs spend, from the training truth."""
    if args.reward:
        return "jct" if args.reward == "jct" else "progress"
    return "jct" if method == "ppo" else "progress"


def _reward_scale(args: Args) -> float:
    return 1.0 if _reward(args, "actor-critic") == "progress" else _REWARD_SCALE


def _scorer(args: Args) -> SpeedScorer | None:
    """The reward model, where anything asks for it."""
    needs = args.teacher == "reward" or ("actor-critic" in args.method and _reward(args, "actor-critic") == "progress")
    if not needs:
        return None
    shipped = resources.files("placewise_service").joinpath("bundles", "default", "reward.onnx")
    return OnnxScorer.load(args.reward_model or Path(str(shipped)))


def _digest(before: str, episodes: Sequence[Episode]) -> str:
    """SHA-256 chained over the rounds: what the net was trained on, in order."""
    digest = hashlib.sha256(before.encode())
    for episode in episodes:
        for interval in episode.intervals:
            for chunk in interval.chunks:
                digest.update(chunk.seen.nodes.tobytes() + chunk.seen.jobs.tobytes())
                digest.update(np.array([step.action for step in chunk.steps]).tobytes())
    return digest.hexdigest()

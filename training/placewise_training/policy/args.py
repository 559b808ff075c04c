"""Arguments of the policy's trainer, with their checks and derived values. Trains nothing."""

from dataclasses import dataclass, field
from pathlib import Path

from placewise_training.lab.work.asked import HELP, METAVAR
from placewise_training.policy.rollouts import Reward
from placewise_training.sim.arrivals import INTERVAL_S

METHODS = ("imitate", "actor-critic", "ppo", "imitate+actor-critic", "imitate+ppo")
_REWARD_SCALE = 0.05  # a returns' order of magnitude becomes that of 1


@dataclass(frozen=True, slots=True)
class Args:
    """What `placewise train policy` takes; the string beside each becomes its help."""

    out: Path = field(
        default=Path("var/train/policy"), metadata={"help": "Folder for checkpoint, report, TensorBoard."}
    )
    method: str = field(
        default="imitate",
        metadata={"help": f"One of {', '.join(METHODS)}; actor-critic is `harmony-paper`, with options of its own."},
    )
    seed: int = field(default=0, metadata={"help": "Of every draw."})
    tasks: int = field(default=72_000, metadata={"help": "Tasks placed in training simulations: the budget."})
    warm_share: float = field(default=0.6, metadata={"help": "Of the budget, for imitation before the other method."})
    simulations: int = field(default=16, metadata={"help": "Simulations per round; after each, the net is updated."})
    jobs: int = field(default=40, metadata={"help": "Jobs per simulation."})
    large_share: float = field(default=0.0, metadata={"help": "Share of the simulations that have 13 to 32 nodes."})
    interval_s: float = field(default=INTERVAL_S, metadata={"help": "Scheduling interval; Harmony's is 20 minutes."})
    width: int = field(default=64, metadata={"help": "Neurons per layer; Harmony has 128."})
    heads: int = field(default=8, metadata={"help": "Attention heads, as Harmony."})
    layers: int = field(default=1, metadata={"help": "Encoder layers; Harmony has 2."})
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
    batch: int = field(default=32, metadata={"help": "Actor-critic's samples per step, in whole gangs."})
    updates: int = field(default=1, metadata={"help": "Actor-critic's steps per interval, as Harmony."})
    value: bool = field(default=True, metadata={"help": "Learn a value net; else the mean return is the baseline."})
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
    device: str = field(
        default="", metadata={"help": "Torch device. By default a GPU, or the CPU of a machine without GPU."}
    )
    # Kept out of `repr`, which identifies a training: results are the same with and without Ray.
    ray: str | None = field(default=None, repr=False, metadata={"help": HELP, "metavar": METAVAR})
    resume: bool = field(default=False, metadata={"help": "Go on from the checkpoint in `out`."})
    # a log
    log: str = field(default="", metadata={"help": "Folder or URL of an exported decision log, to learn from."})
    before_s: float = field(
        default=0.0, metadata={"help": "Of the log only decisions before this time (epoch seconds); 0: all."}
    )
    only_log: bool = field(default=False, metadata={"help": "Learn from the log alone, without simulations."})
    start: Path | None = field(
        default=None,
        metadata={"help": "Bundle whose net the training starts from. Default: the shipped one with a log, else none."},
    )


def check(args: Args) -> None:
    """Raises ValueError for an unknown value, or for options that do not go together."""
    if args.method not in METHODS:
        raise ValueError(f"no method is called {args.method!r}; there are: {', '.join(METHODS)}")
    if args.teacher not in ("truth", "reward"):
        raise ValueError(f"a teacher looks at the truth or at the reward model, not at {args.teacher!r}")
    if args.only_log and not args.log:
        raise ValueError("--only-log needs a log (--log)")
    if args.log and args.method != "imitate":
        raise ValueError(f"from a log it learns by --method imitate, not by {args.method!r}")
    if args.reward not in ("", "jct", "progress"):
        raise ValueError(f"a reward is jct or progress, not {args.reward!r}")


def warm_share(args: Args) -> float:
    """The share of the budget that imitation gets."""
    return 1.0 if args.method == "imitate" else args.warm_share


def method_at(args: Args, share: float) -> str:
    """The method in use once that share of the budget is spent."""
    first, _, then = args.method.partition("+")
    return first if not then or share < args.warm_share else then


def reward_of(args: Args, method: str) -> Reward:
    """By default Harmony's actor-critic takes its reward (1) from the reward model. PPO's reward is the time that jobs
    spend under the training truth."""
    if args.reward:
        return "jct" if args.reward == "jct" else "progress"
    return "jct" if method == "ppo" else "progress"


def reward_scale(args: Args, method: str) -> float:
    """Brings returns to the order of magnitude of 1."""
    return 1.0 if reward_of(args, method) == "progress" else _REWARD_SCALE

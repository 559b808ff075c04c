"""Trains the paper's NCF for a bundle (LDWP/IAWP 4.3): history → Adam; new kinds with two metrics each → SGD → files.

    python -m placewise_training.stdm.ncf --out var/train/ncf --profiles profiles.json        (placewise train ncf)

`profiles.json` holds the measured metrics of each kind: {"detect": {"sm": 0.4, "speedup": 9}, …}. Without it, two
random metrics of each kind of the training truth, with the profiler's error. `--start` goes on from an earlier run: its
kinds stay, and for nodes with more GPUs (`--gpus`) the parameters of the GPU metrics are copied (4.3.4). Metrics of a
second GPU are named `gpu1/sm`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from placewise_core.subtasks.metrics import GPU_METRICS, METRICS
from placewise_core.subtasks.scale import from_unit, to_unit
from placewise_models.ncf import NCF_MODEL, NCF_REPORT, ncf_columns
from placewise_training.data.site_rows import NO_ROWS, SUBTASKS, SiteRows, read_site_rows
from placewise_training.lab.traced import filled
from placewise_training.stdm.data import Matrix, profile_rows, subtask_matrix, truth_matrix
from placewise_training.stdm.from_log import LogMetrics, log_metrics, table_report
from placewise_training.stdm.net import Ncf, with_gpus, with_subtasks
from placewise_training.stdm.train import Args as StdmArgs
from placewise_training.stdm.train import Cells, fit

SCHEMA = "placewise.ncf/1"
CHECKPOINT, REPORT = "ncf.pt", NCF_REPORT
KNOWN = 2  # IAWP draws two metrics of a new subtask and measures these alone
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Args:
    """What `placewise train ncf` takes; the string beside each becomes its help."""

    out: Path = field(default=Path("var/train/ncf"), metadata={"help": "Folder for checkpoint, report, model."})
    seed: int = field(default=0, metadata={"help": "Of every draw."})
    profiles: str = field(default="", metadata={"help": "JSON: kind → measured metrics; two random ones are enough."})
    measured: Path | None = field(default=None, metadata={"help": "Folder with the site's own rows (subtasks.csv)."})
    start: str = field(default="", metadata={"help": "Earlier run, or bundle with its net, to go on from."})
    log: str = field(default="", metadata={"help": "Folder or URL of an exported decision log, to learn from."})
    before_s: float = field(
        default=0.0, metadata={"help": "Learn from decisions before this time alone (seconds since 1970); 0: from all."}
    )
    only_log: bool = field(default=False, metadata={"help": "Learn from the log alone, without a drawn history."})
    gpus: int = field(default=1, metadata={"help": "GPUs of a node; more than in `start`: parameters are copied."})
    draws: int = field(default=20, metadata={"help": "Training rows drawn per kind of subtask."})
    pretrain_steps: int = field(default=500, metadata={"help": "Steps of Adam on the history; none with `start`."})
    sgd_steps: int = field(default=2500, metadata={"help": "Steps of SGD on the history and the new subtasks."})
    sgd_rate: float = field(default=5.0, metadata={"help": "Learning rate of SGD."})
    decay: float = field(default=1e-3, metadata={"help": "λ of (5)."})
    batch: int = field(default=128, metadata={"help": "Cells per step."})
    threads: int = field(default=1, metadata={"help": "CPU threads."})


@dataclass(frozen=True, slots=True)
class HistoryNet:
    """A net and its rows: `history_rows` of the history first, then the kinds in their order, NaN where unmeasured."""

    net: Ncf
    values: Matrix
    kinds: tuple[str, ...]
    gpus: int

    @property
    def history_rows(self) -> int:
        return len(self.values) - len(self.kinds)


def train(args: Args, show: Show = lambda title, done, total: None) -> dict[str, Any]:
    """The report, also written to `out` beside the checkpoint. Raises ValueError for a profile that is no share of 1
    and for a log that holds too little, LogError."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    settings = StdmArgs(seed=args.seed, decay=args.decay, batch=args.batch)
    if args.only_log and not args.log:
        raise ValueError("--only-log needs a log (--log)")
    own = read_site_rows(args.measured)
    logged = log_metrics(args.log, args.before_s) if args.log else None
    show("pre-training", 0, 3)
    begun = begin(args, settings, logged)
    show("stitching", 1, 3)
    known = stitched(begun, new_rows(args, own, logged), args.gpus)
    before = _table(known)
    optimiser = torch.optim.SGD(known.net.parameters(), lr=args.sgd_rate)
    losses = fit(known.net, Cells.of(known.values, torch.device("cpu")), optimiser, args.sgd_steps, settings)
    show("done", 3, 3)
    torch.save(_state(known), args.out / CHECKPOINT)
    report = {
        "schema": SCHEMA,
        "seed": args.seed,
        "gpus": known.gpus,
        "kinds": list(known.kinds),
        "history_rows": known.history_rows,
        "columns": list(ncf_columns(known.gpus)),
        "data": {"training": hashlib.sha256(known.values.tobytes()).hexdigest()} | own.data(SUBTASKS),
        "metrics": {"loss": {"first": losses[0], "last": losses[-1]}},
    }
    if logged:
        report["log"] = table_report(args.log, logged, known.kinds, before, _table(known))
    (args.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return report


def begin(args: Args, settings: StdmArgs, logged: LogMetrics | None = None) -> HistoryNet:
    """The run or bundle to go on from, or a net pre-trained on the history by Adam; untrained with a log alone."""
    if args.start:
        return load(Path(args.start))
    if args.only_log and logged:
        nothing = np.full(logged.cells.shape, np.nan)
        return HistoryNet(Ncf(len(nothing), len(METRICS)), nothing, logged.kinds, 1)
    history = subtask_matrix(args.draws).values
    net = Ncf(*history.shape)
    optimiser = torch.optim.Adam(net.parameters(), lr=5e-3)
    fit(net, Cells.of(history, torch.device("cpu")), optimiser, args.pretrain_steps, settings)
    return HistoryNet(net, history, (), 1)


def stitched(begun: HistoryNet, profiles: Mapping[str, Mapping[str, float]], gpus: int) -> HistoryNet:
    """The net with the GPUs and the kinds that are new to it. A kind that it has takes the measured metrics."""
    gpus = max(gpus, begun.gpus)
    net, values = begun.net, begun.values
    if gpus > begun.gpus:
        if begun.gpus > 1:
            raise ValueError("parameters are copied from a node with one GPU: start from such a run")
        net = with_gpus(net, [METRICS.index(name) for name in GPU_METRICS], gpus)
        values = np.pad(values, ((0, 0), (0, len(ncf_columns(gpus)) - len(METRICS))), constant_values=np.nan)
    new = [kind for kind in profiles if kind not in begun.kinds]
    net = with_subtasks(net, len(new)) if new else net
    values = np.concatenate([values, np.full((len(new), values.shape[1]), np.nan)])
    kinds = (*begun.kinds, *new)
    first = len(values) - len(kinds)
    for kind, profile in profiles.items():
        row = row_of(profile, gpus)
        values[first + kinds.index(kind)] = np.where(np.isnan(row), values[first + kinds.index(kind)], row)
    return HistoryNet(net, values, kinds, gpus)


def new_rows(args: Args, own: SiteRows = NO_ROWS, logged: LogMetrics | None = None) -> dict[str, dict[str, float]]:
    """Measured metrics by kind: of the file, the site's own rows and the log, else two random ones of each kind of the
    training truth."""
    found: dict[str, dict[str, float]] = json.loads(Path(args.profiles).read_text("utf-8")) if args.profiles else {}
    for kind, metrics in own.subtasks.items():
        found[kind] = {**found.get(kind, {}), **metrics}
    if logged:
        for kind, row in zip(logged.kinds, logged.cells, strict=True):
            found[kind] = {**found.get(kind, {}), **from_unit(row)}
    if found:
        return found
    truth = truth_matrix("train")
    partial = profile_rows(truth.values, KNOWN, np.random.default_rng((args.seed, 54)))
    return {
        kind: {name: float(value) for name, value in zip(METRICS, row, strict=True) if not np.isnan(value)}
        for kind, row in zip(truth.groups, partial, strict=True)
    }


def row_of(profile: Mapping[str, float], gpus: int) -> Matrix:
    """(N,) the profile in the order of ncf_columns, NaN where unknown. Raises ValueError for a value on another
    scale."""
    further = [to_unit({name.partition("/")[2]: value}) for name, value in profile.items() if name.startswith("gpu")]
    names = [name for name in profile if name.startswith("gpu")]
    row = np.full(len(ncf_columns(gpus)), np.nan)
    row[: len(METRICS)] = to_unit({name: value for name, value in profile.items() if name in METRICS})
    for name, unit in zip(names, further, strict=True):
        if name in ncf_columns(gpus):
            row[ncf_columns(gpus).index(name)] = unit[METRICS.index(name.partition("/")[2])]
    return row


def _state(known: HistoryNet) -> dict[str, Any]:
    return {
        "net": known.net.state_dict(),
        "values": torch.from_numpy(known.values),
        "kinds": list(known.kinds),
        "gpus": known.gpus,
    }


def _table(known: HistoryNet) -> Matrix:
    """(kinds, METRICS) of the net, on the first GPU."""
    with torch.no_grad():
        values: Matrix = known.net.table()[known.history_rows :, : len(METRICS)].double().numpy()
    return values


def load(run: Path) -> HistoryNet:
    """The net of a run, and its rows. A bundle's net comes without known values."""
    if not (run / CHECKPOINT).is_file():
        return _of_bundle(run)
    stored = torch.load(run / CHECKPOINT, map_location="cpu", weights_only=True)
    values = stored["values"].numpy()
    net = Ncf(*values.shape)
    net.load_state_dict(stored["net"])
    return HistoryNet(net, values, tuple(stored["kinds"]), stored["gpus"])


def _of_bundle(folder: Path) -> HistoryNet:
    """Raises ValueError for a bundle without the net."""
    if not (folder / NCF_MODEL).is_file():
        raise ValueError(f"{folder} has neither {CHECKPOINT} of a run nor {NCF_MODEL} of a bundle")
    report = json.loads((folder / NCF_REPORT).read_text("utf-8"))
    kinds, gpus = tuple(report["kinds"]), int(report["gpus"])
    shape = (int(report["history_rows"]) + len(kinds), len(ncf_columns(gpus)))
    return HistoryNet(filled(Ncf(*shape), folder / NCF_MODEL), np.full(shape, np.nan), kinds, gpus)

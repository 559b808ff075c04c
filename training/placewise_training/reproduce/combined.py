"""Beyond the papers: the gain of each part when all are put together. One chain of additions, measured alike."""

from collections.abc import Callable, Mapping

from placewise_core.admit.policy import AdmissionPolicy
from placewise_core.domain.cluster import QueueSettings
from placewise_models.bundle import Bundle
from placewise_training.reproduce.claims import Claim, ClaimVerdict, Judgement, number, percent
from placewise_training.reproduce.design import Experiment, Metric, TrialOutcome
from placewise_training.reproduce.elastic.composed import SHORTEST, admission
from placewise_training.reproduce.elastic.trials import run_elastic
from placewise_training.reproduce.heat.lab import (
    EQUAL,
    METRICS,
    ONE_NODE,
    PREDICTION,
    READINGS,
    SCHEME,
    SMALLEST,
    THERMOSTAT,
)
from placewise_training.reproduce.paper import Paper
from placewise_training.reproduce.results import Results
from placewise_training.sim.hardware import qos_cluster
from placewise_training.sim.policies import shipped
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import ElasticWorkload

_SLOT_S = 60.0
_EPSILON_S = 360.0
_HARMONY_LIKE = "consolidate"


_FIFO, _PROTEUS, _SHAPED, _PLACED, _SAVED = (
    "fifo-strict, load-balance",
    "proteus, load-balance",
    "proteus × qos shape, load-balance",
    "proteus × qos shape, consolidate",
    "proteus × qos-savable, consolidate",
)
_SEARCHED, _LEARNED_PLACE = "proteus × qos shape, search", "proteus × qos shape, harmony"
_FIFO_CONSOLIDATED, _FIFO_SHORT = "fifo-strict, consolidate", f"fifo-strict{SHORTEST}, consolidate"
_QOS, _SAVABLE, _CER, _CER_SPREAD = (
    "qos, consolidate",
    "qos-savable, consolidate",
    "tetris-cer, consolidate",
    "tetris-cer, load-balance",
)
_METHODS: Mapping[str, tuple[Callable[[], AdmissionPolicy], str]] = {
    _FIFO: (lambda: admission("fifo-strict"), "load-balance"),
    _PROTEUS: (lambda: admission("proteus"), "load-balance"),
    _SHAPED: (lambda: admission("proteus-qos"), "load-balance"),
    _PLACED: (lambda: admission("proteus-qos"), _HARMONY_LIKE),
    _SEARCHED: (lambda: admission("proteus-qos"), "search"),
    _LEARNED_PLACE: (lambda: admission("proteus-qos"), "harmony"),
    _SAVED: (lambda: admission("proteus-qos-savable"), _HARMONY_LIKE),
    _FIFO_CONSOLIDATED: (lambda: admission("fifo-strict"), _HARMONY_LIKE),
    _FIFO_SHORT: (lambda: admission("fifo-strict" + SHORTEST), _HARMONY_LIKE),
    _QOS: (lambda: admission("qos"), _HARMONY_LIKE),
    _SAVABLE: (lambda: admission("qos-savable"), _HARMONY_LIKE),
    _CER: (lambda: admission("tetris-cer"), _HARMONY_LIKE),
    _CER_SPREAD: (lambda: admission("tetris-cer"), "load-balance"),
}


def _chain(is_quick: bool, bundle: Bundle) -> Experiment:
    hours = 3.0 if is_quick else 8.0

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        per_hour = float(setting.split(maxsplit=1)[0])
        truth = make_truth("judge", seed)
        jobs = ElasticWorkload(jobs=round(per_hour * hours), per_hour=per_hour).generate(truth, seed)
        make, place = _METHODS[method]
        settings = QueueSettings(epsilon_s=_EPSILON_S, slot_s=_SLOT_S)
        trialled = run_elastic(
            qos_cluster(),
            jobs,
            truth,
            make(),
            place,
            seed,
            slot_s=_SLOT_S,
            queue_settings=settings,
            bundle=bundle,
        )
        metrics, log = trialled.result.metrics, trialled.log
        return TrialOutcome(
            {
                "turnaround": metrics.avg_jct_s,
                "queueing": metrics.avg_queueing_s,
                "qos_rate": metrics.qos_rate,
                "makespan": metrics.makespan_s,
                "gpus": log.mean("gpus"),
                "gpu_hours": log.mean("gpu_hours"),
            }
        )

    return Experiment(
        key="chain",
        title="The gain of each part",
        source="beyond the papers",
        settings=("5 per hour", "20 per hour") if is_quick else ("5 per hour", "10 per hour", "20 per hour"),
        methods=tuple(_METHODS),
        metrics=(
            Metric("turnaround", "turnaround", "h", scale=1 / 3600),
            Metric("queueing", "queueing", "h", scale=1 / 3600),
            Metric("qos_rate", "QoS rate", "%", scale=100.0, is_lower_better=False),
            Metric("makespan", "makespan", "h", scale=1 / 3600),
            Metric("gpus", "GPUs per job", is_plotted=False),
            Metric("gpu_hours", "GPU hours per job", "h", is_plotted=False),
        ),
        trial=trial,
        note="The first rows of a setting add one part at a time: Proteus' admission; the QoS order and shape; "
        "placement on few nodes, by rule, by the search or by Harmony's policy; the order that puts late jobs last. "
        "The other rows are single policies for comparison. All decide once in a slot of a minute.",
    )


def _heat_parts(is_quick: bool) -> Experiment:
    tasks = 60 if is_quick else 200

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome(READINGS["C"].run(method, tasks, seed).values)

    return Experiment(
        key="partition",
        title="Heat-aware Partition with prediction and without",
        source="beyond the papers",
        settings=("overlapping tasks",),
        methods=(EQUAL, ONE_NODE, SMALLEST, SCHEME, THERMOSTAT, PREDICTION),
        metrics=METRICS,
        trial=trial,
        plot="none",
        note="Reading C of the heat-island section.",
    )


def _settings(results: Results) -> list[str]:
    return list(dict.fromkeys(c[1] for c in results.runs if c[0] == "chain"))


def _adds(ours: str, theirs: str, why: str) -> Callable[[Results], Judgement]:
    """The change by one step, per load. Reproduced: turnaround surely falls everywhere; partly: somewhere."""

    def judge(results: Results) -> Judgement:
        shown, falls = [], []
        for setting in _settings(results):
            turnaround = results.change("chain", [setting], "turnaround", ours, theirs)
            rate = results.difference("chain", setting, "qos_rate", ours, theirs)
            shown.append(f"{setting}: turnaround {percent(turnaround)}, QoS rate {100 * rate.mean:+.1f} points")
            falls.append(turnaround.high < 0)
        verdict = ClaimVerdict.REPRODUCED if all(falls) else ClaimVerdict.PARTLY if any(falls) else ClaimVerdict.NOT
        return Judgement(verdict, "; ".join(shown), why)

    return judge


def _prediction(results: Results) -> Judgement:
    cell = ("partition", "overlapping tasks")
    over = {m: results.estimate(*cell, m, "over_s") for m in (SCHEME, THERMOSTAT, PREDICTION)}
    cost = results.change("partition", ["overlapping tasks"], "completion", PREDICTION, SCHEME)
    shown = ", ".join(f"{m}: {number(e, 'node-seconds')}" for m, e in over.items()) + f"; completion {percent(cost)}"
    change = results.difference(*cell, "over_s", PREDICTION, SCHEME)
    why = (
        "Below the limit the seven nodes can do less work. Prediction keeps them there most of the time, so completion "
        "takes longer."
    )
    return Judgement(ClaimVerdict.REPRODUCED if change.high < 0 else ClaimVerdict.NOT, shown, why)


def _claims() -> list[Claim]:
    steps = (
        (
            "admission",
            "Proteus' admission instead of FIFO lowers turnaround",
            _PROTEUS,
            _FIFO,
            "FIFO takes all it may have; Proteus stays inside a node, with fewer GPUs the more jobs wait.",
        ),
        (
            "shape",
            "The QoS order and expectations on Proteus' admission lower turnaround",
            _SHAPED,
            _PROTEUS,
            "Proteus takes jobs as they come and knows no expected completion.",
        ),
        (
            "placement",
            "Placement on few nodes instead of balanced lowers turnaround",
            _PLACED,
            _SHAPED,
            "The shape already fixes the number of nodes; placement only chooses the neighbours of a job.",
        ),
        (
            "search",
            "The search for a placement, instead of few nodes by rule, lowers turnaround",
            _SEARCHED,
            _PLACED,
            "The reward model was trained on gangs of Harmony's kind; the symmetric shapes admitted here leave fewer "
            "placements to choose from.",
        ),
        (
            "harmony",
            "Harmony's placement, instead of few nodes by rule, lowers turnaround",
            _LEARNED_PLACE,
            _PLACED,
            "The policy was trained on gangs of Harmony's kind; the symmetric shapes admitted here leave fewer "
            "placements to choose from.",
        ),
        (
            "savable",
            "Late jobs last lowers turnaround",
            _SAVED,
            _PLACED,
            "It changes something only where jobs are late.",
        ),
        (
            "composition",
            "The whole chain beats the QoS policy alone on the same placement",
            _SAVED,
            _SAVABLE,
            "The QoS policy alone passes over and reserves as well, and lets a job wait for a shape in time.",
        ),
    )
    made = [Claim(key, text, "–", _adds(ours, theirs, why), is_beyond=True) for key, text, ours, theirs, why in steps]
    made.append(
        Claim("prediction", "Thermal prediction lowers the time over the limit", "–", _prediction, is_beyond=True)
    )
    return made


def paper(is_quick: bool, bundle: Bundle | None = None) -> Paper:
    """The chain of additions, with the learned placements of a bundle (the shipped one unless given); quick: three
    hours of submissions instead of eight."""
    return Paper(
        name="combined",
        title="Beyond the papers: admission, shape, placement and heat together",
        experiments=(_chain(is_quick, bundle or shipped()), _heat_parts(is_quick)),
        claims=_claims(),
        assumptions=(
            "The QoS paper's jobs and cluster (30 minutes on one GPU in the median), eight hours of submissions.",
            "ε = 6 min per slot of a minute, V = 1.",
        ),
    )

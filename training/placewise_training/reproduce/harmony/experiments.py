"""Harmony (Bao, Peng, Wu): placement of training jobs' tasks, on 6 and 30 servers, against every baseline.

Rows of the learned policy and of the reward model are there; without a bundle they say so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from placewise_models.bundle import Bundle
from placewise_training.policy.printed.reward_model import Budget
from placewise_training.reproduce.design import Experiment, Metric, Trial, TrialOutcome
from placewise_training.reproduce.harmony.claims import claims
from placewise_training.reproduce.harmony.interference import (
    MOST_BESIDE,
    SCHEMES,
    beside_trial,
    packed_trial,
    pair_trial,
    scheme_trial,
)
from placewise_training.reproduce.harmony.predictions import (
    ALL,
    LATER,
    PREDICTORS,
    PRINTED_REWARD,
    PRINTED_SETTINGS,
    SETTINGS,
    prediction_trial,
    printed_trial,
)
from placewise_training.reproduce.harmony.runs import (
    CONSOLIDATE,
    FRESH_SEED,
    HARMONY,
    ORACLE,
    PAPER_BASELINES,
    PRINTED,
    SEARCH,
    SHORTEST,
    Scenario,
    decision_ms,
    first_come,
    misled,
    run,
    shortest,
)
from placewise_training.reproduce.paper import Paper
from placewise_training.sim.policies import shipped
from placewise_training.sim.workloads import HARMONY_MODELS

_YARDSTICK = "load-balance"
_SWEPT = (*PAPER_BASELINES, CONSOLIDATE, SHORTEST, SEARCH, HARMONY)
_ALL = (*PAPER_BASELINES, CONSOLIDATE, SHORTEST, SEARCH, ORACLE, PRINTED, HARMONY)
_FRESH = (
    *PAPER_BASELINES,
    first_come("tiresias"),
    CONSOLIDATE,
    SHORTEST,
    SEARCH,
    ORACLE,
    PRINTED,
    HARMONY,
    *misled(HARMONY),
    first_come(HARMONY),
)
_ORDERED = tuple(shortest(method) for method in (*PAPER_BASELINES, CONSOLIDATE, SEARCH, ORACLE, HARMONY))
_PATTERNS: Mapping[str, tuple[str, float]] = {
    "uniform, 3 per interval": ("uniform", 3.0),
    "Poisson, 2 per interval": ("poisson", 2.0),
    "Google-like, 2 per interval": ("google", 2.0),
}
# 30 servers have five times the GPUs, jobs of 1 to 10 tasks 2.75 times the workers: this rate keeps the load equal.
_LARGE_RATE = 5 / 2.75

_JCT = Metric("jct", "mean JCT", "intervals")
_RELATIVE = Metric("relative", "JCT vs load-balance", "%", scale=100.0)
_JCT_METRICS = (
    _JCT,
    _RELATIVE,
    Metric("p95", "95th percentile of JCT", "intervals", is_plotted=False),
    Metric("queueing", "mean queueing", "intervals", is_plotted=False),
    Metric("slowdown", "mean slowdown", is_plotted=False),
    Metric("gpu_util", "GPUs held", "%", scale=100.0, is_lower_better=False, is_plotted=False),
)


def paper(is_quick: bool, bundle: Bundle | None = None) -> Paper:
    """The evaluation, with the learned policies of a bundle (the shipped one unless given); quick has fewer jobs,
    shorter sweeps and no oracle at 30 servers."""
    base = Scenario(jobs=60 if is_quick else 200)
    return Paper(
        "harmony",
        "Harmony: placement of training jobs by a learned policy",
        _experiments(base, is_quick, bundle or shipped()),
        claims(tuple(_PATTERNS)),
        _ASSUMPTIONS,
    )


_ASSUMPTIONS = (
    "Jobs arrive as stated: 0 to 6 per 20-minute interval, each number equally likely; Poisson with 2; the Google-like "
    "pattern is a bursty process with a daily rhythm at 2 per interval (sim/arrivals.py), not the trace itself.",
    "Lengths: log-normal, median 12 minutes alone, cut off at 2 minutes and 2.8 hours; the paper says skewed, no more. "
    "Its only absolute JCT (Table II: 4.1 intervals) means longer jobs: the sweep over lengths goes up to that load.",
    "Workers ask for one GPU, two cores (CTC three) and 8 GiB, parameter servers for one core and 4 GiB.",
    "Waiting jobs are offered once per interval; a job behind one that does not fit may start. Nothing is preempted "
    "or moved: Tiresias orders only what waits.",
    "`search` takes the best of up to eight placements by the reward model, which the paper does not do; `harmony` is "
    "the learned policy as shipped: taught by a search on true training speeds, it reads declared lengths and reported "
    f"speeds. `{PRINTED}` is the paper's actor-critic, from the paper's inputs alone; the shipped bundle has no net "
    "for it. All come from the bundle.",
    "Jobs tell their exact lengths unless a row says otherwise.",
    "The oracle tries 200 placements of each job (every heuristic's, and random ones) on the simulator's own speeds "
    "and takes the one that delays the job and its neighbours least. It shows headroom; no policy knows those speeds.",
    "Shortest first orders waiting jobs by the time they take alone, which a host seldom knows: a bound. Elsewhere "
    "each policy has its own order: first come first served, least attained service for Tiresias, what its bundle says "
    "for Harmony.",
    "In Fig. 4 and 5 every task has the cores, and every worker the GPU, it asks for; Fig. 5's server is given as many "
    "GPUs as there are jobs, as the paper's has two GPUs and up to four jobs.",
    "30 servers get 1.82 times the jobs per interval, so that the GPUs are asked for as much as on 6.",
)


def _experiments(base: Scenario, is_quick: bool, bundle: Bundle) -> list[Experiment]:
    only = 1 if is_quick else len(_PATTERNS)
    large = replace(base, nodes=30, most_tasks=10, jobs=60 if is_quick else 300)
    fresh = replace(base, first_seed=FRESH_SEED)
    return [
        replace(
            _patterns("fig10", "Three arrival patterns, 6 servers", "Fig. 10", base, _ALL, bundle), note=_PLOT_ALONE
        ),
        _on_ten_seeds(_fresh(fresh, bundle), is_quick),
        _on_ten_seeds(_order(fresh, only, bundle), is_quick),
        _on_ten_seeds(_by_model(fresh, bundle), is_quick),
        _on_ten_seeds(_intervals(fresh, is_quick, bundle), is_quick),
        _on_ten_seeds(_predictions(60 if is_quick else 150, bundle), is_quick),
        _on_ten_seeds(
            _printed_predictions(Budget(samples=300, steps=100, jobs=60) if is_quick else Budget()), is_quick
        ),
        _on_ten_seeds(_large(replace(large, first_seed=FRESH_SEED), is_quick, bundle), is_quick),
        _on_ten_seeds(_inference(fresh, replace(large, first_seed=FRESH_SEED), bundle), is_quick),
        _packed(),
        _pairs(),
        _schemes(),
        _beside(),
        *_sweeps_beyond(base, is_quick, bundle),
    ]


def _on_ten_seeds(experiment: Experiment, is_quick: bool) -> Experiment:
    """One that a verdict rests on: ten seeds, which count from FRESH_SEED."""
    return replace(experiment, least_seeds=0 if is_quick else 10, first_seed=FRESH_SEED)


def _sweeps_beyond(base: Scenario, is_quick: bool, bundle: Bundle) -> list[Experiment]:
    return [
        _sweep(
            "rate",
            "Arrival rate",
            "beyond the paper",
            "jobs per interval",
            base,
            (2, 4) if is_quick else (1, 2, 4, 5),
            _rate,
            bundle,
        ),
        _sweep(
            "length",
            "Length of the jobs",
            "beyond the paper",
            "times the usual",
            base,
            (1.75,) if is_quick else (0.5, 1.0, 1.4, 1.75),
            _length,
            bundle,
        ),
        _sweep(
            "servers",
            "Number of servers, same jobs",
            "beyond the paper",
            "servers",
            base,
            (4,) if is_quick else (4, 6, 8, 12),
            _servers,
            bundle,
        ),
    ]


def _scenario_trial(scenario_of: Callable[[str], Scenario], bundle: Bundle) -> Trial:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        scenario = scenario_of(setting)
        found = run(scenario, method, seed, bundle)
        relative = found["jct"] / run(scenario, _YARDSTICK, seed, bundle)["jct"]
        return TrialOutcome({**found, "relative": relative})

    return trial


def _patterns(
    key: str,
    title: str,
    source: str,
    base: Scenario,
    methods: Sequence[str],
    bundle: Bundle,
    *,
    rate: float = 1.0,
    only: int = len(_PATTERNS),
) -> Experiment:
    """`rate` multiplies the jobs per interval; `only` so many of the patterns are run."""

    def scenario(setting: str) -> Scenario:
        pattern, per_interval = _PATTERNS[setting]
        return replace(base, pattern=pattern, per_interval=per_interval * rate)

    settings = tuple(_PATTERNS)[:only]
    return Experiment(key, title, source, settings, methods, _JCT_METRICS, _scenario_trial(scenario, bundle))


def _intervals(fresh: Scenario, is_quick: bool, bundle: Bundle) -> Experiment:
    values = (20, 70) if is_quick else (10, 20, 40, 70)
    methods = (*_SWEPT, PRINTED)
    return _sweep("fig12", "Scheduling interval", "Fig. 12", "minutes", fresh, values, _interval, bundle, methods)


def _large(fresh: Scenario, is_quick: bool, bundle: Bundle) -> Experiment:
    methods = (*_SWEPT, PRINTED) if is_quick else (*_SWEPT, PRINTED, shortest(HARMONY), ORACLE)
    title = "Three arrival patterns, 30 servers"
    return _patterns("fig14", title, "Fig. 14", fresh, methods, bundle, rate=_LARGE_RATE)


def _order(fresh: Scenario, only: int, bundle: Bundle) -> Experiment:
    title = "The same, shortest remaining job first"
    return _patterns("order", title, "beyond the paper", fresh, _ORDERED, bundle, only=only)


_PLOT_ALONE = "The paper's plot, on the usual seeds. No verdict rests on it: those on 6 servers are on fresh seeds."


def _fresh(fresh: Scenario, bundle: Bundle) -> Experiment:
    found = _patterns(
        "fresh",
        "Three arrival patterns, 6 servers, on fresh seeds",
        "Fig. 10",
        fresh,
        _FRESH,
        bundle,
    )
    note = (
        f"Ten seeds from {FRESH_SEED:,} on, on which nothing was chosen: the claim is judged here. Jobs tell their "
        "exact lengths, lengths off by a factor e^(σ·N(0, 1)), or none; of these policies harmony "
        "alone reads lengths. The baselines serve in the order of arrival, but for Tiresias; “first come first served” "
        "has it and harmony do so too."
    )
    return replace(found, note=note)


def _by_model(base: Scenario, bundle: Bundle) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        name = f"jct {setting}"
        found, yardstick = run(base, method, seed, bundle)[name], run(base, _YARDSTICK, seed, bundle)[name]
        return TrialOutcome({"jct": found, "relative": found / yardstick})

    methods = _ALL
    return Experiment(
        "fig11", "By job type, uniform arrivals", "Fig. 11", HARMONY_MODELS, methods, (_JCT, _RELATIVE), trial
    )


def _sweep(
    key: str,
    title: str,
    source: str,
    axis: str,
    base: Scenario,
    values: Sequence[float],
    changed: Callable[[Scenario, float], Scenario],
    bundle: Bundle,
    methods: Sequence[str] = _SWEPT,
) -> Experiment:
    trial = _scenario_trial(lambda setting: changed(base, float(setting)), bundle)
    settings = tuple(f"{value:g}" for value in values)
    return Experiment(key, title, source, settings, methods, _JCT_METRICS, trial, axis=axis, plot="lines")


def _interval(base: Scenario, minutes: float) -> Scenario:
    return replace(base, every_s=60.0 * minutes)


def _rate(base: Scenario, per_interval: float) -> Scenario:
    return replace(base, per_interval=per_interval)


def _length(base: Scenario, length: float) -> Scenario:
    return replace(base, length=length)


def _servers(base: Scenario, servers: float) -> Scenario:
    return replace(base, nodes=int(servers))


_PREDICTED = (
    Metric("error", "mean relative error", "%", scale=100.0),
    Metric("within", "predictions within 10 %", "%", scale=100.0, is_lower_better=False),
)


def _predictions(jobs: int, bundle: Bundle) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return prediction_trial(setting, method, seed, jobs, bundle, FRESH_SEED)

    return Experiment(
        "fig13",
        "Predicting training speeds",
        "Fig. 13",
        SETTINGS,
        PREDICTORS,
        _PREDICTED,
        trial,
        theirs={("all", "reward model", "error"): 6.9, ("all", "reward model", "within"): 83.0},
        note="The new job and its neighbours at every start under random placement, noise included. LIF is given the "
        "speed of the very placement without neighbours and the CPU others use; its coefficients are those the service "
        "ships, fitted to measured sensitivities. The reward model is given the reported speeds of running jobs, and "
        "of a new job nothing but its request.",
    )


def _printed_predictions(budget: Budget) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return printed_trial(setting, seed, budget, FRESH_SEED)

    return Experiment(
        "fig13-printed",
        "Predicting training speeds, as printed",
        "Fig. 13",
        PRINTED_SETTINGS,
        (PRINTED_REWARD,),
        _PREDICTED,
        trial,
        theirs={(ALL, PRINTED_REWARD, "error"): 6.9, (ALL, PRINTED_REWARD, "within"): 83.0},
        note="The paper's net, trained on nine tenths of a trace and judged on the tenth that is left: all jobs that "
        "run after each start. The paper shuffles the trace, so that both parts share jobs; "
        f'"{LATER}" are those of the last tenth, judged by a net that learned from what came before.',
    )


def _inference(base: Scenario, large: Scenario, bundle: Bundle) -> Experiment:
    scenarios = {"6 servers": base, "30 servers": large}

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        scenario = replace(scenarios[setting], jobs=60)
        return TrialOutcome({"decide_ms": decision_ms(scenario, method, seed, bundle)})

    return Experiment(
        "inference",
        "The cost of a decision",
        "text: “each inference takes 4 ms”",
        tuple(scenarios),
        (CONSOLIDATE, SHORTEST, SEARCH, PRINTED, HARMONY),
        (Metric("decide_ms", "CPU time per task placed", "ms"),),
        trial,
        theirs={("6 servers", HARMONY, "decide_ms"): 4.0},
        note="Times in the simulator, on one core of a busy machine. They include ordering the queue and attempts that "
        "place nothing. docs/policy.md has the times of the service.",
    )


def _packed() -> Experiment:
    metric = Metric("slowdown", "loss of speed against alone", "%", scale=100.0)
    return Experiment(
        "fig1",
        "Six jobs in pairs on three servers",
        "Fig. 1 (case study)",
        (*HARMONY_MODELS, "mean"),
        ("bin packing",),
        (metric,),
        packed_trial,
        is_seeded=False,
        theirs={("mean", "bin packing", "slowdown"): 33.0},
        note="One worker and one parameter server each, both on the server; the mean over all ways to pair the six up.",
    )


def _pairs() -> Experiment:
    metric = Metric("level", "sum of both losses", "%", scale=100.0)
    return Experiment(
        "fig2",
        "Interference of pairs on one server",
        "Fig. 2 (case study)",
        HARMONY_MODELS,
        HARMONY_MODELS,
        (metric,),
        pair_trial,
        axis="model",
        is_seeded=False,
    )


def _schemes() -> Experiment:
    metric = Metric("speed", "speed over standalone", "%", scale=100.0, is_lower_better=False)
    return Experiment(
        "fig4",
        "A second job beside CTC under three placements",
        "Fig. 4 (case study)",
        ("vgg16", "resnext110"),
        SCHEMES,
        (metric,),
        scheme_trial,
        is_seeded=False,
        note="Two servers, two jobs of one worker and one parameter server: the first trains CTC.",
    )


def _beside() -> Experiment:
    metric = Metric("speed", "speed over alone", "%", scale=100.0, is_lower_better=False)
    settings = tuple(str(count) for count in range(MOST_BESIDE + 1))
    return Experiment(
        "fig5",
        "More and more CTC jobs on the same server",
        "Fig. 5 (case study)",
        settings,
        ("resnext110", "vgg16"),
        (metric,),
        beside_trial,
        axis="CTC jobs beside it",
        plot="lines",
        is_seeded=False,
    )

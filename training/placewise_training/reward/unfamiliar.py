"""Situations outside of the nets' training data, one way at a time: does a net recognise that it does not know?

`SITUATIONS` are judged, on the judging truth; `familiar` among them is Harmony's cluster and mix, as everywhere.
`PRACTICE` are others, on training truths, on which a net may learn its uncertainty. Trains nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from placewise_core.domain.model_names import canonical
from placewise_training.reward.data import Situation, judging_situation, training_situation
from placewise_training.sim.hardware import NodeSpec, harmony_cluster, make_node
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.speed.profiles import MODEL_NAMES, Catalogue, judge_catalogue, train_catalogue
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

_UNKNOWN_SIGMA = 0.8  # of the logarithm of each cost of a model that nobody measured, beside the one it stands on
_HOUSE_NETS = 8
_JOBS = 60


def familiar(seed: int) -> Situation:
    """Harmony's six servers and six models."""
    drawn = judging_situation(seed)
    return replace(drawn, workload=replace(drawn.workload, pattern="uniform"))


def many_servers(seed: int) -> Situation:
    """Thirty of Harmony's servers, gangs of up to ten tasks."""
    workload = HarmonyWorkload(jobs=_JOBS, pattern="uniform", per_interval=9.0, most_tasks=10)
    return Situation(harmony_cluster(30), workload, make_truth("judge", seed), seed)


def unknown_models(seed: int) -> Situation:
    """Models whose names say nothing, with costs of their own."""
    return _unknown(familiar(seed), judge_catalogue())


def far_gpus(seed: int) -> Situation:
    """K80s beside A100s, eleven times as fast: training has clusters of one kind, or of two that are alike."""
    return _of_two_kinds(familiar(seed), "K80", "A100")


def slow_network(seed: int) -> Situation:
    """1 Gbit/s, a twenty-fifth of the least in training, and models with large gradients."""
    return _on_network(familiar(seed), 1.0, ("vgg16", "alexnet", "wlm", "gpt2"))


def crowded(seed: int) -> Situation:
    """Gangs of up to 24 workers on nodes of 16 GPUs that three jobs may share, with three cores for two GPUs."""
    specs = [_node(i, gpus=16, cores=24, gbps=50.0, most=3) for i in range(4)]
    workload = HarmonyWorkload(
        jobs=_JOBS, pattern="uniform", per_interval=16.0, most_tasks=24, models=MODEL_NAMES, gpus_per_node=16
    )
    return Situation(specs, workload, make_truth("judge", seed), seed, sharing_share=0.7)


def _practised(seed: int) -> Situation:
    """Harmony's servers and mix on a training truth, another fabric and other input costs included."""
    drawn = training_situation(seed)
    workload = HarmonyWorkload(jobs=_JOBS, pattern="poisson", per_interval=3.0)
    return Situation(harmony_cluster(6), workload, drawn.truth, seed, drawn.every_s)


def _practised_unknown(seed: int) -> Situation:
    return _unknown(_practised(seed), train_catalogue())


def _practised_gpus(seed: int) -> Situation:
    return _of_two_kinds(_practised(seed), "P4", "2080TI")


def _practised_network(seed: int) -> Situation:
    return _on_network(_practised(seed), 5.0, ("vgg16", "seq2seq", "lstm", "bert"))


def _practised_gangs(seed: int) -> Situation:
    specs = [_node(i, gpus=12, cores=36, gbps=50.0, most=2) for i in range(4)]
    usual = _practised(seed)
    workload = replace(usual.workload, per_interval=10.0, most_tasks=16, models=MODEL_NAMES, gpus_per_node=12)
    return replace(usual, nodes=specs, workload=workload, sharing_share=0.3)


def _unknown(usual: Situation, known: Catalogue) -> Situation:
    """Each model with costs of its own for compute, input, gradients and network, under a name that says nothing."""
    rng = np.random.default_rng((usual.seed, 81))
    profiles = {}
    for i in range(_HOUSE_NETS):
        profile = known[str(rng.choice(MODEL_NAMES))]
        compute, cores, params, net = np.exp(_UNKNOWN_SIGMA * rng.standard_normal(4))
        name = canonical(f"house-net-{i}")
        profiles[name] = replace(
            profile,
            name=name,
            per_sample_s=profile.per_sample_s * float(compute),
            core_s_per_sample=profile.core_s_per_sample * float(cores),
            params_millions=profile.params_millions * float(params),
            net_efficiency=float(np.clip(profile.net_efficiency * net, 0.01, 1.0)),
        )
    truth = usual.truth
    truth = ComposedSpeed(Catalogue(profiles), truth.sharing, overlap=truth.overlap, seed=truth.seed)
    return replace(usual, truth=truth, workload=replace(usual.workload, models=tuple(profiles)))


def _of_two_kinds(usual: Situation, slow: str, fast: str) -> Situation:
    specs = [_node(i, gpus=2, cores=8, gbps=50.0, gpu_model=fast if i % 2 else slow) for i in range(6)]
    return replace(usual, nodes=specs, workload=replace(usual.workload, gpu_model=fast))


def _on_network(usual: Situation, gbps: float, models: tuple[str, ...]) -> Situation:
    specs = [_node(i, gpus=2, cores=8, gbps=gbps) for i in range(6)]
    return replace(usual, nodes=specs, workload=replace(usual.workload, models=models))


def _node(i: int, *, gpus: int, cores: float, gbps: float, gpu_model: str = "1080TI", most: int = 1) -> NodeSpec:
    return make_node(
        f"n{i}",
        cpu_cores=cores,
        gpus=gpus,
        memory_gib=24 * gpus,
        network_gbps=gbps,
        gpu_model=gpu_model,
        gpu_memory_gib=16,
        max_jobs_per_gpu=most,
    )


SITUATIONS: Mapping[str, Callable[[int], Situation]] = {
    "familiar": familiar,
    "thirty servers": many_servers,
    "unknown models": unknown_models,
    "K80 beside A100": far_gpus,
    "1 Gbit/s": slow_network,
    "crowded": crowded,
}
PRACTICE: Mapping[str, Callable[[int], Situation]] = {
    "unknown models": _practised_unknown,
    "P4 beside 2080 Ti": _practised_gpus,
    "5 Gbit/s": _practised_network,
    "large gangs": _practised_gangs,
}

"""What Harmony's paper claims of interference in its case studies (Fig. 1 to 5), and the judges. Runs nothing."""

import itertools

from placewise_training.reproduce.claims import Claim, ClaimVerdict, Judgement, percent
from placewise_training.reproduce.harmony.interference import BALANCED, PACKED
from placewise_training.reproduce.results import Results
from placewise_training.sim.workloads import HARMONY_MODELS


def case_studies() -> list[Claim]:
    return [
        Claim("packing", "Packing six jobs in pairs on servers costs 33 % of their speed", "33 %", _judge_packing),
        Claim("ctc", "CPU-intensive CTC disturbs every other job most", "CTC", _judge_ctc),
        Claim(
            "schemes",
            "Beside CTC, VGG-16 runs better packed on its server than spread, ResNeXt-110 the other way round",
            "both",
            _judge_schemes,
        ),
        Claim(
            "beside",
            "The more CTC jobs beside it the slower a job, ResNeXt-110 more so than VGG-16",
            "both",
            _judge_beside,
        ),
    ]


def _judge_packing(results: Results) -> Judgement:
    mean = results.estimate("fig1", "mean", "bin packing", "slowdown")
    verdict = (
        ClaimVerdict.REPRODUCED if mean.mean >= 0.25 else ClaimVerdict.PARTLY if mean.low > 0.1 else ClaimVerdict.NOT
    )
    why = (
        "The judge holds published measurements: contention for cores, disk, PCIe and NIC. By Muri's "
        "input stages most models leave most of eight cores idle, so that a pair seldom competes; caches and memory "
        "bandwidth, which the testbed had and nobody has published, are not in it. Placement matters less here."
    )
    return Judgement(verdict, percent(mean), "" if verdict is ClaimVerdict.REPRODUCED else why)


def _judge_schemes(results: Results) -> Judgement:
    speed = {
        (model, scheme): results.estimate("fig4", model, scheme, "speed").mean
        for model in ("vgg16", "resnext110")
        for scheme in (PACKED, BALANCED)
    }
    holds = [
        speed["vgg16", PACKED] > speed["vgg16", BALANCED],
        speed["resnext110", BALANCED] > speed["resnext110", PACKED],
    ]
    shown = ", ".join(f"{model} {scheme} {100 * value:.0f} %" for (model, scheme), value in speed.items())
    verdict = ClaimVerdict.REPRODUCED if all(holds) else ClaimVerdict.PARTLY if any(holds) else ClaimVerdict.NOT
    why = "VGG-16's gradients are large and cost more over the network than CTC's cores; ResNeXt-110's are small."
    return Judgement(verdict, shown, why if all(holds) else "")


def _judge_beside(results: Results) -> Judgement:
    models = ("resnext110", "vgg16")
    counts = sorted({int(setting) for key, setting, _ in results.runs if key == "fig5"})
    speeds = {m: [results.estimate("fig5", str(c), m, "speed").mean for c in counts] for m in models}
    is_falling = all(b <= a for values in speeds.values() for a, b in itertools.pairwise(values))
    is_falling = is_falling and all(values[-1] < values[0] for values in speeds.values())
    is_more = speeds["resnext110"][-1] < speeds["vgg16"][-1]
    shown = "; ".join(f"{m}: " + ", ".join(f"{100 * v:.0f} %" for v in values) for m, values in speeds.items())
    verdict = (
        ClaimVerdict.REPRODUCED if is_falling and is_more else ClaimVerdict.PARTLY if is_falling else ClaimVerdict.NOT
    )
    why = (
        "By the measured input stages both need about as many cores per step; the cores a job asks for are its own, "
        "which bounds the loss."
    )
    return Judgement(verdict, f"with {counts[0]} to {counts[-1]} CTC jobs {shown}", why)


def _judge_ctc(results: Results) -> Judgement:
    levels = {
        (a, b): results.estimate("fig2", a, b, "level").mean for a in HARMONY_MODELS for b in HARMONY_MODELS if a != b
    }
    worst = {a: max((b for b in HARMONY_MODELS if b != a), key=lambda b: levels[a, b]) for a in HARMONY_MODELS}
    disturbed = [a for a in HARMONY_MODELS if a != "ctc" and worst[a] == "ctc"]
    verdict = (
        ClaimVerdict.REPRODUCED
        if len(disturbed) == 5
        else ClaimVerdict.PARTLY
        if len(disturbed) >= 3
        else ClaimVerdict.NOT
    )
    others = ", ".join(f"{a}: {worst[a]}" for a in HARMONY_MODELS if a != "ctc" and worst[a] != "ctc")
    why = (
        f"The rest have another worst neighbour ({others}). CTC takes cores for its input: a model whose own input "
        "needs few loses little beside it."
        if others
        else "CTC's input takes more cores than any other's."
    )
    return Judgement(verdict, f"worst neighbour of {len(disturbed)} of 5: {', '.join(disturbed)}", why)

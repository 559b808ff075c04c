"""The cost of one iteration of each model: the catalogue of model profiles, once per truth. Never looks at a cluster.

Two catalogues exist so that what judges is not what trained (docs/truths.md): `train` rests on Pollux (T4), Gavel K80
and Synergy, `judge` on ElasticFlow (A100), Gavel V100 and Muri. The catalogues of `site` are drawn around both. A model
nobody measured stands on a measured one, scaled by published operation counts; `ModelProfile.source` says which.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from placewise_core.domain.model_names import canonical
from placewise_training.sim.speed import fitting

# Single-precision speed of one GPU relative to a V100. K80, T4 and A100 follow from the measured ResNet-50 seconds per
# sample (Gavel, Pollux, ElasticFlow); the others from peak single-precision rates, for want of measurements.
GPU_SPEED: dict[str, float] = {
    "K80": 0.124,
    "P4": 0.35,
    "T4": 0.63,
    "P100": 0.59,
    "1080TI": 0.72,
    "2080TI": 0.86,
    "V100": 1.0,
    "A100": 1.38,
}


@functools.lru_cache(256)
def gpu_speed(gpu_model: str) -> float:
    """Speed of a GPU relative to a V100; 1.0 for an unknown one."""
    name = gpu_model.upper().replace(" ", "")
    if name in GPU_SPEED:
        return GPU_SPEED[name]
    return next((speed for known, speed in GPU_SPEED.items() if known in name), 1.0)


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Costs of one iteration on one worker. Seconds refer to `gpu_type`; bytes are per sample.

    `core_s_per_sample` is CPU work of the input pipeline; `net_efficiency` the share of a NIC its synchronisation
    reaches; `skew` the largest tensor's share of all parameters (what Tiresias' consolidation rule looks at).
    """

    name: str
    params_millions: float
    gpu_type: str
    base_s: float
    per_sample_s: float
    core_s_per_sample: float
    local_batch: int
    disk_bytes: float
    pcie_bytes: float
    net_efficiency: float
    gpu_memory_gib: float
    skew: float
    pair_family: str
    source: str

    def gpu_s(self, gpu_model: str, local_batch: float) -> float:
        """GPU seconds of one iteration with `local_batch` samples on a GPU of that model."""
        scale = gpu_speed(self.gpu_type) / gpu_speed(gpu_model)
        return (self.base_s + self.per_sample_s * local_batch) * scale

    @property
    def gradient_bytes(self) -> float:
        """Float32 gradients of all parameters."""
        return self.params_millions * 4e6


@dataclass(frozen=True, slots=True)
class _Traits:
    """Facts that hold in every truth: published sizes, and the measured family of the model."""

    params_millions: float
    local_batch: int
    disk_bytes: float
    pcie_bytes: float
    gpu_memory_gib: float
    skew: float
    pair_family: str


_IMAGE_DISK, _IMAGE_PCIE = 1.1e5, 6.0e5  # an ImageNet JPEG; 224 × 224 × 3 float32
_CIFAR = 1.2e4  # 32 × 32 × 3 float32
_AUDIO = 4.0e5  # some 12 s of 16 kHz 16-bit speech, and its spectrogram
_TEXT = 2.0e3  # a few hundred token ids

_TRAITS: dict[str, _Traits] = {
    "resnet50": _Traits(25.56, 64, _IMAGE_DISK, _IMAGE_PCIE, 8.0, 0.09, "ResNet-50"),
    "vgg16": _Traits(138.4, 32, _IMAGE_DISK, _IMAGE_PCIE, 9.0, 0.74, "ResNet-50"),
    "resnext110": _Traits(6.9, 128, _CIFAR / 4, _CIFAR, 5.0, 0.09, "ResNet-18"),
    "seq2seq": _Traits(45.0, 64, _TEXT, _TEXT, 6.0, 0.40, "Transformer"),
    "ctc": _Traits(5.0, 24, _AUDIO, _AUDIO, 4.0, 0.30, "LM"),
    "wlm": _Traits(44.0, 40, _TEXT, _TEXT, 4.0, 0.50, "LM"),
    "alexnet": _Traits(61.1, 128, _IMAGE_DISK, _IMAGE_PCIE, 4.0, 0.62, "ResNet-18"),
    "googlenet": _Traits(6.62, 64, _IMAGE_DISK, _IMAGE_PCIE, 5.0, 0.15, "ResNet-18"),
    "inceptionv3": _Traits(23.8, 64, _IMAGE_DISK, _IMAGE_PCIE, 9.0, 0.09, "ResNet-50"),
    "resnet18": _Traits(11.69, 128, _IMAGE_DISK, _IMAGE_PCIE, 5.0, 0.20, "ResNet-18"),
    "lstm": _Traits(24.0, 40, _TEXT, _TEXT, 4.0, 0.40, "LM"),
    "bert": _Traits(110.0, 8, _TEXT, _TEXT, 10.0, 0.21, "Transformer"),
    "gpt2": _Traits(124.0, 16, _TEXT, _TEXT, 12.0, 0.31, "Transformer"),
    "transformer": _Traits(65.0, 64, _TEXT, _TEXT, 8.0, 0.29, "Transformer"),
    "deepspeech2": _Traits(38.0, 24, _AUDIO, _AUDIO, 8.0, 0.30, "LM"),
    "neumf": _Traits(31.0, 4096, 12.0, 12.0, 3.0, 0.80, "Recommendation"),
    "recommendation": _Traits(20.0, 2048, 100.0, 4e3, 6.0, 0.80, "Recommendation"),
    "cyclegan": _Traits(28.3, 1, _IMAGE_DISK, _IMAGE_PCIE, 9.0, 0.05, "CycleGAN"),
}
MODEL_NAMES = tuple(_TRAITS)


@dataclass(frozen=True, slots=True)
class _Basis:
    """The source of a model's GPU and CPU seconds: the rows, times a factor if it is a stand-in."""

    gpu_type: str
    compute: Callable[[], tuple[float, float]]
    factor: float
    core_s: Callable[[], float]
    note: str


def _pollux(model: str, core_s: Callable[[], float], factor: float = 1.0) -> _Basis:
    return _Basis("T4", lambda: fitting.pollux_compute(model), factor, core_s, f"Pollux {model} on T4")


def _k80(model: str, core_s: Callable[[], float], factor: float = 1.0) -> _Basis:
    return _Basis("K80", lambda: fitting.gavel_compute(model, "K80"), factor, core_s, f"Gavel {model} on K80")


def _v100(model: str, core_s: Callable[[], float], factor: float = 1.0) -> _Basis:
    return _Basis("V100", lambda: fitting.gavel_compute(model, "V100"), factor, core_s, f"Gavel {model} on V100")


def _a100(model: str, core_s: Callable[[], float], factor: float = 1.0) -> _Basis:
    return _Basis("A100", lambda: fitting.elasticflow_compute(model), factor, core_s, f"ElasticFlow {model} on A100")


def _synergy(model: str) -> Callable[[], float]:
    return lambda: fitting.synergy_core_s(model)


def _muri(model: str) -> Callable[[], float]:
    return lambda: fitting.muri_input_s(model)


def _staged(model: str) -> _Basis:
    return _Basis("V100", lambda: (0.0, fitting.muri_gpu_s(model)), 1.0, _muri(model), f"Muri {model} on V100")


def _scaled_speech() -> float:
    """Muri has no speech model: Synergy's value times the ratio of the two sources on image input."""
    return fitting.synergy_core_s("deepspeech") * fitting.muri_input_s("resnet18") / fitting.synergy_core_s("res18")


def _light_train() -> float:
    """Text and click input: the sources see no CPU need above one core; a tenth of Synergy's image cost is assumed."""
    return fitting.synergy_core_s("res18") / 10


# Factors are ratios of published multiply-adds per 224 × 224 image: VGG-16 15.5 G, Inception-v3 5.7 G, ResNet-50 4.1 G,
# ResNet-18 1.8 G, GoogLeNet 1.5 G, AlexNet 0.7 G. ResNeXt-110 on 32 × 32 images: three (from ResNet-18) or twelve times
# (from ResNet-50 on CIFAR) the measured stand-in, and half the input work of an ImageNet picture. GPT-2: twice BERT's
# tokens and 1.13 times its parameters.
_TRAIN: dict[str, _Basis] = {
    "resnet50": _pollux("ResNet50", _synergy("res50")),
    "vgg16": _pollux("ResNet50", _synergy("alexnet"), 15.5 / 4.1),
    "resnext110": _pollux("ResNet18", lambda: _synergy("res18")() / 2, 3.0),
    "seq2seq": _k80("Transformer", lambda: fitting.muri_input_s("gpt2")),
    "ctc": _pollux("DeepSpeech2", _synergy("deepspeech")),
    "wlm": _k80("LM", lambda: fitting.muri_input_s("bert")),
    "alexnet": _pollux("ResNet50", _synergy("alexnet"), 0.7 / 4.1),
    "googlenet": _pollux("ResNet50", _synergy("mobilenet"), 1.5 / 4.1),
    "inceptionv3": _pollux("ResNet50", _synergy("res50"), 5.7 / 4.1),
    "resnet18": _pollux("ResNet50", _synergy("res18"), 1.8 / 4.1),
    "lstm": _k80("LM", lambda: fitting.muri_input_s("bert")),
    "bert": _pollux("BERT", lambda: fitting.muri_input_s("bert")),
    "gpt2": _pollux("BERT", lambda: fitting.muri_input_s("gpt2"), 2.25),
    "transformer": _k80("Transformer", lambda: fitting.muri_input_s("gpt2")),
    "deepspeech2": _pollux("DeepSpeech2", _synergy("deepspeech")),
    "neumf": _pollux("NeuMF", lambda: _light_train() / 1000),
    "recommendation": _k80("Recommendation", lambda: _light_train() / 100),
    "cyclegan": _k80("CycleGAN", _synergy("res50")),
}
_JUDGE: dict[str, _Basis] = {
    "resnet50": _a100("resnet50", _muri("resnet18")),
    "vgg16": _a100("vgg16", _muri("vgg16")),
    "resnext110": _a100("resnet50_cifar10", lambda: _muri("shufflenet_v2_x1_0")() / 2, 12.0),
    "seq2seq": _v100("Transformer", _muri("gpt2")),
    "ctc": _a100("deepspeech2", _scaled_speech),
    "wlm": _v100("LM", _muri("bert")),
    "alexnet": _a100("vgg16", _muri("vgg16"), 0.7 / 15.5),
    "googlenet": _a100("resnet50", _muri("shufflenet_v2_x1_0"), 1.5 / 4.1),
    "inceptionv3": _a100("resnet50", _muri("resnet18"), 5.7 / 4.1),
    "resnet18": _v100("ResNet-50", _muri("resnet18"), 1.8 / 4.1),
    "lstm": _v100("LM", _muri("bert")),
    "bert": _staged("bert"),
    "gpt2": _staged("gpt2"),
    "transformer": _v100("Transformer", _muri("gpt2")),
    "deepspeech2": _a100("deepspeech2", _scaled_speech),
    "neumf": _v100("Recommendation", lambda: _light_train() / 800),
    "recommendation": _v100("Recommendation", lambda: _light_train() / 80),
    "cyclegan": _v100("CycleGAN", _muri("resnet18")),
}
_POLLUX_NET = {
    "bert": "BERT",
    "ctc": "DeepSpeech2",
    "deepspeech2": "DeepSpeech2",
    "neumf": "NeuMF",
    "resnet50": "ResNet50",
}
_MURI_NET = {"bert": "bert", "gpt2": "gpt2", "vgg16": "vgg16"}


def _net_train(name: str, params_millions: float) -> float:
    measured = _POLLUX_NET.get(name)
    if measured is not None and measured != "DeepSpeech2":
        return fitting.pollux_net_efficiency(measured, params_millions)
    if measured is not None:
        return fitting.pollux_net_efficiency(measured, _TRAITS["deepspeech2"].params_millions)
    return fitting.pollux_net_efficiency("ResNet50", _TRAITS["resnet50"].params_millions)


def _net_judge(name: str, params_millions: float) -> float:
    measured = _MURI_NET.get(name)
    if measured is not None:
        return fitting.muri_net_efficiency(measured, params_millions)
    return fitting.muri_net_efficiency("gpt2", _TRAITS["gpt2"].params_millions)


def _build(name: str, basis: _Basis, net_efficiency: float) -> ModelProfile:
    traits = _TRAITS[name]
    base_s, per_sample_s = basis.compute()
    note = basis.note if basis.factor == 1.0 else f"{basis.note}, × {basis.factor:.3g}"
    return ModelProfile(
        name=name,
        params_millions=traits.params_millions,
        gpu_type=basis.gpu_type,
        base_s=base_s,
        per_sample_s=per_sample_s * basis.factor,
        core_s_per_sample=basis.core_s(),
        local_batch=traits.local_batch,
        disk_bytes=traits.disk_bytes,
        pcie_bytes=traits.pcie_bytes,
        net_efficiency=net_efficiency,
        gpu_memory_gib=traits.gpu_memory_gib,
        skew=traits.skew,
        pair_family=traits.pair_family,
        source=note,
    )


class Catalogue:
    """Profiles by canonical model name. An unknown name gets the profile of ResNet-50, under its own name."""

    def __init__(self, profiles: dict[str, ModelProfile]) -> None:
        self._profiles = profiles

    def __getitem__(self, model: str) -> ModelProfile:
        name = canonical(model)
        found = self._profiles.get(name)
        if found is None:
            found = replace(self._profiles["resnet50"], name=name, source="unknown model: as resnet50")
            self._profiles[name] = found
        return found


@functools.cache
def train_catalogue() -> Catalogue:
    """Pollux, Gavel K80, Synergy."""
    return Catalogue({n: _build(n, b, _net_train(n, _TRAITS[n].params_millions)) for n, b in _TRAIN.items()})


@functools.cache
def judge_catalogue() -> Catalogue:
    """ElasticFlow, Gavel V100, Muri."""
    return Catalogue({n: _build(n, b, _net_judge(n, _TRAITS[n].params_millions)) for n, b in _JUDGE.items()})


SITE_MEMBERS = 8


@functools.cache
def site_catalogue(member: int) -> Catalogue:
    """One site of `SITE_MEMBERS`: the costs of each model lie at a drawn point between `train` and `judge`, with a
    spread about it."""
    rng = np.random.default_rng((member, 6))
    train, judge = train_catalogue(), judge_catalogue()
    return Catalogue({name: _between(train[name], judge[name], rng) for name in MODEL_NAMES})


def _between(train: ModelProfile, judge: ModelProfile, rng: np.random.Generator) -> ModelProfile:
    share = float(rng.uniform(0.2, 0.8))

    def mixed(one: float, other: float, spread: float) -> float:
        return ((1.0 - share) * one + share * other) * float(np.exp(spread * rng.standard_normal()))

    slow, fast = gpu_speed(train.gpu_type), gpu_speed(judge.gpu_type)
    return replace(
        train,
        gpu_type="V100",
        base_s=mixed(train.base_s * slow, judge.base_s * fast, 0.15),
        per_sample_s=mixed(train.per_sample_s * slow, judge.per_sample_s * fast, 0.15),
        core_s_per_sample=mixed(train.core_s_per_sample, judge.core_s_per_sample, 0.25),
        net_efficiency=min(0.9, mixed(train.net_efficiency, judge.net_efficiency, 0.25)),
        source=f"drawn around {share:.2f} of the way from ({train.source}) to ({judge.source})",
    )

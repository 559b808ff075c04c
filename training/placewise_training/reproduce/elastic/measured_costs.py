"""Proteus' formulas beside measured rows: α(b), Comm(n), and the parameter counts of Table I. Runs no simulation."""

from collections.abc import Callable, Mapping

import numpy as np

from placewise_core.speed.params import PARAMS_MILLIONS, Convolution, FullyConnected, Layer, millions_of
from placewise_training.data.measured import StepTime, step_times

_BYTES = 4.0  # fp32 gradients
_POLLUX_NIC_BPS = 50.0 * 1.25e8  # g4dn.12xlarge

# Networks measured with some spread of batches on one GPU: label → (source, network).
ALPHA_NETWORKS: Mapping[str, tuple[str, str]] = {
    "VGG16, A100": ("elasticflow", "vgg16"),
    "ResNet50, A100": ("elasticflow", "resnet50"),
    "ResNet50, T4": ("pollux_osdi21", "ResNet50"),
    "DeepSpeech2, T4": ("pollux_osdi21", "DeepSpeech2"),
    "BERT, T4": ("pollux_osdi21", "BERT"),
}


def _single_gpu(source: str, model: str) -> dict[float, float]:
    """Measured step by batch on one GPU, median of repeats."""
    by_batch: dict[float, list[float]] = {}
    for row in step_times():
        if row.source == source and row.model == model and row.gpus == 1:
            by_batch.setdefault(row.local_batch, []).append(row.step_s - (row.sync_s or 0.0))
    return {batch: float(np.median(steps)) for batch, steps in sorted(by_batch.items())}


def alpha_figure(label: str) -> tuple[dict[str, float], dict[str, tuple[list[float], list[float]]]]:
    """Errors of α(b) on batches held out one by one, and the curves of Fig. 1.

    The paper estimates α from a test and compares the estimate with the measured time; it does not say by which
    relation. Ours is a line through the other batches, relative errors weighted; it predicts the step of the one left
    out.
    """
    measured = _single_gpu(*ALPHA_NETWORKS[label])
    batches, steps = np.array(list(measured)), np.array(list(measured.values()))
    predicted = np.empty_like(steps)
    for i in range(len(steps)):
        kept = np.arange(len(steps)) != i
        slope, base = np.polyfit(batches[kept], steps[kept], 1, w=1.0 / steps[kept])
        predicted[i] = base + slope * batches[i]
    errors = np.abs(predicted / steps - 1.0)
    values = {"mean_error": float(errors.mean()), "max_error": float(errors.max()), "batches": float(len(steps))}
    x = batches.tolist()
    first = steps[0]
    return values, {"measured": (x, (steps / first).tolist()), "estimated": (x, (predicted / first).tolist())}


COMM_NETWORKS: Mapping[str, str] = {"ResNet18": "resnet18", "ResNet50": "resnet50", "BERT": "bert"}


def comm_s(network: str, gpus: int) -> dict[str, float]:
    """Seconds of synchronisation per step: measured (one GPU on each node) and by (5). Raises KeyError without rows."""
    rows = [r for r in step_times() if _is_spread(r, network, gpus)]
    if not rows:
        raise KeyError(f"{network} on {gpus} nodes was not measured")
    by_formula = PARAMS_MILLIONS[COMM_NETWORKS[network]] * 1e6 * _BYTES / _POLLUX_NIC_BPS
    return {"measured": float(np.median([r.sync_s or 0.0 for r in rows])), "equation (5)": by_formula}


def comm_counts(network: str) -> list[str]:
    """Node counts with measured rows."""
    counts = sorted({r.gpus for r in step_times() if r.gpus > 1 and _is_spread(r, network, r.gpus)})
    return [str(n) for n in counts]


def _is_spread(row: StepTime, network: str, gpus: int) -> bool:
    is_measured = row.source == "pollux_osdi21" and row.model == network and bool(row.sync_s)
    return is_measured and row.gpus == gpus and max(row.placement) == 1


# -- Table I: equations (2) and (3) on the published layer lists ------------------------------------------------------

_VGG_FC = (FullyConnected(512, 4096, 7, 7), FullyConnected(4096, 4096), FullyConnected(4096, 1000))
_VGG11 = (64, 128, 256, 256, 512, 512, 512, 512)
_VGG16 = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)


def _chain(widths: tuple[int, ...]) -> list[Layer]:
    """Convolutions of 3 × 3 one after the other, from three input channels."""
    return [Convolution(a, b, 3) for a, b in zip((3, *widths), widths, strict=False)]


def _alexnet() -> list[Layer]:
    sizes = ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3))
    ends = (FullyConnected(256, 4096, 6, 6), FullyConnected(4096, 4096), FullyConnected(4096, 1000))
    return [*(Convolution(*size) for size in sizes), *ends]


def _resnet18() -> list[Layer]:
    layers: list[Layer] = [Convolution(3, 64, 7)]
    before = 64
    for width in (64, 128, 256, 512):
        layers += [Convolution(before, width, 3), *(Convolution(width, width, 3) for _ in range(3))]
        layers += [Convolution(before, width, 1)] if before != width else []
        before = width
    return [*layers, FullyConnected(512, 1000)]


def _resnet50() -> list[Layer]:
    layers: list[Layer] = [Convolution(3, 64, 7)]
    before = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for _ in range(blocks):
            layers += [Convolution(before, width, 1), Convolution(width, width, 3), Convolution(width, 4 * width, 1)]
            layers += [Convolution(before, 4 * width, 1)] if before != 4 * width else []
            before = 4 * width
    return [*layers, FullyConnected(2048, 1000)]


TABLE_1: Mapping[str, float] = {"AlexNet": 61.1, "ResNet18": 25.56, "ResNet50": 11.69, "VGG11": 132.86, "VGG16": 138.36}


LAYERS: Mapping[str, Callable[[], list[Layer]]] = {
    "AlexNet": _alexnet,
    "ResNet18": _resnet18,
    "ResNet50": _resnet50,
    "VGG11": lambda: [*_chain(_VGG11), *_VGG_FC],
    "VGG16": lambda: [*_chain(_VGG16), *_VGG_FC],
}


def computed_millions(network: str) -> float:
    """Millions of weights by (2) and (3), biases and normalisation left out as the equations do."""
    return millions_of(LAYERS[network]())

"""PyTorch training loops to profile. Each is a step function; nothing here measures anything.

Steps of the small loops, of different character, take 10 to 100 ms on one CPU core, so that a few seconds hold enough
of them. A GPU does them in 2 to 6 ms, most of which is Python's: two of them side by side do not contend for it. So a
GPU is profiled by known networks at their usual size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from placewise_training.profiling import networks

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Workload:
    """`build` makes the step function of a batch on a device. `is_network`: too large for a CPU core."""

    name: str
    batch: int
    build: Callable[[torch.device, int], Step]
    is_network: bool = False


def trainer(model: nn.Module, loss: Callable[[], Tensor]) -> Step:
    """A step of SGD with momentum on that loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss().backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def _convolutional(device: torch.device, batch: int) -> Step:
    """A small residual-free CNN on 32 × 32 pictures: compute bound."""
    layers = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    ).to(device)
    pictures = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.randint(10, (batch,), device=device)
    return trainer(layers, lambda: nn.functional.cross_entropy(layers(pictures), labels))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5000, 128)
        self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 5000)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.head(hidden[:, -1])
        return logits


def _recurrent(device: torch.device, batch: int) -> Step:
    """A two-layer LSTM language model: many small dependent steps."""
    model = _Recurrent().to(device)
    tokens = torch.randint(5000, (batch, 32), device=device)
    return trainer(model, lambda: nn.functional.cross_entropy(model(tokens), tokens[:, 0]))


def _transformer(device: torch.device, batch: int) -> Step:
    """Two encoder layers: large matrix products."""
    layer = nn.TransformerEncoderLayer(256, 8, 512, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    tokens = torch.randn(batch, 64, 256, device=device)
    return trainer(model, lambda: model(tokens).square().mean())


def _embedding(device: torch.device, batch: int) -> Step:
    """A click model: a large table read at random, and a small dense part; memory bound."""
    table = nn.EmbeddingBag(400_000, 64, mode="sum")
    dense = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    model = nn.Sequential(table, dense).to(device)
    clicks = torch.randint(400_000, (batch, 40), device=device)
    return trainer(model, lambda: model(clicks).square().mean())


def _input_bound(device: torch.device, batch: int) -> Step:
    """Pictures cropped, flipped and normalised on the CPU for a model that needs little: input bound."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 16)).to(device)
    raw = np.random.default_rng(0).integers(0, 255, (batch, 160, 160, 3), dtype=np.uint8)
    rng = np.random.default_rng(1)

    def loss() -> Tensor:
        ready = np.empty((batch, 3, 64, 64), dtype=np.float32)
        for i, picture in enumerate(raw):
            top, left = rng.integers(0, 32, 2)
            crop = picture[top : top + 128, left : left + 128].astype(np.float32)
            crop = crop.reshape(64, 2, 64, 2, 3).mean(axis=(1, 3))  # halved, as a resize would
            crop = crop[:, ::-1] if rng.random() < 0.5 else crop
            ready[i] = ((crop - 127.0) / 58.0).transpose(2, 0, 1)
        outputs: Tensor = model(torch.from_numpy(ready).to(device))
        return outputs.square().mean()

    return trainer(model, loss)


def _network(name: str, batch: int, model: networks.Model) -> Workload:
    return Workload(name, batch, lambda device, size: trainer(*model(device, size)), is_network=True)


LOOPS: Mapping[str, Workload] = {
    w.name: w
    for w in (
        Workload("convolutional", 32, _convolutional),
        Workload("recurrent", 16, _recurrent),
        Workload("transformer", 8, _transformer),
        Workload("embedding", 512, _embedding),
        Workload("input_bound", 32, _input_bound),
    )
}
NETWORKS: Mapping[str, Workload] = {
    w.name: w
    for w in (
        _network("resnet18", 128, networks.resnet18),
        _network("resnet50", 64, networks.resnet50),
        _network("vgg16", 64, networks.vgg16),
        _network("bert", 32, networks.bert),
        _network("lm", 20, networks.lm),
        _network("recommendation", 2048, networks.recommendation),
    )
}
WORKLOADS: Mapping[str, Workload] = {**LOOPS, **NETWORKS}


def workload(name: str) -> Workload:
    """That of WORKLOADS; "NAME@BATCH" is one with another batch. Raises KeyError, ValueError."""
    base, _, batch = name.partition("@")
    found = WORKLOADS[base]
    if not batch:
        return found
    if int(batch) < 1:
        raise ValueError(f"{name}: the batch is below 1")
    return replace(found, batch=int(batch))

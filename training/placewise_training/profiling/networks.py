"""Known networks at their usual size, as steps of training on a GPU. Nothing here measures anything.

Layers and sizes are those of the papers named below, on data of one shape drawn at random: speed depends on shapes
alone. Single precision; convolutions in TF32 where the GPU has it, as is PyTorch's default.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Model = Callable[[torch.device, int], tuple[nn.Module, Callable[[], Tensor]]]

_CLASSES = 1000
_WORDS = 30_000
_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # 0: halved by pooling


def _normed(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    padding = kernel // 2
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs))


class _Block(nn.Module):
    """A residual block: two 3 × 3 convolutions, or, with `widens`, the bottleneck of three (He et al., 2016)."""

    def __init__(self, inputs: int, width: int, stride: int, *, widens: bool) -> None:
        super().__init__()
        outputs = 4 * width if widens else width
        layers: list[nn.Module]
        if widens:
            layers = [_normed(inputs, width, 1), nn.ReLU(), _normed(width, width, 3, stride), nn.ReLU()]
            layers.append(_normed(width, outputs, 1))
        else:
            layers = [_normed(inputs, width, 3, stride), nn.ReLU(), _normed(width, outputs, 3)]
        self.layers = nn.Sequential(*layers)
        self.short = nn.Identity() if (inputs, stride) == (outputs, 1) else _normed(inputs, outputs, 1, stride)

    def forward(self, pictures: Tensor) -> Tensor:
        return torch.relu(self.layers(pictures) + self.short(pictures))


def _residual(counts: Sequence[int], *, widens: bool, is_small: bool) -> nn.Sequential:
    """ResNet with that number of blocks in each stage; `is_small` begins without its first halvings, for 32 × 32."""
    first: list[nn.Module] = [_normed(3, 64, 3), nn.ReLU()]
    if not is_small:
        first = [_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, count in enumerate(counts):
        for i in range(count):
            blocks.append(_Block(inputs, 64 << stage, 2 if i == 0 and stage else 1, widens=widens))
            inputs = (64 << stage) * (4 if widens else 1)
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, _CLASSES))


def _pictures(net: nn.Module, device: torch.device, batch: int, size: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    net = net.to(device)
    pictures = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(_CLASSES, (batch,), device=device)
    return net, lambda: nn.functional.cross_entropy(net(pictures), labels)


def resnet18(device: torch.device, batch: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    """ResNet-18 on pictures of 32 × 32."""
    return _pictures(_residual((2, 2, 2, 2), widens=False, is_small=True), device, batch, 32)


def resnet50(device: torch.device, batch: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    """ResNet-50 on pictures of 224 × 224."""
    return _pictures(_residual((3, 4, 6, 3), widens=True, is_small=False), device, batch, 224)


def vgg16(device: torch.device, batch: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    """VGG-16 on pictures of 224 × 224 (Simonyan and Zisserman, 2015)."""
    layers: list[nn.Module] = []
    inputs = 3
    for width in _VGG16:
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        inputs = width or inputs
    dense = (nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, _CLASSES))
    return _pictures(nn.Sequential(*layers, nn.Flatten(), *dense), device, batch, 224)


class _Encoder(nn.Module):
    """BERT-base: 12 layers, 768 wide, 12 heads; predicts every word (Devlin et al., 2019)."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, 768)
        self.position = nn.Parameter(torch.zeros(words, 768))
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.1, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, _WORDS)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(self.embedding(words) + self.position))
        return logits


class _Lstm(nn.Module):
    """A word-level language model: two LSTM layers of 200 (after Zaremba et al., 2014, at its small size)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, 200)
        self.lstm = nn.LSTM(200, 200, num_layers=2, batch_first=True)
        self.head = nn.Linear(200, _WORDS)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embedding(words))[0])
        return logits


def _words(net: nn.Module, device: torch.device, batch: int, length: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    net = net.to(device)
    words = torch.randint(_WORDS, (batch, length), device=device)
    return net, lambda: nn.functional.cross_entropy(net(words).flatten(0, 1), words.flatten())


def bert(device: torch.device, batch: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    """BERT-base on 128 words."""
    return _words(_Encoder(128), device, batch, 128)


def lm(device: torch.device, batch: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A recurrent language model on 35 words."""
    return _words(_Lstm(), device, batch, 35)


def recommendation(device: torch.device, batch: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    """An autoencoder of ratings of 20,000 films through 200 neurons."""
    net = nn.Sequential(nn.Linear(20_000, 200), nn.Tanh(), nn.Linear(200, 20_000)).to(device)
    ratings = (torch.rand(batch, 20_000, device=device) < 0.01).float()
    return net, lambda: nn.functional.mse_loss(net(ratings), ratings)

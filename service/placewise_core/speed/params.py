"""How many parameters a network has, by its layers or by name. Knows published sizes only; never guesses one for an
unknown name."""

import re
from collections.abc import Sequence
from functools import lru_cache

from placewise_core.basics.frozen import frozen

# Millions of parameters. Proteus' Table I, with ResNet-18 and ResNet-50 the right way round (the table swaps them),
# and further networks with the sizes their authors give.
PARAMS_MILLIONS = {
    "alexnet": 61.1,
    "resnet18": 11.69,
    "resnet34": 21.8,
    "resnet50": 25.56,
    "resnet101": 44.55,
    "resnet152": 60.19,
    "resnext50": 25.03,
    "resnext101": 88.79,
    "googlenet": 6.6,
    "densenet121": 7.98,
    "vgg11": 132.86,
    "vgg16": 138.36,
    "vgg19": 143.67,
    "inceptionv3": 27.16,
    "mobilenetv2": 3.5,
    "bert": 110.0,
    "bertbase": 110.0,
    "bertlarge": 340.0,
    "gpt2": 124.0,
    "deepspeech2": 38.0,
    "neumf": 31.8,
    "ncf": 31.8,
    "transformer": 65.0,
}
_ALIASES = {
    "alex": "alexnet",
    "imagenet": "resnet50",
    "inception3": "inceptionv3",
    "res18": "resnet18",
    "res50": "resnet50",
}


@lru_cache(maxsize=4096)
@lru_cache(4096)  # names come from users, in any number, and each comes again and again
def normalised(model: str) -> str:
    """A model's name without case, spaces and punctuation: "ResNet-50" and "resnet_50" are one network."""
    name = re.sub(r"[^a-z0-9]", "", model.lower())
    return _ALIASES.get(name, name)


def params_millions(model: str, given: float = 0.0) -> float:
    """The job's own number, else the table's; 0 if unknown."""
    return given if given > 0 else PARAMS_MILLIONS.get(normalised(model), 0.0)


@frozen
class Convolution:
    """`kernel` is the side of its square kernel; `inputs` and `outputs` are channels."""

    inputs: int
    outputs: int
    kernel: int

    @property
    def weights(self) -> int:
        """Proteus (2): C_in · C_out · K²."""
        return self.inputs * self.outputs * self.kernel**2


@frozen
class FullyConnected:
    """Reads `inputs` channels of height × width."""

    inputs: int
    outputs: int
    height: int = 1
    width: int = 1

    @property
    def weights(self) -> int:
        """Proteus (3): H · W · C_in · C_out."""
        return self.height * self.width * self.inputs * self.outputs


Layer = Convolution | FullyConnected


def millions_of(layers: Sequence[Layer]) -> float:
    """Millions of weights, without biases and normalisation, as (2) and (3) have none."""
    return sum(layer.weights for layer in layers) / 1e6

"""A job may bring its layers: its parameters then follow from Proteus (2) and (3)."""

import pytest

from placewise.v1 import job_pb2
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.speed.params import PARAMS_MILLIONS
from placewise_service.api.convert import convert_in

Layer = job_pb2.Layer
ALEXNET = [
    *(
        Layer(kind=Layer.CONVOLUTION, inputs=a, outputs=b, kernel=k)
        for a, b, k in ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3))
    ),
    Layer(kind=Layer.FULLY_CONNECTED, inputs=256, outputs=4096, height=6, width=6),
    Layer(kind=Layer.FULLY_CONNECTED, inputs=4096, outputs=4096),
    Layer(kind=Layer.FULLY_CONNECTED, inputs=4096, outputs=1000),
]


def millions(*layers: job_pb2.Layer, given: float = 0.0) -> float:
    return convert_in.job(job_pb2.Job(id="j", layers=layers, params_millions=given)).params_millions


def test_a_layer_has_the_weights_of_its_equation() -> None:
    assert millions(ALEXNET[0]) == 3 * 64 * 11**2 / 1e6  # (2)
    assert millions(ALEXNET[5]) == 6 * 6 * 256 * 4096 / 1e6  # (3)
    assert millions() == 0.0


def test_the_layers_of_a_network_have_its_published_size() -> None:
    assert millions(*ALEXNET) == pytest.approx(PARAMS_MILLIONS["alexnet"], rel=0.005)


def test_a_number_of_parameters_stands_before_layers() -> None:
    assert millions(*ALEXNET, given=7.0) == 7.0


@pytest.mark.parametrize(
    ("layer", "field"),
    [
        (Layer(inputs=1, outputs=1), "kind"),
        (Layer(kind=Layer.CONVOLUTION, inputs=3, outputs=64), "kernel"),
        (Layer(kind=Layer.FULLY_CONNECTED, outputs=64), "inputs"),
        (Layer(kind=Layer.FULLY_CONNECTED, inputs=1, outputs=1, height=-1), "height"),
    ],
)
def test_a_layer_without_its_sizes_is_refused(layer: job_pb2.Layer, field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        millions(ALEXNET[0], layer)
    assert refused.value.metadata["field"] == f"jobs.layers[1].{field}"

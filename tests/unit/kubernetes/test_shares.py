"""Shares of a divisible task: the question, and the annotations that tell each pod of its part."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.decision_pb2 import DivisibleTask, Share
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.shares import divisible_task, share_notes, units_of


def pod(annotations: Mapping[str, str]) -> Pod:
    return Pod("default", "p", "p", annotations=annotations)


def test_the_task_is_that_of_the_annotations() -> None:
    notes = {names.DIVISIBLE: "600", names.SERIAL: "5", names.KIND: "render"}
    expected = DivisibleTask(id="g", kind="render", parallel_scale=600.0, serial_scale=5.0)
    assert divisible_task("g", pod(notes)) == expected


@pytest.mark.parametrize("scale", ["", "0", "-1", "inf", "nan", "much"])
def test_a_pod_without_a_scale_is_not_divisible(scale: str) -> None:
    assert divisible_task("g", pod({names.DIVISIBLE: scale} if scale else {})) is None


def test_a_pod_has_the_shares_of_its_gpus() -> None:
    task = Assignment(node="n1", gpu_indices=[0, 2])
    assert units_of(task) == ["n1/gpu0", "n1/gpu2"]
    shares = [
        Share(node="n1", unit=f"gpu{index}", scale=10.0 * (index + 1), predicted_seconds=index) for index in range(3)
    ]
    assert share_notes(task, {f"n1/{share.unit}": share for share in shares}) == {
        names.SHARE_SCALE: "40",
        names.SHARE_FRACTION: "0.666666667",
        names.SHARE_UNIT: "gpu0,gpu2",
        names.SHARE_SECONDS: "2",
    }


def test_a_pod_whose_gpus_have_no_share_has_scale_0() -> None:
    share = Share(node="n2", unit="gpu0", scale=1.0)
    found = share_notes(Assignment(node="n1", gpu_indices=[0]), {"n2/gpu0": share})
    assert (found[names.SHARE_SCALE], found[names.SHARE_UNIT]) == ("0", "")
    assert share_notes(Assignment(node="n1", gpu_indices=[0]), {}) == {}

"""Paths of the API's objects: a name that somebody else wrote never becomes another path."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from placewise_kubernetes.gang.groups import read_group
from placewise_kubernetes.gang.spec import GangRef, Source
from placewise_kubernetes.kube import paths
from placewise_kubernetes.kube.client import KubeClient
from placewise_kubernetes.kube.paths import CORE, BadNameError, collection_path, object_path

BAD = [
    "",
    ".",
    "..",
    "a/b",
    "../b",
    "a%2Fb",
    "a?b",
    "a#b",
    "a b",
    "a\n",
    "A",
    "-a",
    "a-",
    "a..b",
    "a_b",
    "ä",
    "a" * 254,
]


def test_names_are_quoted_should_a_check_ever_let_them_through(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in ("is_name", "is_label"):
        monkeypatch.setattr(paths, check, lambda text: True)
    assert object_path(CORE, "a/b", "pods", "../x?y") == "/api/v1/namespaces/a%2Fb/pods/..%2Fx%3Fy"


def test_paths() -> None:
    assert object_path(CORE, "default", "pods", "train-0.a") == "/api/v1/namespaces/default/pods/train-0.a"
    assert object_path(CORE, "d", "pods", "0", "binding") == "/api/v1/namespaces/d/pods/0/binding"
    assert collection_path(CORE, "kube-system", "events") == "/api/v1/namespaces/kube-system/events"


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_name_makes_no_path(name: str) -> None:
    with pytest.raises(BadNameError):
        object_path(CORE, "default", "pods", name)
    with pytest.raises(BadNameError):
        collection_path(CORE, name, "pods")


@pytest.mark.parametrize("namespace", ["a.b", "a" * 64])
def test_a_namespace_is_one_label(namespace: str) -> None:
    with pytest.raises(BadNameError):
        collection_path(CORE, namespace, "pods")


@pytest.mark.parametrize("source", [Source.VOLCANO, Source.POD_GROUP, Source.BATCH_JOB])
@pytest.mark.parametrize("name", ["../../../../../../api/v1/secrets", "x/status", "Train_1"])
def test_a_group_that_a_pod_names_is_not_looked_for_elsewhere(source: Source, name: str) -> None:
    """The name stands in an annotation, a label or an owner reference: anybody who makes pods writes it."""

    class NeverAsked:
        async def get(self, path: str, **_: str) -> Mapping[str, Any]:
            raise AssertionError(path)

    client = cast(KubeClient, NeverAsked())
    assert asyncio.run(read_group(client, GangRef(source, "default", name))) is None

"""Ports of the services that a benchmark or a test starts."""

import random
import subprocess
import sys

import pytest

from placewise_service.bench.processes import free_port

_DRAW = "from placewise_service.bench.processes import free_port; print(*(free_port() for _ in range(100)))"


def test_a_port_is_not_given_twice_before_its_service_listens() -> None:
    ports = set()
    for _ in range(100):
        random.seed(0)  # as Hypothesis does before each test of its own
        ports.add(free_port())

    assert len(ports) == 100


@pytest.mark.process
def test_processes_side_by_side_give_different_ports() -> None:
    draws = [subprocess.Popen([sys.executable, "-c", _DRAW], stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (set(draw.communicate()[0].split()) for draw in draws)

    assert len(first) == len(second) == 100
    assert not first & second

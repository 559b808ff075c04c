"""Worker processes that run training loops at the same time, started together. One loop per worker and measurement."""

import multiprocessing
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType

import torch

from placewise_training.profiling.workloads import Step, workload

_WARM_UP_S = 0.5
_ANSWER_WITHIN_S = 180.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One loop over one window: steps per second, CPU seconds per second, resident GiB, share of the GPU's memory."""

    workload: str
    steps_per_s: float
    cpu_share: float
    resident_gib: float
    gpu_memory_share: float = 0.0


def _serve(pipe: Connection, device_name: str, cores: tuple[int, ...]) -> None:
    """The worker's loop: build the loop asked for, warm up, report ready, run on command."""
    if cores:
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)  # one core's worth each: they contend for the machine, not for their own pools
    torch.manual_seed(0)
    device = torch.device(device_name)
    while (request := pipe.recv()) is not None:
        name, seconds = request
        chosen = workload(name)
        step = chosen.build(device, chosen.batch)
        _run(step, _WARM_UP_S, device_name)
        pipe.send("ready")
        pipe.recv()
        before = time.process_time()
        steps, taken_s = _run(step, seconds, device_name)
        cpu = (time.process_time() - before) / taken_s
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        pipe.send(Reading(name, steps / taken_s, cpu, resident, _gpu_memory_share(device)))


def _gpu_memory_share(device: torch.device) -> float:
    if device.type != "cuda":
        return 0.0
    return torch.cuda.max_memory_allocated(device) / torch.cuda.get_device_properties(device).total_memory


def _run(step: Step, seconds: float, device_name: str) -> tuple[int, float]:
    began = time.perf_counter()
    steps = 0
    while time.perf_counter() - began < seconds:
        step()
        if device_name != "cpu":
            torch.cuda.synchronize()
        steps += 1
    return steps, time.perf_counter() - began


class Workers:
    """A fixed number of processes; use as a context manager, so that none is left behind."""

    def __init__(self, count: int, device: str, cores: tuple[int, ...] = ()) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, device, cores), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def measure(self, names: Sequence[str], seconds: float) -> list[Reading]:
        """Runs one loop per worker at the same time. Raises TimeoutError, or EOFError if a worker died."""
        used = self._pipes[: len(names)]
        for pipe, name in zip(used, names, strict=True):
            pipe.send((name, seconds))
        for pipe in used:
            _receive(pipe)
        for pipe in used:
            pipe.send("go")
        return [reading for pipe in used if isinstance(reading := _receive(pipe), Reading)]

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:
                continue
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.terminate()
                process.join()


def _receive(pipe: Connection) -> object:
    if not pipe.poll(_ANSWER_WITHIN_S):
        raise TimeoutError(f"a profiling worker gave no answer in {_ANSWER_WITHIN_S:g} s; profile fewer loops")
    return pipe.recv()

"""Items of work on Ray, one started here or a cluster. Ray is imported only where it is asked for."""

import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final

from placewise_training.lab.work.tasks import Task, Tasks
from placewise_training.lab.work.workers import ONE_THREAD, Item, Outcome, Outcomes, Result, Workers, performed_away

LOCAL: Final = "local"  # in place of an address
_AHEAD: Final = 2  # tasks for each core, so that none waits for this process


class RayMissingError(Exception):
    """Ray is not installed."""

    exit_code = 1


class RayUnreachableError(Exception):
    """No Ray cluster answers at the address, or it went away."""

    exit_code = 3


class OnRay(Workers):
    """`address`: LOCAL or a number of workers for a Ray of this machine's own, which ends with the context;
    `ray://HOST:PORT` or `HOST:PORT` for a cluster, which stays. A Ray that this process has joined is used as it is."""

    def __init__(self, address: str) -> None:
        """Raises RayMissingError."""
        try:
            import ray  # noqa: PLC0415 - an extra
        except ImportError:
            raise RayMissingError("--ray needs Ray: pip install 'placewise[ray]'") from None
        self._ray: Any = ray
        self._perform: Any = ray.remote(max_retries=0)(performed_away)
        self._address = address
        self._is_ours = False

    def __enter__(self) -> "OnRay":
        """Raises RayUnreachableError."""
        if not self._ray.is_initialized():
            self._join()
            self._is_ours = True
        return self

    def _join(self) -> None:
        environment = {"env_vars": ONE_THREAD}
        given: dict[str, Any] = {"address": self._address}
        if self._address == LOCAL or self._address.isdecimal():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # At 127.0.0.1 nobody else reaches it: whoever does runs code of their own.
            given = {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            given["num_cpus"] = None if self._address == LOCAL else int(self._address)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                self._ray.init(**given, runtime_env=environment, logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RayUnreachableError(f"no Ray answers at {self._address}: {error}") from error

    def __exit__(self, *error: object) -> None:
        if self._is_ours:
            self._ray.shutdown()
            self._is_ours = False

    def outcomes(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Outcomes[Result]:
        ray = self._ray
        shared = ray.put(function)
        most = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        tasks, waiting = Tasks(items), dict[Any, Task]()
        try:
            while True:
                while len(waiting) < most and (task := tasks.next()) is not None:
                    waiting[self._perform.remote(shared, task.item)] = task
                if not waiting:
                    return
                for reference in ray.wait(list(waiting))[0]:
                    task = waiting.pop(reference)
                    outcome = self._ended(tasks, task, reference)
                    if outcome is not None:
                        yield task.at, outcome
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)

    def _ended(self, tasks: Tasks, task: Task, reference: Any) -> Outcome[Any] | None:
        """What came of a task; None if it is to be done again."""
        errors = self._ray.exceptions
        try:
            found: Outcome[Any] = self._ray.get(reference)
        except errors.RayTaskError as error:  # performed_away raises nothing: the worker could not begin, or not answer
            return task.unsent(error)
        except errors.RayError as error:
            return tasks.died(task, str(error).partition("\n")[0])
        return found

"""Items of work on Ray, one started here or a cluster. Ray is imported only where it is asked for."""

import atexit
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final

from placewise_training.lab.work.tasks import Task, Tasks
from placewise_training.lab.work.workers import (
    ONE_THREAD,
    Item,
    Outcome,
    Outcomes,
    Result,
    Workers,
    one_thread,
    performed,
    performed_away,
)

LOCAL: Final = "local"  # in place of an address
_AHEAD: Final = 2  # tasks for each core, so that none waits for this process
_LOOK_S: Final = 1.0  # from one look at the node to the next, while Ray does not answer


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
        self._is_gone = False
        atexit.register(self._end)  # before Ray's own, so that it comes after them
        try:
            import ray  # noqa: PLC0415 - an extra
        except ImportError:
            raise RayMissingError("--ray needs Ray: pip install 'placewise[ray]'") from None
        self._ray: Any = ray
        self._perform: Any = ray.remote(max_retries=0)(performed_away)
        self._address = address
        self._is_ours = False
        self._node: tuple[str, int] | None = None

    def __enter__(self) -> "OnRay":
        """Raises RayUnreachableError."""
        if not self._ray.is_initialized():
            self._join()
            self._is_ours = True
        if not self._address.startswith("ray://"):  # whose client sees by itself that nobody answers
            own = self._ray.get_runtime_context().get_node_id()
            (node,) = (each for each in self._ray.nodes() if each["NodeID"] == own)
            self._node = node["NodeManagerAddress"], node["NodeManagerPort"]
        return self

    def _join(self) -> None:
        if self._address == LOCAL or self._address.isdecimal():
            count = None if self._address == LOCAL else int(self._address)
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # Whoever reaches a Ray can run code on it: at 127.0.0.1 no other machine does.
            given: dict[str, Any] = {
                "address": LOCAL,
                "num_cpus": count,
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
            }
        else:
            given = {"address": self._address, "runtime_env": {"env_vars": ONE_THREAD}}
        try:
            with warnings.catch_warnings(), one_thread():
                warnings.simplefilter("ignore", FutureWarning)
                self._ray.init(**given, logging_level="CRITICAL", log_to_driver=False)
        except Exception as error:  # of a start that takes too long Ray raises no narrower one
            raise RayUnreachableError(f"no Ray answers at {self._address}: {error}") from error

    def __exit__(self, *error: object) -> None:
        if self._is_ours and not self._is_gone:
            self._ray.shutdown()
        self._is_ours = False

    def _end(self) -> None:
        """Ends a process whose Ray went away: threads of Ray that still wait would crash it."""
        if self._is_gone:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(RayUnreachableError.exit_code)

    def outcomes(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Outcomes[Result]:
        ray = self._ray
        shared = self._patiently(ray.put, function)
        most = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        tasks, waiting = Tasks(items), dict[Any, Task]()
        try:
            while True:
                while len(waiting) < most and (task := tasks.next()) is not None:
                    waiting[self._perform.remote(shared, task.item)] = task
                if not waiting:
                    return
                for reference in self._patiently(ray.wait, [*waiting])[0]:
                    task = waiting.pop(reference)
                    outcome = self._ended(tasks, task, reference)
                    if outcome is not None:
                        yield task.at, outcome
        except RayUnreachableError:
            waiting.clear()
            raise
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)

    def _ended(self, tasks: Tasks, task: Task, reference: Any) -> Outcome[Any] | None:
        """What came of a task; None if it is to be done again."""
        errors = self._ray.exceptions
        try:
            found: Outcome[Any] = self._patiently(self._ray.get, reference)
        except errors.RayTaskError as error:  # performed_away raises nothing: the worker could not begin, or not answer
            return task.unsent(error)
        except errors.RayError as error:
            return tasks.died(task, str(error).partition("\n")[0])
        return found

    def _patiently(self, call: Callable[[Any], Any], given: Any) -> Any:
        """`call(given)` of Ray. Where that would wait for a node that is gone, and Ray then end this process without a
        word, raises RayUnreachableError."""
        found: SimpleQueue[Outcome[Any]] = SimpleQueue()
        Thread(target=lambda: found.put(performed(call, given)), daemon=True).start()
        try:
            while True:
                try:
                    return found.get(timeout=_LOOK_S).get()
                except Empty:
                    if self._node is not None:
                        socket.create_connection(self._node, _LOOK_S).close()
        except OSError as error:
            self._is_gone = True
            atexit.unregister(self._ray.shutdown)  # which would wait, and end this process before its last word
            raise RayUnreachableError(f"Ray at {self._address} went away: {error}") from error

"""Errors of the store beyond those in core, and the words for what Redis says. No message holds an address or a secret.

StateUnavailableError (core)
├── CorruptStateError     14 / 503   the state is there but cannot be read
└── UnwritableStateError  14 / 503   the state can be read, but its disk is full or broken
"""

from functools import lru_cache
from types import TracebackType

import msgspec
from redis import exceptions as redis_errors

from placewise_core.domain.errors import NotFoundError, StateUnavailableError
from placewise_log.sums import DamagedError


class CorruptStateError(StateUnavailableError):
    """A stored record was not written by this store, by another version of it, or only in part.

    A kind of unavailability, so that replicas keep answering from their last view while an operator looks.
    """

    reason = "STATE_CORRUPT"


class UnwritableStateError(StateUnavailableError):
    """The store refuses every change, as it cannot write to its disk. What only reads is answered."""


def no_such_cluster(cluster: str) -> NotFoundError:
    """The error of a mutation that does not create clusters."""
    return NotFoundError(f"no cluster {cluster!r}: report its nodes first", {"cluster": cluster})


# The most specific class first. Redis' own text is never passed on: it may hold addresses, user names or data.
_MEANINGS: tuple[tuple[type[Exception], str], ...] = (
    (redis_errors.AuthenticationError, "the state store refused the credentials"),
    (redis_errors.AuthorizationError, "the state store refused the credentials"),
    (redis_errors.NoPermissionError, "the state store's user may not do this"),
    (redis_errors.BusyLoadingError, "the state store is still loading its data"),
    (redis_errors.MaxConnectionsError, "too many connections to the state store"),
    (redis_errors.ReadOnlyError, "the state store's server is a replica that cannot write"),
    (redis_errors.OutOfMemoryError, "the state store is out of memory"),
    (redis_errors.TimeoutError, "the state store did not answer in time"),
    (redis_errors.ConnectionError, "the state store cannot be reached"),
    (redis_errors.AskError, "the state store's cluster is moving the data"),  # MovedError too
    (redis_errors.ClusterError, "the state store's cluster is down"),
    (redis_errors.RedisClusterException, "the state store's cluster is down"),
    (TimeoutError, "the state store did not answer in time"),
    (OSError, "the state store cannot be reached"),
)
_CORRUPT = {
    "WRONGTYPE": "a key holds another type of data",
    "PWSCHEMA": "it was written with another schema",
    "PWTORN": "some of its records are missing",
}
_SCRIPT_FAILED = "a record has another form than expected"
# Codes of error replies that say why a server cannot serve. Inside a script they come wrapped in another error.
_REFUSALS = {
    "OOM ": "the state store is out of memory",
    "READONLY": "the state store's server is a replica that cannot write",
    "NOREPLICAS": "the state store has too few replicas to write",
    "NOPERM": "the state store's user may not do this",
    "LOADING": "the state store is still loading its data",
    "BUSY": "the state store is busy with a script",
    "MASTERDOWN": "the state store's master is down",
    "CLUSTERDOWN": "the state store's cluster is down",
    "TRYAGAIN": "the state store's cluster is moving the data",
}


def meaning(error: Exception, cluster: str = "") -> StateUnavailableError:
    """The error to raise for what redis-py, the operating system or the decoder raised."""
    if isinstance(error, DamagedError):
        where = f"{error.name!r} in pw:{{{cluster}}}:{error.key}"
        return _corrupt(
            cluster,
            f"{where} is damaged: its bytes are not those that were written. docs/state.md says how to repair it",
        )
    if isinstance(error, msgspec.MsgspecError):
        return _corrupt(cluster, _SCRIPT_FAILED)
    for kind, message in _MEANINGS:
        if isinstance(error, kind):
            return StateUnavailableError(message)
    return _of_reply(str(error), cluster)


def _of_reply(text: str, cluster: str) -> StateUnavailableError:
    for code, why in _CORRUPT.items():
        if code in text:
            return _corrupt(cluster, why)
    if "MISCONF" in text:
        return UnwritableStateError("the state store cannot write to its disk")
    for code, message in _REFUSALS.items():
        if code in text:
            return StateUnavailableError(message)
    if "script" in text:
        return _corrupt(cluster, _SCRIPT_FAILED)
    return StateUnavailableError("the state store refused the command")


def _corrupt(cluster: str, why: str) -> CorruptStateError:
    return CorruptStateError(f"the state of cluster {cluster!r} cannot be read: {why}", {"cluster": cluster})


_FOREIGN = (redis_errors.RedisError, redis_errors.RedisClusterException, OSError, msgspec.MsgspecError)
_KEPT = 256  # clusters


class _Translation:
    """A class and no generator, and kept: every decision passes through one."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, _FOREIGN):
            raise meaning(error, self._cluster) from None


@lru_cache(_KEPT)
def translate_redis_errors(cluster: str = "") -> _Translation:
    """For a `with` block: turns every exception of the layers below into StateUnavailableError."""
    return _Translation(cluster)

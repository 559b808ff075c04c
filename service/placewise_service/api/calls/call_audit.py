"""Writes audit records of calls. Never reads a body beyond the names in it.

Recorded are: every call that failed or was refused; every call that wrote to the store; every connection refused
before a call. A Place that reserved nothing, and a Partition, have written only if their answer is remembered under a
request_id, or if they moved the host's clock. The log of decisions is no such write: it is a record itself.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, Protocol

from placewise_log.audit import AuditRecord
from placewise_service.api.calls.rpcs import Rpc
from placewise_service.api.identity.auth import AccessScope, Credentials, Principal

_ADVICE: Final = frozenset({"Place", "StreamPlace", "Partition"})  # writes only some of its answers
_LEFT: Final = "CANCELLED"  # by its caller: it failed nobody
_LISTS: Final = {"jobs": "id", "events": "job_id", "nodes": "id"}  # lists of a message, and what names their rows
_IDLE: Final = "idle_time"  # who was answered and asks nothing more was refused nothing


class FinishedCall(Protocol):
    """Facts about a call at its end."""

    rpc: Rpc
    credentials: Credentials
    principal: Principal | None
    cluster: str | None
    message: Any
    response: Any
    reason: str
    limit: str

    @property
    def request_id(self) -> str: ...


class CallAudit:
    """Makes records of calls. Belongs to one event loop."""

    def __init__(self, add: Callable[[AuditRecord], None], now_s: Callable[[], float]) -> None:
        """`now_s` is the time of day."""
        self._add = add
        self._now_s = now_s

    def record_call(self, call: FinishedCall) -> None:
        """Puts a call on record if it belongs there."""
        message = call.message
        if not _is_recorded(call):
            return
        self._record(
            call.rpc.name,
            call.limit or call.reason,
            call.credentials,
            call.principal,
            call.cluster or str(getattr(message, "cluster", "")),
            _subject(message) if message is not None else "",
            call.request_id,
        )

    def record_refusal(
        self, name: str, reason: str, credentials: Credentials, principal: Principal | None = None, subject: str = ""
    ) -> None:
        """Puts on record that somebody was refused who did not come as far as a call of the contract."""
        self._record(name, reason, credentials, principal, subject=subject)

    def record_turned_away(self, face: str, limit: str, peer: str = "") -> None:
        """Records that a face refused or closed a connection, or a request before a call of it began. `limit` is
        as in placewise_refused_total; `peer` is its address and port, "" if unknown."""
        if limit != _IDLE:
            self._add(AuditRecord(self._now_s(), face, limit, peer=peer))

    def _record(
        self,
        name: str,
        reason: str,
        credentials: Credentials,
        principal: Principal | None,
        cluster: str = "",
        subject: str = "",
        request_id: str = "",
    ) -> None:
        if principal is None and credentials.subjects:
            subject = f"certificate of {', '.join(credentials.subjects)}"
        caller, method = ("", "") if principal is None else (principal.name, principal.method.value)
        time_s = self._now_s()
        self._add(AuditRecord(time_s, name, reason, caller, method, credentials.peer, cluster, subject, request_id))


def _is_recorded(call: FinishedCall) -> bool:
    return call.reason not in ("OK", _LEFT) or _has_written(call)


def _has_written(call: FinishedCall) -> bool:
    """Whether a call that did not fail has written to the store, or may have before its caller left."""
    rpc, message = call.rpc, call.message
    if rpc.scope is AccessScope.READ or message is None or getattr(message, "dry_run", False):
        return False
    if rpc.name not in _ADVICE or call.request_id or message.HasField("now"):
        return True
    if rpc.name == "Partition":
        return False
    return call.reason == _LEFT or any(decision.reservation_id for decision in call.response.decisions)


def _subject(message: Any) -> str:
    """The subject of a call: the first of its jobs, nodes, …, and the number of others; a task; a bundle, a policy, or
    both as bundle/policy; names of settings."""
    kind: Any = type(message)
    field = _telling_field(kind)
    if field in _LISTS:
        rows = getattr(message, field)
        more = f" +{len(rows) - 1}" if len(rows) > 1 else ""
        return f"{getattr(rows[0], _LISTS[field])}{more}" if rows else ""
    if field == "task":
        return str(message.task.id)
    if field == "update_mask":
        return ",".join(message.update_mask.paths)
    if field == "name" and "policy" in kind.DESCRIPTOR.fields_by_name:
        return "/".join([part for part in (message.name, message.policy) if part])
    return str(getattr(message, field)) if field else ""


@cache
def _telling_field(kind: Any) -> str:
    fields = kind.DESCRIPTOR.fields_by_name
    names = [*_LISTS, "task", "update_mask", "name", "decision_id"]
    if "dry_run" not in fields:  # a question names the policy that is to answer
        names.append("policy")
    return next((name for name in names if name in fields), "")

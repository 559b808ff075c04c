"""Decision or fallback within a bound: for callers that must never be held up by the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from placewise_client.errors import PlacewiseError
from placewise_client.rpcs import AsyncMethod, Method, Req, Res

F = TypeVar("F")

DEFAULT_WITHIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Decided(Generic[Res, F]):
    """The service's answer or the fallback; `error` is the reason why no answer came."""

    value: Res | F
    error: PlacewiseError | None = None

    @property
    def is_fallback(self) -> bool:
        return self.error is not None


def decide_or(
    method: Method[Req, Res], request: Req, fallback: Callable[[], F], *, within_s: float = DEFAULT_WITHIN_S
) -> Decided[Res, F]:
    """`decide_or(client.place, request, fallback)`: one try, no longer than `within_s`; errors become the fallback."""
    try:
        return Decided(method(request, timeout_s=within_s, retry=None))
    except PlacewiseError as error:
        return Decided(fallback(), error)


async def decide_or_async(
    method: AsyncMethod[Req, Res], request: Req, fallback: Callable[[], F], *, within_s: float = DEFAULT_WITHIN_S
) -> Decided[Res, F]:
    """The same for the asyncio client."""
    try:
        return Decided(await method(request, timeout_s=within_s, retry=None))
    except PlacewiseError as error:
        return Decided(fallback(), error)

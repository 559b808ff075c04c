"""Long work beside the event loop: one thread, which takes one piece after the other. Decides nothing.

Python lets the loop's thread go on within milliseconds while another one computes, however long that takes. One
thread and no more: each further one could take the loop's turn as well.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import ParamSpec, TypeVar

# A message as large as this takes milliseconds to convert: it is done beside the loop.
ASIDE_BYTES = 32 * 1024

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="aside")


async def aside(work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
    """What `work` returns, or raises. It reads nothing that the loop's thread writes meanwhile, and writes nothing
    that it reads. Work that nobody waits for any more is not begun."""
    return await asyncio.get_running_loop().run_in_executor(_thread(), lambda: work(*args, **kwargs))

"""Room for large messages: their bytes, from their announcement to the end of their calls, in one process.

Small messages are bounded by the number in flight and pass it by. Single-threaded: it counts without a lock.
"""

from typing import Final

SMALL_BYTES: Final = 65_536


class BodyRoom:
    """Counts the bytes of large messages, together and by caller."""

    def __init__(self, most: int, share: float) -> None:
        """`most` bytes together, and its `share` for one caller. A message that is alone always has room."""
        self._most = most
        self._most_of_one = int(share * most)
        self._held = 0
        self._held_by: dict[str, int] = {}

    def problem(self, name: str | None, size: int) -> str:
        """Why there is no room for so many bytes now; "" if there is. `name`: whose they are, None where callers are
        not identified."""
        if self._held and self._held + size > self._most:
            return f"large messages of {self._held} bytes are being read or answered; {self._most} are allowed"
        ours = self._held_by.get(name, 0) if name is not None else 0
        if ours and ours + size > self._most_of_one:
            return f"this caller's large messages in flight have {ours} bytes; its share is {self._most_of_one}"
        return ""

    def take(self, name: str | None, size: int) -> None:
        """Counts them."""
        self._held += size
        if name is not None:
            self._held_by[name] = self._held_by.get(name, 0) + size

    def give_back(self, name: str | None, size: int) -> None:
        """Ends that."""
        self._held -= size
        if name is not None:
            left = self._held_by[name] - size
            if left:
                self._held_by[name] = left
            else:
                del self._held_by[name]

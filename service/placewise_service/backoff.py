"""How long to wait after a failure. The only back-off of the service; the SDK has its own, as neither imports the
other."""

from collections.abc import Iterator


def doubling_s(first_s: float, longest_s: float) -> Iterator[float]:
    """Pauses in seconds that double with each failure in a row, from `first_s` to `longest_s`."""
    while True:
        yield first_s
        first_s = min(2 * first_s, longest_s)

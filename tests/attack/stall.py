"""How long the service's event loop stood still, seen from outside: a prober that asks /healthz again and again."""

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

_PAUSE_S = 0.002


@dataclass(slots=True)
class Prober:
    """Seconds that each probe took; `longest_ms` also counts the probe that is still waiting."""

    seconds: list[float] = field(default_factory=list)
    waiting_since_s: float | None = None

    @property
    def longest_ms(self) -> float:
        since = self.waiting_since_s
        pending = [] if since is None else [time.monotonic() - since]
        return 1000.0 * max([*self.seconds, *pending], default=0.0)


@contextlib.contextmanager
def probing(port: int, path: str = "/healthz", timeout_s: float = 60.0) -> Iterator[Prober]:
    """Probes over one kept connection while the block runs; a connection that ends is opened again."""
    prober, is_over = Prober(), threading.Event()

    def probe() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        while not is_over.is_set():
            began_s = prober.waiting_since_s = time.monotonic()
            try:
                connection.request("GET", path)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
            prober.seconds.append(time.monotonic() - began_s)
            prober.waiting_since_s = None
            time.sleep(_PAUSE_S)
        connection.close()

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    try:
        time.sleep(0.1)
        yield prober
    finally:
        is_over.set()
        thread.join(timeout_s)

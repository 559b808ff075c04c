"""Checks of `placewise doctor` on the service's surroundings: disk, policies, certificates, traces.

Each takes the settings and returns a message if all is well. Raises ConcernError if the service would still work, any
other error if it would not.
"""

import importlib.util
import shutil
import socket
import stat
from pathlib import Path
from urllib.parse import urlsplit

from placewise_core.admit.registry import CHANGED_ORDERS
from placewise_core.basics.clock import SystemClock
from placewise_models.bundle import BundleError
from placewise_service.api.faces.tls import Certificates, end_time_s
from placewise_service.api.rehearsal import MutedTelemetry
from placewise_service.commands.exits import CommandError
from placewise_service.main import make_engine
from placewise_service.settings import Settings
from placewise_service.state.reference.memory import MemoryStore

CERTIFICATE_WARNING_DAYS = 14
# The embedded Redis rewrites its file beside the old one, and the ring of a cluster's decisions alone takes 256 MiB.
FREE_WARNING_BYTES = 1 << 30
FREE_NEEDED_BYTES = 64 << 20
_OTLP_PORT = 4317
_REACH_S = 2.0


class ConcernError(Exception):
    """Not well, but the service would run."""


def check_disk(path: Path) -> str:
    """Free space on the embedded Redis's disk."""
    free = shutil.disk_usage(path).free
    finding = f"{free >> 20} MiB are free on the disk of {path}"
    if free < FREE_NEEDED_BYTES:
        raise CommandError(f"{finding}: make room, or set PLACEWISE_STATE_DIR to a larger disk")
    if free < FREE_WARNING_BYTES:
        raise ConcernError(f"{finding}: a full disk stops every reservation")
    return finding


def check_policies(settings: Settings) -> str:
    """The policies that the settings name exist, and the bundle has their nets."""
    try:
        clock = SystemClock()
        engine = make_engine(settings, MemoryStore(clock), clock, MutedTelemetry())
    except BundleError:
        raise ConcernError("not checked: the bundle cannot be used") from None
    place = settings.place
    if place.policy not in engine.place_policies:
        raise ConcernError(
            f"PLACEWISE_PLACE__POLICY: the bundle has no net for {place.policy!r}; {place.fallback_policy!r} decides "
            "until one that has it is activated"
        )
    changed = CHANGED_ORDERS.get(settings.admit.policy) if "policy" in settings.admit.model_fields_set else None
    if changed is not None:
        raise ConcernError(f"PLACEWISE_ADMIT__POLICY: {changed}")
    return f"place {place.policy}, fallback {place.fallback_policy}, admit {settings.admit.policy}"


def check_tls(settings: Settings) -> str:
    """Certificate, key and CA can be used, belong together, and are not about to end."""
    tls = settings.tls
    if not tls.is_on:
        return "off"
    Certificates(tls)
    left_days = (end_time_s(tls) - SystemClock().now_s()) / 86400.0
    concerns = []
    if tls.key_file is not None and tls.key_file.stat().st_mode & stat.S_IRWXO:
        concerns.append(f"{tls.key_file} can be read by everybody: chmod 600")
    if left_days < CERTIFICATE_WARNING_DAYS:
        concerns.append(f"{tls.cert_file} expires in {left_days:.0f} days: renew it; the service takes it up by itself")
    if concerns:
        raise ConcernError("; ".join(concerns))
    return f"certificate and key belong together, for {left_days:.0f} more days"


def check_traces(settings: Settings) -> str:
    """Somebody listens at the OpenTelemetry endpoint."""
    endpoint = settings.otel.endpoint
    if not endpoint:
        return "off"
    if importlib.util.find_spec("opentelemetry") is None:
        raise CommandError("PLACEWISE_OTEL__ENDPOINT needs the extra `otel`: pip install 'placewise[otel]'")
    parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
    address = (parts.hostname or "", parts.port or _OTLP_PORT)
    try:
        socket.create_connection(address, timeout=_REACH_S).close()
    except OSError as error:
        raise ConcernError(
            f"PLACEWISE_OTEL__ENDPOINT: nobody answers at {address[0]}:{address[1]} ({error.strerror or error}); "
            "traces are lost, answers are not"
        ) from None
    return f"{address[0]}:{address[1]} can be reached"

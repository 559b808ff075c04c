"""The adapter's configuration: one YAML file, read once. Never reads the environment."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from placewise_client.adapter.native import AdapterSettings
from placewise_client.adapter.sections import ConfigError, read_section
from placewise_kubernetes.gang.gates.opening import GateRules, Pin
from placewise_kubernetes.gang.owners import DEFAULT_OWNERS, OwnerLabels
from placewise_kubernetes.gang.spec import PRIORITIES, GangRules, Manage
from placewise_kubernetes.kube.paths import is_label, is_name

T = TypeVar("T")

_MOST = sys.float_info.max  # seconds that never pass are refused
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """How the decision service is reached."""

    targets: tuple[str, ...] = ("http://127.0.0.1:8080",)
    """`http://host:port` (REST port), which costs less on a busy machine, or `host:port` (gRPC); several replicas."""
    token_path: str = ""
    """File with the bearer token; read again when it is rotated."""
    ca_path: str = ""
    """CA of the service; empty means no TLS."""
    certificate_path: str = ""
    key_path: str = ""
    allow_plaintext_token: bool = False
    """Sends the token to another machine without TLS, if the network between them is protected in another way."""


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where kube-scheduler or Volcano reach the adapter."""

    host: str = "127.0.0.1"
    port: int = 8443
    certificate_path: str = ""
    """Certificate chain; empty means plain HTTP, for loopback only."""
    key_path: str = ""
    client_ca_path: str = ""
    """CA that callers' certificates must come from; empty asks for none: then guard the port by network policy."""
    is_insecure: bool = False
    """Allows plain HTTP on an address that is not loopback (Volcano knows no TLS: guard the port by network policy)."""
    health_port: int = 0
    """One more port, plain HTTP, for /healthz, /readyz and /metrics alone: a kubelet shows no certificate. 0: none."""
    is_bind_served: bool = False
    """Serves /bind, for a scheduler that is configured with a bindVerb. Pods that Placewise has not decided are bound
    only for callers with a certificate of `client_ca_path`."""
    is_volcano_served: bool = False
    """Serves Volcano's calls, under /volcano."""
    volcano_body_bytes: int = 16 * 2**20
    """Largest call of Volcano's that is read: it sends all candidate nodes with their pods, some 13 KB for each pod."""


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """The whole configuration."""

    cluster: str
    service: ServiceConfig = field(default_factory=ServiceConfig)
    listen: ListenConfig = field(default_factory=ListenConfig)
    rules: GangRules = field(default_factory=GangRules)
    gates: GateRules = field(default_factory=GateRules)
    settings: AdapterSettings = field(default_factory=lambda: AdapterSettings(""))
    fail_open_s: float = 0.1
    """A filter call that has no decision after this long leaves the gang to the scheduler's own choice."""
    enqueue_budget_s: float = 0.03
    """Longest wait of Volcano's jobEnqueueable for an answer; then it gets "not yet" and asks again in a second."""
    tolerated_taints: tuple[str, ...] = ()
    """Taint keys that the cluster's jobs tolerate; a node with any other blocking taint takes no gang."""
    lease: str = ""
    """Lease ("namespace/name") that the deciding replica holds while others wait; empty: this is the only replica."""
    is_reservation_protected: bool = True
    """Pods that Placewise does not manage are kept off GPUs held for a gang that is being bound."""


# A host that asks per pod must not be kept waiting: no decision within the budget frees the gang at once.
_SETTINGS_DEFAULTS: Mapping[str, Any] = {
    "decide_budget_s": 0.08,
    "release_after_s": 0.0,
    "retry_s": 0.5,
    "resync_s": 60.0,
    "batch": 64,
}

# A gate holds a gang without anybody waiting in a call: it stays until there is an answer.
_GATES_DEFAULTS: Mapping[str, Any] = {
    "decide_budget_s": 2.0,
    "release_after_s": -1.0,
    "is_unshapeable_released": True,
}


def load_config(path: Path) -> KubernetesConfig:
    """Reads a configuration file.

    Raises:
        ConfigError: it is missing, no YAML, or has a key or value that is not known.
    """
    try:
        document = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return parse_config(document)


def parse_config(document: Mapping[str, Any]) -> KubernetesConfig:
    """A configuration document, keys as in the dataclasses. Raises ConfigError."""
    if not isinstance(document, Mapping) or not isinstance(name := document.get("cluster"), str) or not name:
        raise ConfigError("cluster: give the name that this cluster has in Placewise")
    values = dict(document)
    adapter = values.pop("adapter", None)
    if "settings" in values:
        raise ConfigError("settings is an unknown key: give adapter")
    if isinstance(adapter, Mapping | None):
        if "cluster" in (adapter or {}):
            raise ConfigError("adapter.cluster: give the top-level key cluster instead")
        gated = _GATES_DEFAULTS if _gates(values.get("gates")).is_enabled else {}
        adapter = {**_SETTINGS_DEFAULTS, **gated, **(adapter or {}), "cluster": name}
    values["settings"] = _section(AdapterSettings, adapter, "adapter")
    values["service"] = _section(ServiceConfig, values.get("service"), "service")
    values["listen"] = _section(ListenConfig, values.get("listen"), "listen")
    gates = values["gates"] = _gates(values.get("gates"))
    values["rules"] = dataclasses.replace(_rules(values.get("rules")), is_whole=gates.is_enabled)
    config = _section(KubernetesConfig, values, "")
    _check_listen(config.listen)
    namespace, _, name = config.lease.partition("/")
    if config.lease and not (is_label(namespace) and is_name(name)):
        raise ConfigError("lease: give NAMESPACE/NAME")
    return config


def _section(kind: type[T], values: object, name: str) -> T:
    return read_section(kind, values, name, least=1, most=_MOST)


def _rules(values: object) -> GangRules:
    rules = _section(GangRules, values, "rules")
    rules = dataclasses.replace(rules, owners=_owners(values.get("owners") if isinstance(values, Mapping) else None))
    try:
        rules = dataclasses.replace(rules, manage=Manage(rules.manage))
    except ValueError as error:
        raise ConfigError(f"rules.manage: give one of {', '.join(Manage)}") from error
    for name, word in rules.priority_classes.items():
        if word not in PRIORITIES:
            raise ConfigError(f"rules.priority_classes.{name}: give one of {', '.join(PRIORITIES)}")
    return rules


def _gates(values: object) -> GateRules:
    gates = _section(GateRules, values, "gates")
    try:
        return dataclasses.replace(gates, pin=Pin(gates.pin))
    except ValueError as error:
        raise ConfigError(f"gates.pin: give one of {', '.join(Pin)}") from error


def _owners(values: object) -> Mapping[str, OwnerLabels]:
    """The shipped table with the site's rows; null takes a row out."""
    if not isinstance(values, Mapping | None):
        raise ConfigError("rules.owners: give a section of controllers")
    site = {
        str(kind): _section(OwnerLabels, row, f"rules.owners.{kind}") if row is not None else None
        for kind, row in (values or {}).items()
    }
    for kind, row in site.items():
        if row is not None and not row.name:
            raise ConfigError(f"rules.owners.{kind}.name: give the labels that name a gang")
    return {kind: row for kind, row in {**DEFAULT_OWNERS, **site}.items() if row is not None}


def _check_listen(listen: ListenConfig) -> None:
    if not listen.certificate_path and listen.host not in LOOPBACK and not listen.is_insecure:
        raise ConfigError("listen: an address that others reach needs certificate_path, or is_insecure: true")
    if bool(listen.certificate_path) != bool(listen.key_path):
        raise ConfigError("listen: give certificate_path and key_path together")
    if listen.client_ca_path and not listen.certificate_path:
        raise ConfigError("listen: client_ca_path needs certificate_path: plain HTTP has no certificates")

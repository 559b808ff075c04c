"""The bridge's configuration file (TOML). Refuses unknown keys, naming them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placewise_client.adapter.native import AdapterSettings
from placewise_client.adapter.sections import ConfigError, read_section
from placewise_client.target import Target, TargetError, Tls
from placewise_slurm.http import MOST_AT_ONCE
from placewise_slurm.translate import SiteNames
from placewise_slurm.versions import VERSIONS

SHARE_STEPS = ("accounting", "job")


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """`[service]`: where Placewise is."""

    address: str = "http://127.0.0.1:8080"
    """`http://host:port` (REST port) or `host:port` (gRPC), or several separated by commas."""
    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    allow_plaintext_token: bool = False
    """Sends the token to another machine without TLS, if the network between them is protected in another way."""

    def target(self) -> Target:
        paths = (Path(name) if name else None for name in (self.ca_file, self.cert_file, self.key_file))
        root, chain, key = paths
        token_path = Path(self.token_file) if self.token_file else None
        return Target(
            addresses=tuple(self.address.split(",")),
            tls=Tls(root, chain, key) if root or chain else None,
            token=(lambda: token_path.read_text().strip()) if token_path else None,
            allow_plaintext_token=self.allow_plaintext_token,
        )


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """`[slurm]`: where slurmrestd is and how to talk to it."""

    rest: str = "unix:/run/slurmrestd/slurmrestd.sock"
    """unix:/path, host:port, or https://host:port."""
    version: str = ""
    """REST version, such as v0.0.42. Empty: the newest that slurmrestd and the bridge both know."""
    user: str = ""
    """User of the token, for slurmrestd with rest_auth/jwt."""
    token_file: str = ""
    ca_file: str = ""
    """CA of an https:// address; empty: the system's."""
    allow_plaintext_token: bool = False
    """Sends the token to another machine without TLS, if the network between them is protected in another way."""
    timeout_s: float = 5.0
    at_once: int = MOST_AT_ONCE
    """Requests under way side by side. Fewer after some got no answer."""

    def target(self) -> Target:
        """The address with its TLS; `check()` refuses to send the token in clear off this machine."""
        return Target(
            addresses=(self.rest,),
            tls=Tls(Path(self.ca_file)) if self.ca_file else None,
            token=self.user if self.token_file else None,
            allow_plaintext_token=self.allow_plaintext_token,
        )

    def headers(self) -> Mapping[str, str]:
        if not self.token_file:
            return {}
        token = Path(self.token_file).read_text().strip().removeprefix("SLURM_JWT=")
        return {"X-SLURM-USER-NAME": self.user, "X-SLURM-USER-TOKEN": token}


@dataclass(frozen=True, slots=True)
class HooksConfig:
    """`[hooks]`: the scripts inside Slurm; `placewise-slurm hooks` writes them with these values."""

    listen_host: str = "127.0.0.1"
    listen_port: int = 6830
    partitions: tuple[str, ...] = ()
    """Partitions whose jobs are placed. Jobs of others are placed if their comment says `placewise`."""
    hold_without_bridge: bool = False
    has_gpu_types: bool = False
    """Every GPU of a node has a Gres type of its own, so that jobs can be given exact GPUs."""
    shares_dir: str = "/var/spool/placewise/shares"
    """Shared with the compute nodes; TaskProlog reads the shares of divisible jobs there. Empty writes none."""
    share_steps: str = "accounting"
    """The witness of a share's times: accounting (slurmdbd), or the job as a whole."""


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """`[metrics]`: Prometheus endpoint. Port 0 switches it off."""

    host: str = "127.0.0.1"
    port: int = 9187


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """`[lease]`: for bridges on several hosts, of which one decides at a time."""

    dir: str = ""
    """Directory that the hosts share. Empty: this bridge is the only one."""


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """The whole file. `[adapter]` is the skeleton's own settings, `[site]` the names a site uses."""

    adapter: AdapterSettings
    service: ServiceConfig = field(default_factory=ServiceConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    hooks: HooksConfig = field(default_factory=HooksConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    site: SiteNames = field(default_factory=SiteNames)
    lease: LeaseConfig = field(default_factory=LeaseConfig)

    def check(self) -> None:
        """Raises ConfigError for values that the types allow and the bridge does not."""
        if not self.adapter.cluster:
            raise ConfigError("adapter.cluster: give the name that this cluster has in Placewise")
        counts = {
            "adapter.batch": self.adapter.batch,
            "adapter.depth": self.adapter.depth,
            "slurm.at_once": self.slurm.at_once,
        }
        for key, value in counts.items():
            if value < 1:
                raise ConfigError(f"{key}: {value} is too small: give 1 or more")
        if self.slurm.version and self.slurm.version not in VERSIONS:
            raise ConfigError(f"slurm.version: {self.slurm.version!r} is unknown: give one of {', '.join(VERSIONS)}")
        if self.hooks.share_steps not in SHARE_STEPS:
            raise ConfigError(
                f"hooks.share_steps: {self.hooks.share_steps!r} is unknown: give one of {', '.join(SHARE_STEPS)}"
            )
        self._check_slurm()
        wrong = {name for name in self.site.priorities.values() if name not in ("urgent", "prior", "normal")}
        if wrong:
            raise ConfigError(f"site.priorities: {wrong.pop()!r} is unknown: give urgent, prior or normal")

    def _check_slurm(self) -> None:
        try:
            self.slurm.target().check()
        except TargetError as error:
            raise ConfigError(f"slurm.rest: {error}") from error
        if self.slurm.ca_file and not self.slurm.rest.startswith("https://"):
            raise ConfigError("slurm.ca_file: needs slurm.rest as https://host:port")


_SECTIONS: Mapping[str, type[Any]] = {
    "adapter": AdapterSettings,
    "service": ServiceConfig,
    "slurm": SlurmConfig,
    "hooks": HooksConfig,
    "metrics": MetricsConfig,
    "site": SiteNames,
    "lease": LeaseConfig,
}


def load(path: Path) -> BridgeConfig:
    """Reads and checks the file. Raises ConfigError."""
    try:
        return parse(tomllib.loads(path.read_text()))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def parse(raw: Mapping[str, Any]) -> BridgeConfig:
    for name in raw:
        if name not in _SECTIONS:
            raise ConfigError(f"[{name}] is an unknown section: give one of {', '.join(_SECTIONS)}")
    sections: Mapping[str, Any] = {name: read_section(kind, raw.get(name), name) for name, kind in _SECTIONS.items()}
    config = BridgeConfig(**sections)
    config.check()
    return config

"""Every setting of the service, read once from the environment. Never read anywhere but in main.py and the CLI.

`PLACEWISE_SERVER__GRPC_PORT=50052` sets `settings.server.grpc_port`. A variable that starts with PLACEWISE_ and is not
one of these is refused with the nearest name, since a misspelt one would otherwise be ignored without a word.
"""

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "PLACEWISE_"
# Variables of the programs around the service, of the tasks that they start, and of the tests: they may be set beside
# the service's.
FOREIGN_PREFIXES = (
    "PLACEWISE_CLIENT_",
    "PLACEWISE_KUBERNETES_",
    "PLACEWISE_SHARE_",
    "PLACEWISE_SLURM_",
    "PLACEWISE_TEST_",
)

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class SettingsError(ValueError):
    """The environment does not describe a service that may be started; the text says what to change."""


class Section(BaseModel):
    """A group of settings: frozen, and without room for misspelt names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerSettings(Section):
    grpc_host: str = Field(default="127.0.0.1", description="Bind address of the gRPC face.")
    grpc_port: int = Field(default=50051, ge=0, le=65535, description="Port of the gRPC face; 0 takes a free one.")
    rest_host: str = Field(default="127.0.0.1", description="Bind address of the REST face.")
    rest_port: int = Field(default=8080, ge=0, le=65535, description="Port of the REST face; 0 takes a free one.")
    health_host: str = Field(default="127.0.0.1", description="Address of the plain listener for health.")
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port of a listener without TLS that serves only /healthz and /readyz; 0 takes a free one, "
        "empty: none. The image sets 8082.",
    )
    allowed_hosts: str = Field(
        default="",
        description="Host names, separated by commas, that clients without a token may use for REST, Connect and the "
        "page, beside this machine's own (localhost, 127.0.0.1, [::1]).",
    )
    workers: int = Field(default=1, ge=1, le=256, description="Processes that share the ports.")
    insecure: bool = Field(default=False, description="Allow an address other than loopback without authentication.")
    reflection: bool = Field(default=True, description="Serve gRPC reflection.")
    short_turns: bool = Field(
        default=False,
        description="Ask Linux (6.12 and later) for turns of 0.3 ms on the processor. Answers come sooner when other "
        "processes keep every core busy. A service that computes all the time loses some per cent of its rate.",
    )
    drain_timeout_s: float = Field(default=20.0, ge=0, description="Time for requests in flight after SIGTERM.")

    @field_validator("health_port", mode="before")
    @classmethod
    def _empty_means_none(cls, value: Any) -> Any:
        return None if value == "" else value

    @property
    def host_names(self) -> frozenset[str]:
        """`allowed_hosts`, each by itself."""
        return frozenset(name.strip().lower() for name in self.allowed_hosts.split(",")) - {""}


class LimitSettings(Section):
    message_bytes: int = Field(default=4 << 20, ge=1024, description="Largest request, bytes.")
    jobs_per_request: int = Field(default=256, ge=1, description="Most jobs in one request.")
    tasks_per_gang: int = Field(default=1024, ge=1, description="Most tasks of one job.")
    tasks_per_request: int = Field(
        default=8192, ge=1, description="Most tasks, and most subtasks, of all jobs of one request together."
    )
    subtasks_per_job: int = Field(default=1024, ge=1, description="Most subtasks of one pipeline job.")
    nodes_per_cluster: int = Field(default=10_000, ge=1, description="Most nodes of one cluster, and in one report.")
    events_per_report: int = Field(default=10_000, ge=1, description="Most job events in one report.")
    clusters: int = Field(default=1000, ge=1, description="Most clusters; one more is refused.")
    queues_per_cluster: int = Field(default=1000, ge=1, description="Most queues of one cluster; one more is refused.")
    profiles_per_cluster: int = Field(
        default=2000,
        ge=0,
        description="Most subtask kinds and co-run models of one cluster, kinds of divisible tasks, and values of one "
        "row; more are not learned.",
    )
    queue_idle_s: float = Field(default=604_800.0, ge=60, description="Idle time after which a queue is deleted.")
    profile_idle_s: float = Field(
        default=7_776_000.0,
        ge=60,
        description="Idle time after which measurements of a subtask kind, task kind or model are deleted.",
    )
    late_start_s: float = Field(
        default=86_400.0,
        ge=60,
        description="How long after its reservation expired a job may start without naming its placement.",
    )
    late_start_bytes: int = Field(
        default=64 << 20,
        ge=1 << 16,
        description="Most bytes of placements kept for such jobs, per cluster; the oldest are forgotten first.",
    )
    queue_series: int = Field(
        default=1000, ge=0, description="Most queues shown by name in metrics; the rest of a cluster are one series."
    )
    items_per_request: int = Field(
        default=262_144, ge=1024, description="Most entries of all lists and maps of one request together."
    )
    in_flight: int = Field(default=512, ge=1, description="Concurrent requests per process; further ones are shed.")
    caller_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Largest share of IN_FLIGHT, and of BODIES_BYTES, for one caller, if callers are distinguished by "
        "credentials.",
    )
    bodies_bytes: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="Most bytes of all messages above 64 KiB that are read or answered at once, per process; more are "
        "shed before they are read.",
    )
    stream_pipeline: int = Field(default=32, ge=1, description="Concurrent requests of one stream.")
    json_objects: int = Field(
        default=131_072, ge=1, description="Most objects and lists in one JSON body; of values, eight times as many."
    )
    connections: int = Field(
        default=0,
        ge=0,
        description="Most connections of each face, per process; 0: from the limit on open files, at most 1000.",
    )
    header_bytes: int = Field(default=64 << 10, ge=1024, description="Most bytes of the headers of an HTTP request.")
    url_bytes: int = Field(default=8 << 10, ge=256, description="Most bytes of the URL of an HTTP request.")
    metadata_bytes: int = Field(default=16 << 10, ge=1024, description="Most bytes of the metadata of a gRPC call.")
    header_s: float = Field(default=10.0, gt=0, description="Longest time for the headers of an HTTP request.")
    body_s: float = Field(default=30.0, gt=0, description="Longest time for a message after its headers.")
    handshake_s: float = Field(default=10.0, gt=0, description="Longest time for a TLS or gRPC handshake.")
    idle_s: float = Field(default=300.0, gt=0, description="Idle time after which a connection is closed.")


class AuthSettings(Section):
    tokens_file: Path | None = Field(
        default=None, description="YAML file of bearer tokens (hashed); reloaded when it changes."
    )
    certificates_file: Path | None = Field(
        default=None,
        description="YAML file: permissions of the subjects of client certificates; reloaded when it changes.",
    )
    jwks_file: Path | None = Field(
        default=None, description="JWKS file: public keys that verify JSON Web Tokens; reloaded when it changes."
    )
    jwt_issuer: str = Field(default="", description="`iss` that a JSON Web Token must have.")
    jwt_audience: str = Field(default="", description="`aud` that a JSON Web Token must have.")
    jwt_name_claim: str = Field(default="sub", description="Claim that names the caller.")
    jwt_scopes_claim: str = Field(
        default="placewise_scopes", description="Claim with the scopes: a list, or words in one string."
    )
    jwt_clusters_claim: str = Field(
        default="placewise_clusters", description="Claim with the clusters, likewise; `*` is every cluster."
    )
    keep_last_good_s: float = Field(
        default=600.0,
        ge=0,
        description="Time to use the last good content of these files while one is missing or broken; then every "
        "call is refused.",
    )
    allow_plaintext_tokens: bool = Field(
        default=False, description="Take tokens without TLS on an address other than loopback."
    )

    @model_validator(mode="after")
    def _is_complete(self) -> "AuthSettings":
        jwt = (self.jwks_file, self.jwt_issuer, self.jwt_audience)
        if any(jwt) and not all(jwt):
            raise ValueError("jwks_file, jwt_issuer and jwt_audience belong together")
        return self

    @property
    def takes_tokens(self) -> bool:
        return bool(self.tokens_file or self.jwks_file)

    @property
    def is_on(self) -> bool:
        return self.takes_tokens or self.certificates_file is not None


class TlsSettings(Section):
    cert_file: Path | None = Field(default=None, description="Server certificate chain, PEM; reloaded when it changes.")
    key_file: Path | None = Field(default=None, description="Private key of the certificate, PEM.")
    client_ca_file: Path | None = Field(
        default=None, description="CA of client certificates, PEM; set, it demands one (mTLS)."
    )

    @model_validator(mode="after")
    def _is_complete(self) -> "TlsSettings":
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together")
        if self.client_ca_file and not self.cert_file:
            raise ValueError("client_ca_file needs cert_file and key_file")
        return self

    @property
    def is_on(self) -> bool:
        return self.cert_file is not None


class BundleSettings(Section):
    public_keys: tuple[Path, ...] = Field(
        default=(),
        description="Public keys (ed25519, PEM), one of which must have signed a bundle; empty: none need be signed. "
        "Bundles that come with a release are known by their digest.",
    )


class RedisSettings(Section):
    sentinel_service: str = Field(default="", description="Name of the master, if redis_url names a Sentinel.")
    is_cluster: bool = Field(default=False, description="redis_url names a node of a Redis Cluster.")
    ca_file: Path | None = Field(default=None, description="CA of the server's certificate (rediss://), PEM.")
    cert_file: Path | None = Field(default=None, description="Client certificate (rediss://), PEM.")
    key_file: Path | None = Field(default=None, description="Key of the client certificate, PEM.")
    timeout_ms: float = Field(default=1000.0, gt=0, description="Longest wait for one answer of Redis.")
    connections: int = Field(default=64, ge=1, description="Limit of Redis commands in flight, per process.")
    command: str = Field(default="", description="redis-server binary of the embedded Redis; empty: the shipped one.")


class PlaceSettings(Section):
    policy: str = Field(
        default="adaptive",
        description="Placement policy, unless the request or the cluster names one. With a bundle that has no net for "
        "it, `fallback_policy` decides.",
    )
    pipeline_policy: str = Field(
        default="ldwp",
        description="Placement policy of requests for pipelines alone, unless the request or the cluster names one. "
        "With a bundle that has no net for it, `policy` decides.",
    )
    fallback_policy: str = Field(
        default="consolidate", description="Heuristic that decides when a learned policy fails."
    )
    reserve_ttl_s: float = Field(
        default=60.0, gt=0, description="Time for which a placement is reserved, until the job starts."
    )
    max_reserve_ttl_s: float = Field(default=3600.0, gt=0, description="Longest reserve_ttl a request may ask for.")


class AdmitSettings(Section):
    policy: str = Field(
        default="proteus-qos", description="Admission policy, unless the request or the cluster names one."
    )
    v: float = Field(default=1.0, ge=0, description="V of a queue that sets none: weight of cost against backlog.")
    epsilon_s: float = Field(default=60.0, ge=0, description="Growth of the delay queue Z per slot while work waits.")
    tau_s: float = Field(default=3600.0, gt=0, description="Reference duration that makes S(n) dimensionless.")
    slot_s: float = Field(default=10.0, gt=0, description="Length of a slot.")
    wait_bound_s: float = Field(
        default=86_400.0,
        ge=0,
        description="Wait of a queue's head, unless the queue sets it, after which nothing starts on its nodes.",
    )


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe level logged."
    )
    format: Literal["json", "text"] = Field(default="json", description="json for machines, text for a terminal.")


class AuditSettings(Section):
    file: str = Field(
        default="",
        description="Where audit records go: a file, `-` (standard output) or `off`; empty: standard output where "
        "callers are asked for credentials, else nowhere.",
    )


class DecisionLogSettings(Section):
    ring_records: int = Field(
        default=100_000, ge=1, description="Records Redis keeps per cluster until they are exported."
    )
    ring_bytes: int = Field(
        default=256 << 20, ge=1 << 20, description="Bytes of records Redis keeps per cluster, if that is reached first."
    )
    buffer_records: int = Field(
        default=20_000,
        ge=1,
        description="Records that a process keeps until Redis accepts them; further ones are dropped and counted.",
    )
    observe_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of the Place decisions logged with their observation, on clusters that do not explore.",
    )
    alternatives_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of the Place decisions logged with their alternatives and forecasts, if there is time.",
    )
    study_time_share: float = Field(
        default=0.01,
        gt=0,
        le=1,
        description=(
            "Most of a process's time that alternatives take, and as much again for shadows. "
            "Raise it where nobody waits, as in a replay."
        ),
    )
    views: bool = Field(default=True, description="Log what the view of each decision is rebuilt from.")
    views_bytes: int = Field(
        default=128 << 20, ge=1 << 20, description="Bytes of snapshots and events Redis keeps for that, per cluster."
    )


class OtelSettings(Section):
    endpoint: str = Field(default="", description="OTLP/gRPC endpoint for traces; empty: no tracing.")
    sample_rate: float = Field(default=0.1, ge=0, le=1, description="Share of the requests traced.")


class Settings(BaseSettings):
    """All settings; build it with `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid", validate_default=True
    )

    redis_url: SecretStr | None = Field(
        default=None, description="redis:// or rediss:// URL; empty: an embedded Redis."
    )
    state_dir: Path = Field(default=Path("var/placewise"), description="State directory of the embedded Redis.")
    bundle_dir: Path | None = Field(
        default=None, description="Directory of model bundles; the shipped ones serve beside those in it."
    )
    stale_telemetry_after_s: float = Field(
        default=90.0, gt=0, description="Age of telemetry above which a node is not used."
    )
    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    auth: AuthSettings = AuthSettings()
    tls: TlsSettings = TlsSettings()
    bundles: BundleSettings = BundleSettings()
    redis: RedisSettings = RedisSettings()
    place: PlaceSettings = PlaceSettings()
    admit: AdmitSettings = AdmitSettings()
    declog: DecisionLogSettings = DecisionLogSettings()
    log: LogSettings = LogSettings()
    audit: AuditSettings = AuditSettings()
    otel: OtelSettings = OtelSettings()

    @model_validator(mode="before")
    @classmethod
    def _empty_means_unset(cls, data: Any) -> Any:
        """`PLACEWISE_REDIS_URL=` (as compose files write an unset variable) is the same as none."""
        if isinstance(data, dict) and data.get("redis_url") == "":
            return {key: value for key, value in data.items() if key != "redis_url"}
        return data

    @model_validator(mode="after")
    def _is_safe(self) -> "Settings":
        public = {self.server.grpc_host, self.server.rest_host} - LOOPBACK
        if self.auth.certificates_file and not self.tls.client_ca_file:
            raise ValueError("PLACEWISE_AUTH__CERTIFICATES_FILE needs PLACEWISE_TLS__CLIENT_CA_FILE")
        if self.tls.client_ca_file and not self.auth.is_on and not self.server.insecure:
            raise ValueError(
                "every certificate of PLACEWISE_TLS__CLIENT_CA_FILE would have all permissions: list the callers in "
                "PLACEWISE_AUTH__CERTIFICATES_FILE (docs/security.md), or use --insecure "
                "(PLACEWISE_SERVER__INSECURE=true)"
            )
        if public and not self.auth.is_on and not self.server.insecure:
            raise ValueError(
                f"binding {', '.join(sorted(public))} needs authentication: set PLACEWISE_AUTH__TOKENS_FILE, "
                "PLACEWISE_AUTH__CERTIFICATES_FILE or PLACEWISE_AUTH__JWKS_FILE, or use --insecure "
                "(PLACEWISE_SERVER__INSECURE=true)"
            )
        if public and self.auth.takes_tokens and not self.tls.is_on and not self.auth.allow_plaintext_tokens:
            raise ValueError(
                f"tokens would travel in clear to {', '.join(sorted(public))}: set PLACEWISE_TLS__CERT_FILE and "
                "_KEY_FILE, or PLACEWISE_AUTH__ALLOW_PLAINTEXT_TOKENS=true if another layer encrypts"
            )
        return self

    @property
    def audit_target(self) -> str:
        """The audit file, "-" for standard output, "" for none."""
        if self.audit.file == "off":
            return ""
        return self.audit.file or ("-" if self.auth.is_on else "")

    def effective(self) -> dict[str, Any]:
        """Every setting as plain data for the log; secrets are masked."""
        return self.model_dump(mode="json")


def load_settings(environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Settings from the environment, with `overrides` (from the command line) on top. Raises SettingsError."""
    reject_unknown(os.environ if environ is None else environ)
    try:
        return Settings(**overrides)
    except ValidationError as error:
        lines = (_error_line(tuple(item["loc"]), item["msg"]) for item in error.errors(include_url=False))
        raise SettingsError("\n".join(lines)) from None


def reject_unknown(environ: Mapping[str, str]) -> None:
    """Raises SettingsError for a PLACEWISE_ variable that is no setting."""
    known = {name for name, _ in variables()} | {PREFIX + name.upper() for name in Settings.model_fields}
    for name in sorted(environ):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper.startswith(FOREIGN_PREFIXES) or upper in known:
            continue
        near = difflib.get_close_matches(upper, sorted(known), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"{name} is not a setting of the service{hint}")


def variables() -> Iterator[tuple[str, FieldInfo]]:
    """(environment variable, field) of every single setting, in order of declaration."""
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            for inner, inner_field in section.model_fields.items():
                yield f"{PREFIX}{name}__{inner}".upper(), inner_field
        else:
            yield f"{PREFIX}{name}".upper(), field


def settings_markdown() -> str:
    """The table of docs/settings.md."""
    rows = [f"| `{name}` | {_default(field)} | {field.description} |" for name, field in variables()]
    return "\n".join([_HEADER, *rows, ""])


_HEADER = """\
# Settings

Generated from `service/placewise_service/settings.py` by `python -m placewise_service.settings`; a test compares the
two. The service reads these variables at start, logs the values in force (secrets masked), and refuses a
`PLACEWISE_` variable that is not listed here. Names that start with `PLACEWISE_CLIENT_`, `PLACEWISE_KUBERNETES_`,
`PLACEWISE_SLURM_` or `PLACEWISE_TEST_` belong to other programs and are left alone.

| variable | default | meaning |
|---|---|---|"""


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "" if value is None or value == "" else f"`{value}`"


def _error_line(location: tuple[int | str, ...], message: str) -> str:
    variable = PREFIX + "__".join(str(part) for part in location).upper() if location else ""
    return f"{variable}: {message}" if variable else message.removeprefix("Value error, ")


if __name__ == "__main__":
    print(settings_markdown(), end="")

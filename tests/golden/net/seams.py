"""The only door from the golden net to the code under test: a move of code changes the imports here.

Questions go in as messages of the contract and come out as messages; records come from the decision log's ring; nets
are watched at ONNX Runtime, which no move replaces.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import structlog
from google.protobuf.message import Message
from prometheus_client import ProcessCollector
from tests.fakes.quick import nets_once
from typer.main import get_command

from placewise_client.adapter.metrics import AdapterMetrics
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.errors import PlacewiseError
from placewise_core.inputs.cluster import feature_schema
from placewise_core.partition.registry import partition_policy
from placewise_kubernetes import cli as kubernetes_cli
from placewise_kubernetes.config import KubernetesConfig
from placewise_kubernetes.kube import names as kubernetes_labels
from placewise_models.folder import shipped_bundle
from placewise_service.api.calls.fingerprint import fingerprint
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.api.docs.routes import ROUTES
from placewise_service.api.faces.rest import rest_app
from placewise_service.api.identity.auth import NOBODY, Open
from placewise_service.api.rehearsal import MutedTelemetry
from placewise_service.cli import app as cli_app
from placewise_service.declog.derived import JOINED_SCHEMA
from placewise_service.declog.tables import SCHEMAS
from placewise_service.main import make_engine
from placewise_service.settings import FOREIGN_PREFIXES, Settings, variables
from placewise_service.state import codec
from placewise_service.state.holdings import capacity_of, holds_of
from placewise_service.state.keys import BUNDLES, REGISTRY, keys_of
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry
from placewise_slurm import main as slurm_cli
from placewise_slurm.config import BridgeConfig
from placewise_training.cli import simulate_app
from placewise_training.sim.divisible import DivisibleWorkload, HeatSimulation, heat_cluster
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import PipelineWorkload
from placewise_training.sim.pipelines.choosers import PolicyChooser
from placewise_training.sim.pipelines.engine import PipelineSimulation
from placewise_training.sim.pipelines.units import EctUnits, IawpUnits, PatsUnits, RandomUnits

NOW_S = 1_800_000_000.0
Watch = Callable[[str, Mapping[str, np.ndarray], Mapping[str, np.ndarray]], None]


def bundle_folder() -> Path:
    """Folder of the bundle that the service ships."""
    return Path(shipped_bundle())


def nets_of_bundle() -> dict[str, str]:
    """SHA-256 → file name of each net of the shipped bundle."""
    manifest = json.loads((bundle_folder() / "manifest.json").read_bytes())
    return {digest: name for name, digest in manifest["files"].items() if name.endswith(".onnx")}


class Service:
    """The service behind its faces, on the in-memory store and a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_S)
        self.store = MemoryStore(self.clock)
        # Each record has its observation, and none has alternatives: drawn at random otherwise.
        settings = Settings(
            _env_prefix="PLACEWISE_GOLDEN_NET_", declog={"observe_share": 1.0, "alternatives_share": 0.0}
        )
        self.engine = make_engine(settings, self.store, self.clock, MutedTelemetry())
        self._gateway = Gateway(self.engine, self.clock, settings.limits, Open(), self.engine._parts.telemetry)

    @property
    def place_policies(self) -> list[str]:
        """Every placement policy that the shipped bundle allows."""
        return sorted(self.engine.place_policies)

    @property
    def admit_policies(self) -> list[str]:
        """Every admission policy."""
        return sorted(self.engine._parts.registry.shadows.active.admission)

    def pass_time(self, seconds: float) -> None:
        """Moves the wall clock alone: a view is stale by the other one, as soon as it has not heard of the store."""
        self.clock.jump(self.clock.now_s() + seconds)

    async def ask(self, rpc: str, message: Message) -> Message:
        """One call as a face makes it; raises PlacewiseError. Events that follow from it are applied on return."""
        found = RPCS[rpc]
        answer = await self._gateway.call(
            found, found.request.FromString(message.SerializeToString()), NOBODY, math.inf
        )
        answer = found.response.FromString(answer.SerializeToString())
        for _ in range(4):  # the view hears from the store when the answer is on its way
            await asyncio.sleep(0)
        self.engine._parts.telemetry.afterwards.run()  # else records are in the order of a timer
        return answer

    async def flush(self) -> None:
        """Hands all that was decided to the log."""
        await self.engine._parts.sink.flush()

    async def records(self, cluster: str) -> list[dict[str, Any]]:
        """Every record of the cluster's decision log, as it is kept, arrays as lists."""
        await self.flush()
        found = await self.store.read_decisions(cluster, "0", 100_000)
        records = [_plain(msgspec.msgpack.decode(data)) for _, data in found]
        for record in records:
            record[3].update(epoch="E" if record[3].get("epoch") else "")  # made up by the store
            for read in record[3].get("reads", ()):
                read["view"] = "V"  # made up by each load
        return records

    async def close(self) -> None:
        await self.engine.close()


@asynccontextmanager
async def serving(watch: Watch | None = None) -> AsyncIterator[Service]:
    """A service that nobody asked anything. `watch(net, inputs, outputs)` hears of each run of a net."""
    with _quiet(), watched(watch) if watch is not None else contextlib.nullcontext():
        service = Service()
        try:
            yield service
        finally:
            await service.close()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Sessions opened meanwhile report their inputs and outputs. Nets that the tests keep open are opened again."""
    nets_once.opened.cache_clear()
    original, names = onnxruntime.InferenceSession, nets_of_bundle()

    class Watched:
        def __init__(self, content: bytes, *args: Any, **kwargs: Any) -> None:
            self._session = original(content, *args, **kwargs)
            self._name = names.get(hashlib.sha256(content).hexdigest(), "unknown")

        def run(self, outputs: Any, feeds: Mapping[str, Any], *rest: Any) -> Any:
            given = self._session.run(outputs, feeds, *rest)
            names = outputs or [output.name for output in self._session.get_outputs()]
            watch(
                self._name,
                {name: np.array(value) for name, value in feeds.items()},
                {name: np.array(value) for name, value in zip(names, given, strict=True)},
            )
            return given

        @property
        def _sess(self) -> "Watched":
            """Nets are run by the native session: that is watched too."""
            return self

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

    onnxruntime.InferenceSession = Watched  # type: ignore[misc]
    try:
        yield
    finally:
        onnxruntime.InferenceSession = original  # type: ignore[misc]
        nets_once.opened.cache_clear()


def numbers(array: np.ndarray) -> Any:
    """Nested lists of the shortest numbers that give the array's values back."""
    if array.dtype == np.float32:
        return np.array([float(str(value)) for value in array.ravel()]).reshape(array.shape).tolist()
    return array.tolist()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"dtype", "shape", "data"}:
            array = np.frombuffer(value["data"], dtype=value["dtype"]).reshape(value["shape"])
            return {"dtype": value["dtype"], "shape": value["shape"], "data": numbers(array.ravel())}
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def place_policies() -> list[str]:
    """Every placement policy that the shipped bundle allows."""
    return asyncio.run(_of_service(lambda service: service.place_policies))


def admit_policies() -> list[str]:
    """Every admission policy."""
    return asyncio.run(_of_service(lambda service: service.admit_policies))


async def _of_service(found: Callable[[Service], list[str]]) -> list[str]:
    async with serving() as service:
        return found(service)


def settings_variables() -> Iterator[tuple[str, Any]]:
    """(variable, its field) of every setting."""
    return variables()


def metric_families() -> Iterator[tuple[str, str, list[str]]]:
    """(name, type, labels) of every metric of the service, but for those of the process itself."""
    for collector in list(Telemetry().registry._collector_to_names):
        if hasattr(collector, "_labelnames"):
            yield collector._name, collector._type, list(collector._labelnames)
        elif not isinstance(collector, ProcessCollector):
            for family in collector.collect():
                yield family.name, family.type, list(family._labelnames)


def adapter_metrics() -> str:
    """Metrics of a fresh adapter in Prometheus' text format, each labelled one counted once."""
    metrics = AdapterMetrics()
    for metric in vars(metrics).values():
        if getattr(metric, "_labelnames", ()):
            metric.labels("x").inc()
    return re.sub(r"(?m)\.0$", "", metrics.text())


def rest_paths() -> list[tuple[str, str]]:
    """(method, path) of everything that the REST face answers."""

    async def ask() -> list[tuple[str, str]]:
        async with serving() as service:
            app = rest_app(service._gateway)
            return sorted((method, route.path) for route in app.routes for method in sorted(route.methods))

    return asyncio.run(ask())


def rpc_table() -> list[dict[str, str]]:
    """Every call of the contract, with who may make it."""
    return [
        {"path": rpc.path, "request": rpc.request.DESCRIPTOR.full_name, "response": rpc.response.DESCRIPTOR.full_name,
         "scope": rpc.scope.value, "reach": rpc.reach.name}
        for rpc in RPCS.values()
    ]  # fmt: skip


def rest_table() -> list[dict[str, Any]]:
    """Where each call of the contract lives in REST."""
    return [
        {"method": r.method, "path": r.path, "rpc": r.rpc.name, "body": r.body, "query": list(r.query)} for r in ROUTES
    ]


def redis_keys() -> list[str]:
    """Every key of a cluster "c", in the order that scripts are given them, and those beside clusters."""
    return [*keys_of("c").all, REGISTRY, BUNDLES]


def log_schemas() -> dict[str, Any]:
    """Arrow schemas of the exported decision log, and of its rows joined with outcomes."""
    return {**SCHEMAS, "joined": JOINED_SCHEMA}


def errors() -> dict[str, tuple[int, int]]:
    """Reason → gRPC code and HTTP status of every error that callers may see."""
    found, todo = {}, [PlacewiseError]
    while todo:
        error = todo.pop()
        found[error.reason] = (error.grpc_code, error.http_status)
        todo += error.__subclasses__()
    return found


def command_line() -> Any:
    """The command `placewise`."""
    return get_command(cli_app)


def adapter_parsers() -> dict[str, Any]:
    """Command lines of the adapters."""
    return {"placewise-kubernetes": kubernetes_cli._parser(), "placewise-slurm": slurm_cli._parser()}


def adapter_configs() -> dict[str, type]:
    """The settings that the adapters' files may hold."""
    return {"kubernetes": KubernetesConfig, "slurm": BridgeConfig}


def kubernetes_names() -> dict[str, Any]:
    """Labels and annotations that the Kubernetes adapter reads and writes."""
    return {name: value for name, value in vars(kubernetes_labels).items() if name.isupper()}


def foreign_prefixes() -> list[str]:
    """Starts of variables that belong to other programs."""
    return list(FOREIGN_PREFIXES)


async def stored(cluster: str, service: Service) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of everything that the state store would keep of the cluster in Redis."""
    loaded = await service.store.load(cluster)
    assert loaded is not None
    records, _ = loaded
    found = [(f"node {node.id}", codec.encode_record(node)) for node in records.nodes]
    found += [(f"job {job.id}", codec.encode_record(job)) for job in records.jobs]
    found += [(f"queue {name}", codec.encode_record(queue)) for name, queue in records.queues.items()]
    found += [("settings", codec.encode_record(records.settings))]
    found += [(f"capacity {node.id}", codec.encode(capacity_of(node))) for node in records.nodes]
    found += [(f"holds {job.id}", codec.encode(holds_of(job))) for job in records.jobs]
    return iter(found)


async def remembered(cluster: str, request_id: str, service: Service) -> bytes:
    """The stored form of an answer, for a replica that gets the same request again."""
    first = await service.store.recall(cluster, request_id)
    return bytes(first.answer)


def fingerprint_of(request: Message) -> str:
    """By which replicas know that a question is the same."""
    return fingerprint(request, "somebody").hex()


def feature_hashes() -> dict[str, str]:
    """Hash of the tables that each model reads."""
    return {model: str(feature_schema(model)["hash"]) for model in ("policy", "reward")}


def simulate(args: list[str]) -> None:
    """`placewise simulate` with these arguments."""
    get_command(simulate_app).main(args, standalone_mode=False)


def simulate_pipelines(policy: str, units: str, seeds: int) -> list[str]:
    """Event hashes of sixty pipelines on four nodes, by a placement policy and a policy for units."""

    async def run() -> list[str]:
        async with serving() as service:
            placing = service.engine._placing.placer.policies[policy]
            return [_pipelines(PolicyChooser(placing, seed), _UNITS[units](), seed) for seed in range(seeds)]

    return asyncio.run(run())


_UNITS: dict[str, Callable[[], Any]] = {"iawp": IawpUnits, "ect": EctUnits, "pats": PatsUnits, "random": RandomUnits}


def _pipelines(chooser: Any, units: Any, seed: int) -> str:
    tasks = PipelineWorkload(tasks=60, per_minute=30).generate("judge", seed)
    return str(PipelineSimulation(ldwp_cluster(4), tasks, "judge", chooser, units, seed=seed).run().event_hash)


def simulate_heat(seeds: int) -> list[str]:
    """Event hashes of sixty divisible tasks split by the partition policy of the shipped bundle."""
    capability = json.loads((bundle_folder() / "capability.json").read_bytes())
    found = []
    for seed in range(seeds):
        tasks = DivisibleWorkload(tasks=60, per_minute=2.0).generate(seed)
        found.append(HeatSimulation(heat_cluster(), tasks, partition_policy(capability), seed=seed).run().event_hash)
    return found

"""Logs of simulated sites for the gate, and candidates that must not pass it."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper
from tests.fakes.logs.simulated_log import simulated_log

from placewise_models.bundle import MANIFEST, Manifest, schema_of, write_manifest
from placewise_models.folder import shipped_bundle
from placewise_models.reward import REWARD_MODEL, REWARD_REPORT
from placewise_models.session import open_session
from placewise_training.log.placed import REWARD
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload


def site(folder: Path, seed: int, jobs: int, policies: tuple[str, str]) -> Path:
    """A log of `jobs` jobs: the first policy is in force, the second explores half of them."""
    truth = make_truth("site", seed)
    made = HarmonyWorkload(jobs=jobs, per_interval=3.0, pattern="poisson").generate(truth, seed)
    asyncio.run(simulated_log(folder, harmony_cluster(6), made, truth, policies=policies, seed=seed, has_views=True))
    return folder


def shuffled(log: Path, into: Path, seed: int = 0) -> Path:
    """The same log with rewards and stretches of run time dealt out again among the jobs."""
    shutil.copytree(log, into)
    rng = np.random.default_rng(seed)
    for path in into.glob("joined/*/*.parquet"):
        table = pq.ParquetFile(path).read()
        column = table.column(REWARD).to_pylist()
        known = [i for i, value in enumerate(column) if value is not None]
        for i, j in zip(known, rng.permutation(known), strict=True):
            column[i] = table.column(REWARD)[int(j)].as_py()
        pq.write_table(_with(table, REWARD, column), path)
    for path in into.glob("runs/*/*.parquet"):
        table = pq.ParquetFile(path).read()
        rows = table.to_pylist()
        ended = [row for row in rows if row["end"] == "FINISHED"]
        stretch = rng.permutation([(row["end_time_s"] - row["start_time_s"]) / row["total_epochs"] for row in ended])
        for row, per_epoch in zip(ended, stretch, strict=True):
            start_s, took_s = row["start_time_s"], row["end_time_s"] - row["start_time_s"]
            ratio = per_epoch * row["total_epochs"] / took_s
            row["times_s"] = [start_s + (time_s - start_s) * ratio for time_s in row["times_s"]]
            row["end_time_s"] = start_s + took_s * ratio
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    return into


def _with(table: pa.Table, name: str, values: list[object]) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


def flipped(folder: Path) -> Path:
    """The shipped bundle with its reward model upside down: the slower a placement, the faster it says it is."""
    shutil.copytree(shipped_bundle(), folder)
    model = onnx.load(str(folder / REWARD_MODEL))
    for node in model.graph.node:
        node.output[:] = ["upright" if name == "speed" else name for name in node.output]
    model.graph.initializer.append(helper.make_tensor("least", TensorProto.FLOAT, [], [0.05]))
    model.graph.initializer.append(helper.make_tensor("fastest", TensorProto.FLOAT, [], [0.5]))
    model.graph.node.append(helper.make_node("Add", ["upright", "least"], ["above"]))
    model.graph.node.append(helper.make_node("Div", ["fastest", "above"], ["speed"]))
    onnx.save(model, str(folder / REWARD_MODEL))
    report = json.loads((folder / REWARD_REPORT).read_text("utf-8"))
    sample = report["sample"]
    feeds = {
        "tokens": np.asarray(sample["tokens"], dtype=np.float32),
        "job": np.asarray(sample["job"], dtype=np.int64),
        "node": np.asarray(sample["node"], dtype=np.int64),
    }
    session = open_session((folder / REWARD_MODEL).read_bytes(), REWARD_MODEL)
    sample["speed"] = session.run(["speed"], feeds)[0].tolist()
    (folder / REWARD_REPORT).write_text(json.dumps(report), "utf-8")
    files = [path.name for path in folder.iterdir() if path.suffix in (".onnx", ".json") and path.name != MANIFEST]
    write_manifest(folder, Manifest(folder.name, "", dict.fromkeys(files, ""), feature_schema=schema_of(files)))
    return folder

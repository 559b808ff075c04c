"""Metrics and logs: counters, their form, and tracing costs nothing if it is off."""

import contextlib
import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.parser import text_string_to_metric_families

from placewise_core.domain.cluster import QueueState
from placewise_service.settings import LogSettings
from placewise_service.telemetry import Telemetry, configure_logging

METRICS_DOC = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_a_decision_is_counted_once_in_each_metric() -> None:
    telemetry = Telemetry()
    telemetry.decision("Place", "tetris", "PLACED", True, 0.002)
    telemetry.conflict("prod")
    queue = QueueState("q", backlog_s=12.0, delay_s=3.0, waiting={"a": 1.0, "b": 1.0})
    telemetry.show_queues(lambda: [("prod", queue)], 10)
    telemetry.view_lag("prod", 0.25)
    telemetry.log_drops(4)
    values = samples(telemetry)
    assert values["placewise_decision_seconds_count", "Place", "tetris"] == 1
    assert values["placewise_decisions_total", "Place", "tetris", "PLACED"] == 1
    assert values["placewise_fallbacks_total", "Place", "tetris"] == 1
    assert values["placewise_conflicts_total", "prod"] == 1
    assert values["placewise_queue_backlog_seconds", "prod", "q"] == 12
    assert values["placewise_queue_delay_seconds", "prod", "q"] == 3
    assert values["placewise_queue_waiting_jobs", "prod", "q"] == 2
    assert values["placewise_view_lag_seconds", "prod"] == 0.25
    assert values[("placewise_decision_log_dropped_total",)] == 4


def see(telemetry: Telemetry, cluster: str) -> None:
    """Moves every metric that names a cluster."""
    telemetry.view_lag(cluster, 0.25)
    telemetry.conflict(cluster)
    telemetry.overcommits(cluster, 1)
    telemetry.unknown_starts(cluster, 1)
    telemetry.profiles_refused(cluster, 1)
    telemetry.forecast_ratio(cluster, "bundle", 1.0)
    telemetry.input_psi(cluster, "column", 0.1)
    telemetry.unseen_job(cluster, "model", "net")
    telemetry.canary_evidence("bundle", cluster, "no_fit", 0.0)


def test_nothing_is_left_of_a_cluster_that_is_gone_and_one_of_its_name_starts_again() -> None:
    telemetry = Telemetry()
    see(telemetry, "here")
    begun = samples(telemetry)
    labels = re.findall(r"^\| `(placewise_\w+)` \| \w+ \| [^|]*\bcluster\b", METRICS_DOC.read_text(), re.MULTILINE)
    assert {name for name in labels if "_queue_" not in name} <= {key[0].removesuffix("_count") for key in begun}
    for i in range(3):
        see(telemetry, f"gone-{i}")
        telemetry.forget_all_but({"here"})
        assert samples(telemetry).keys() == begun.keys()
    see(telemetry, "gone-0")
    assert samples(telemetry)["placewise_conflicts_total", "gone-0"] == 1
    assert samples(telemetry)["placewise_view_lag_seconds", "gone-0"] == 0.25


def test_the_evidence_on_a_canary_of_all_clusters_goes_with_none_of_them() -> None:
    telemetry = Telemetry()
    telemetry.canary_evidence("next", "", "speed", 1.5)
    telemetry.forget_all_but({"here"})
    assert 'placewise_canary_evidence{bundle="next",cluster="",guard="speed"} 1.5' in telemetry.render().decode()


WORKER = """
import sys
from placewise_core.domain.cluster import QueueState
from placewise_service.telemetry import Telemetry
telemetry = Telemetry()
for line in sys.stdin:
    verb, *clusters = line.split()
    if verb == "forget":
        telemetry.forget_all_but(set(clusters))
    for cluster in clusters if verb == "see" else ():
        telemetry.view_lag(cluster, 0.25)
        telemetry.conflict(cluster)
    if verb != "scrape":
        queues = [(cluster, QueueState("q", backlog_s=7.0)) for cluster in clusters]
        telemetry.show_queues(lambda: queues, 10)
    print(telemetry.render().decode(), end="#\\n", flush=True)
"""


@pytest.mark.process
def test_workers_that_share_their_metrics_show_no_cluster_that_is_gone(tmp_path: Path) -> None:
    shared = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    gauges = {"placewise_view_lag_seconds", "placewise_queue_backlog_seconds", "placewise_conflicts_total"}
    with contextlib.ExitStack() as stack:
        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        first, second = (
            stack.enter_context(subprocess.Popen([sys.executable, "-c", WORKER], env=shared, **ends)) for _ in range(2)
        )

        def shows(worker: subprocess.Popen[str], reported: str) -> set[str]:
            """Which of those metrics a worker shows of "gone", after an event at that worker."""
            assert worker.stdin
            assert worker.stdout
            worker.stdin.write(reported + "\n")
            worker.stdin.flush()
            lines = list(iter(worker.stdout.readline, "#\n"))
            assert any('cluster="here"' in line and line.startswith("placewise_view_lag_seconds") for line in lines)
            return {line.partition("{")[0] for line in lines if 'cluster="gone"' in line} & gauges

        for worker in (first, second):
            assert shows(worker, "see gone here") == gauges
        assert shows(first, "forget here") == set()
        assert shows(second, "scrape") == gauges, "it has not heard of the deletion yet"
        assert shows(second, "forget here") == set()
        assert shows(first, "see gone here") == gauges, "a cluster of that name again"
        assert shows(second, "scrape") == set(), "which it has not met yet"


@pytest.mark.process
def test_the_files_of_workers_stop_growing_however_many_clusters_come_and_go(tmp_path: Path) -> None:
    """The library takes no series out of its files."""
    shared = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    rounds = [" ".join(f"c{i}-{j}" for j in range(600)) for i in range(4)]
    series = []
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], env=shared, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin
        assert worker.stdout
        for reported in [line for names in rounds for line in (f"see {names}", "forget here")]:
            worker.stdin.write(reported + "\n")
            worker.stdin.flush()
            lines = list(iter(worker.stdout.readline, "#\n"))
            files = tmp_path.glob("*.db")
            series.append(sum(len(list(MmapedDict.read_all_values_from_file(str(path)))) for path in files))
    assert any('placewise_conflicts_total{cluster="(others)"} 1400.0' in line for line in lines)
    assert not any('cluster="c' in line for line in lines)
    assert series[0] < series[2] == series[-1]


@pytest.mark.process
def test_workers_that_share_their_metrics_show_a_queue_once_as_the_one_that_is_asked_has_it(tmp_path: Path) -> None:
    shared = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    reported = ["see here\n" * 2, "scrape\n"]  # the second knows of no queue
    for printed, wanted in zip(reported, [["7.0"], []], strict=True):
        words = [sys.executable, "-c", WORKER]
        done = subprocess.run(words, env=shared, input=printed, capture_output=True, text=True, check=True)
        page = done.stdout.split("#\n")[-2]
        lines = [line for line in page.splitlines() if line.startswith("placewise_queue_backlog_seconds{")]
        assert [line.split()[-1] for line in lines] == wanted


def test_counters_are_there_before_anything_has_moved_them() -> None:
    telemetry = Telemetry()
    telemetry.start_at_zero(["Place"], ["tetris"])
    telemetry.view_lag("prod", 0.0)
    values = samples(telemetry)
    assert values["placewise_shed_total", "Place"] == 0
    assert values["placewise_fallbacks_total", "Place", "tetris"] == 0
    assert values["placewise_conflicts_total", "prod"] == 0


def samples(telemetry: Telemetry) -> dict[tuple[str, ...], float]:
    order = ("cluster", "queue", "rpc", "policy", "outcome", "code")
    found = {}
    for family in text_string_to_metric_families(telemetry.render().decode()):
        for sample in family.samples:
            if "le" not in sample.labels:
                found[(sample.name, *(sample.labels[name] for name in order if name in sample.labels))] = sample.value
    return found


def test_without_an_endpoint_a_span_is_one_shared_nothing() -> None:
    telemetry = Telemetry()
    with telemetry.span("place", jobs=1):
        pass
    assert telemetry.span("a") is telemetry.span("b")


def test_logs_are_one_json_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        configure_logging(LogSettings())
        structlog.get_logger().info("decided", decision_id="d-1")
        structlog.get_logger().debug("not shown")
    finally:
        structlog.reset_defaults()
    [line] = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["decision_id"], entry["level"]) == ("decided", "d-1", "info")


def test_a_line_is_written_in_one_piece_as_workers_share_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[str] = []

    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stderr", Recorder())
    try:
        configure_logging(LogSettings())
        structlog.get_logger().info("draining")
        logging.getLogger("a.library").warning("so it is")
    finally:
        structlog.reset_defaults()
    assert [json.loads(piece)["event"] for piece in pieces] == ["draining", "so it is"]
    assert all(piece.endswith("\n") for piece in pieces)


def test_a_traceback_in_text_shows_no_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(password: str) -> None:
        raise RuntimeError("no")

    try:
        configure_logging(LogSettings(format="text"))
        try:
            fail("hunter2")
        except RuntimeError:
            structlog.get_logger().exception("unforeseen")
    finally:
        structlog.reset_defaults()
    written = capsys.readouterr().err
    assert "RuntimeError: no" in written
    assert "hunter2'" not in written  # the line of code shows it in other quotes


def test_every_metric_stands_in_the_documents() -> None:
    documented = set(re.findall(r"^\| `(placewise_\w+)`", METRICS_DOC.read_text(encoding="utf-8"), re.MULTILINE))
    families = [family for family in Telemetry().registry.collect() if family.name.startswith("placewise_")]
    missing = {family.name + "_total" * (family.type == "counter") for family in families} - documented
    assert not missing, "add a row to docs/metrics.md"

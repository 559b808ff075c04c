"""The bridge's configuration: errors are named, and the hooks carry the site's values."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from placewise_client import TargetError
from placewise_client.adapter.sections import ConfigError
from placewise_slurm import config
from placewise_slurm.hooks import SCRIPTS, write_hooks
from placewise_slurm.main import EXIT_CONFIG, EXIT_UNREACHABLE, main

EXAMPLE = Path(__file__).parents[3] / "clients" / "slurm" / "slurm.toml.example"


def test_the_example_is_valid_and_names_every_setting() -> None:
    loaded = config.load(EXAMPLE)
    assert loaded.adapter.cluster
    text = EXAMPLE.read_text()
    import dataclasses

    for name, kind in config._SECTIONS.items():
        assert f"[{name}" in text
        missing = [item.name for item in dataclasses.fields(kind) if item.name not in text]
        assert missing == []


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({}, "cluster"),
        ({"adapter": {"cluster": "c"}, "slrum": {}}, r"\[slrum\]"),
        ({"adapter": {"cluster": "c", "depht": 1}}, "adapter.depht"),
        ({"adapter": {"cluster": "c", "resync_s": "5"}}, "adapter.resync_s"),
        ({"adapter": {"cluster": "c", "resync_s": -5}}, "adapter.resync_s"),
        ({"adapter": {"cluster": "c", "is_dry_run": 1}}, "adapter.is_dry_run"),
        ({"adapter": {"cluster": "c"}, "slurm": {"version": "v0.0.39"}}, "slurm.version"),
        ({"adapter": {"cluster": "c"}, "slurm": {"at_once": 0}}, "slurm.at_once"),
        ({"adapter": {"cluster": "c"}, "slurm": {"rest": "slurmrestd"}}, "slurm.rest"),
        ({"adapter": {"cluster": "c"}, "slurm": {"ca_file": "/etc/ca.pem"}}, "slurm.ca_file"),
        ({"adapter": 5}, "adapter: give a section"),
        ({"adapter": {"cluster": ""}}, "adapter.cluster"),
        ({"adapter": {"cluster": "c", "batch": 0}}, "adapter.batch"),
        ({"adapter": {"cluster": "c", "depth": -1}}, "adapter.depth"),
        ({"adapter": {"cluster": "c"}, "hooks": {"partitions": "gpu"}}, "hooks.partitions.*list of texts"),
        ({"adapter": {"cluster": "c"}, "hooks": {"partitions": [1]}}, "hooks.partitions"),
        ({"adapter": {"cluster": "c"}, "site": {"priorities": ["high"]}}, "site.priorities"),
        ({"adapter": {"cluster": "c"}, "site": {"priorities": {"high": 1}}}, "site.priorities"),
        ({"adapter": {"cluster": "c"}, "site": {"priorities": {"high": "hot"}}}, "site.priorities"),
    ],
)
def test_bad_configurations_name_the_key(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config.parse(raw)


def test_a_token_goes_to_another_machine_without_tls_where_it_is_said() -> None:
    service: dict[str, Any] = {"address": "http://pw:8080", "token_file": "/etc/placewise/token"}
    with pytest.raises(TargetError, match="allow_plaintext_token"):
        config.parse({"adapter": {"cluster": "c"}, "service": service}).service.target().check()
    raw = {"adapter": {"cluster": "c"}, "service": service | {"allow_plaintext_token": True}}
    config.parse(raw).service.target().check()


@pytest.mark.parametrize(
    ("rest", "is_refused"),
    [
        ("slurm.example:6820", True),
        ("http://10.0.0.5:6820", True),
        ("https://slurm.example:6820", False),
        ("127.0.0.1:6820", False),
        ("localhost:6820", False),
        ("unix:/run/slurmrestd/slurmrestd.sock", False),
    ],
)
def test_slurms_token_goes_to_another_machine_without_tls_where_it_is_said(rest: str, is_refused: bool) -> None:
    slurm = {"rest": rest, "user": "slurm", "token_file": "/etc/placewise/slurm.jwt"}
    raw: dict[str, Any] = {"adapter": {"cluster": "c"}, "slurm": slurm}
    if is_refused:
        with pytest.raises(ConfigError, match=r"slurm\.rest: .*allow_plaintext_token"):
            config.parse(raw)
        raw["slurm"] = slurm | {"allow_plaintext_token": True}
    assert config.parse(raw).slurm.rest == rest
    config.parse({"adapter": {"cluster": "c"}, "slurm": {"rest": rest}})  # without a token nothing is at stake


def test_slurms_token_in_clear_is_refused_by_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "slurm.toml"
    path.write_text('[adapter]\ncluster = "c"\n[slurm]\nrest = "10.0.0.5:6820"\ntoken_file = "/etc/jwt"\n')
    for command in (["check"], ["run"], ["hooks", "--output", str(tmp_path)]):
        assert main(["--config", str(path), *command]) == EXIT_CONFIG
        assert "10.0.0.5:6820 in plain text" in capsys.readouterr().err


def test_check_refuses_what_fails_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "slurm.toml"
    path.write_text(
        '[adapter]\ncluster = "c"\n[service]\naddress = "http://127.0.0.1:9"\n'
        '[slurm]\nrest = "https://127.0.0.1:9"\nca_file = "/nowhere/ca.pem"\n'
        '[hooks]\nshares_dir = ""\npartitions = ["gpu\\n"]\n'
    )
    assert main(["--config", str(path), "check"]) == EXIT_UNREACHABLE
    message = capsys.readouterr().err
    assert "/nowhere/ca.pem" in message
    assert "use only letters, digits and" in message


def test_a_second_bridge_on_the_host_ends_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one listens for the hooks' datagrams; two would decide for the same jobs."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as first:
        first.bind(("127.0.0.1", 0))
        path = tmp_path / "slurm.toml"
        path.write_text(
            f'[adapter]\ncluster = "c"\n[hooks]\nlisten_port = {first.getsockname()[1]}\nshares_dir = ""\n'
            "[metrics]\nport = 0\n"
        )
        assert main(["--config", str(path), "run"]) == EXIT_UNREACHABLE
    assert "in use" in capsys.readouterr().err


def test_a_bad_file_is_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "slurm.toml"
    path.write_text("[adapter\n")
    assert main(["--config", str(path), "check"]) == EXIT_CONFIG
    assert str(path) in capsys.readouterr().err


def parsed(**hooks: Any) -> config.BridgeConfig:
    return config.parse({"adapter": {"cluster": "c"}, "hooks": hooks})


@pytest.mark.parametrize("folder", ["missing", ""])
def test_hooks_that_cannot_be_written_are_one_line(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "slurm.toml"
    partition = "gpu" if folder else "x] = os"
    path.write_text(f'[adapter]\ncluster = "c"\n[hooks]\npartitions = ["{partition}"]\n')
    assert main(["--config", str(path), "hooks", "--output", str(tmp_path / folder)]) == EXIT_CONFIG
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("placewise-slurm: ")


def test_hooks_are_written_executable_and_filled_in(tmp_path: Path) -> None:
    written = write_hooks(parsed(listen_port=6831, partitions=["gpu", "big"]), tmp_path)
    assert [path.name for path in written] == list(SCRIPTS)
    for path in written:
        text = path.read_text()
        assert "@POKE" not in text
        assert os.access(path, os.X_OK)
    assert '["gpu"] = true, ["big"] = true' in (tmp_path / "job_submit.lua").read_text()
    assert "/dev/udp/127.0.0.1/6831" in (tmp_path / "jobcomp.sh").read_text()


@pytest.mark.parametrize("name", ['x"] = os.execute("id', "gpu\n", "gpu\nos.execute()"])
def test_a_name_that_would_be_program_text_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="script"):
        write_hooks(parsed(partitions=[name], listen_port=1), tmp_path)


@pytest.mark.process
def test_task_prolog_prints_the_share_of_its_task(tmp_path: Path) -> None:
    write_hooks(parsed(shares_dir=str(tmp_path)), tmp_path)
    (tmp_path / "42").write_text("n1 gpu0 10 1.5\nn1 gpu1 20 3\nn2 gpu0 10 1.5\n")

    def run(node: str, rank: int, job: int = 42) -> str:
        environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": str(job)}
        environment |= {"SLURMD_NODENAME": node, "SLURM_LOCALID": str(rank)}
        return subprocess.run(
            [tmp_path / "task_prolog.sh"], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert run("n1", 1).splitlines() == [
        "export PLACEWISE_SHARE_SCALE=20",
        "export PLACEWISE_SHARE_FRACTION=0.5",
        "export PLACEWISE_SHARE_UNIT=gpu1",
        "export PLACEWISE_SHARE_SECONDS=3",
    ]
    assert run("n2", 0).startswith("export PLACEWISE_SHARE_SCALE=10")
    assert run("n3", 0) == run("n1", 2) == run("n1", 0, job=43) == ""


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_takes_every_line_of_the_unit(tmp_path: Path) -> None:
    text = (EXAMPLE.parent / "systemd" / "placewise-slurm.service").read_text()
    unit = tmp_path / "placewise-slurm.service"
    # The unit's program is not installed here, and the user may not exist.
    unit.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", text).replace("User=slurm", "User=root"))
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert [line for line in checked.stderr.splitlines() if unit.name in line] == []


LUA = shutil.which("lua5.3") or shutil.which("lua")


@pytest.mark.process
@pytest.mark.skipif(LUA is None, reason="no Lua interpreter")
@pytest.mark.parametrize(
    ("job", "priority"),
    [
        ("partition='gpu'", 0),
        ("partition='cpu'", None),
        ("", 0),  # the default partition is gpu
        ("partition='cpu', comment='placewise model=x'", 0),
        ("partition='gpu', comment='placewise=off'", None),
        ("partition='cpu', comment='notplacewise'", None),
        ("partition='gpu', array_inx='1-4'", None),
        ("partition='gpu', req_nodes='n1'", None),
        ("partition='gpu', immediate=1", None),
        ("partition='gpu', begin_time=1900000000", None),
        ("partition='gpu', dependency='afterok:7'", None),
        ("partition='gpu,cpu', comment='placewise'", None),
        ("partition='gpu', exc_nodes='n1'", None),
        ("partition='gpu', reservation='maintenance'", None),
        ("partition='gpu', shared=0", None),
        ("partition='gpu', shared=65534", 0),
        ("partition='gpu', tres_per_socket='gres:gpu:1'", None),
        ("partition='gpu', features='a100&ib'", 0),
        ("partition='gpu', features='a100|v100'", None),
        ("partition='gpu', features='[rack1*2]'", None),
        ("partition='gpu', het_job_offset=0", None),
        ("partition='gpu', het_job_offset=4294967294", 0),
        ("partition='gpu', tres_per_node='gres:shard:4'", None),
        ("partition='gpu', tres_per_node='gres/gpu:1,gres/shard:4'", None),
        ("partition='gpu', tres_per_task='gres:mps:50'", None),
        ("partition='gpu', tres_per_node='gres:gpu:a100_1g.5gb:1'", None),
        ("partition='gpu', tres_per_job='gres:gpu:3g.40gb=2'", None),
        ("partition='gpu', tres_per_node='gres:gpu:a100-sxm4-80gb:1'", 0),
    ],
)
@pytest.mark.parametrize("is_heard", [True, False])
def test_the_submit_hook(tmp_path: Path, job: str, priority: int | None, is_heard: bool) -> None:
    """With the socket library replaced by one that is heard or refused."""
    write_hooks(parsed(partitions=["gpu"]), tmp_path)
    answer = "'timeout'" if is_heard else "'connection refused'"
    program = f"""
    slurm = {{ SUCCESS = 0, log_error = print }}
    local sent = {{}}
    package.loaded.socket = {{ udp = function() return {{
      settimeout = function() end, setpeername = function() end,
      send = function(_, text) table.insert(sent, text); return 6 end,
      receive = function() return nil, {answer} end }} end }}
    dofile("{tmp_path}/job_submit.lua")
    local job = {{ {job} }}
    assert(slurm_job_submit(job, {{ gpu = {{ flag_default = 1 }}, cpu = {{ flag_default = 0 }} }}, 1000) == 0)
    print(job.priority, job.admin_comment, table.concat(sent, ","))
    """
    assert LUA is not None
    printed = subprocess.run([LUA, "-"], input=program, capture_output=True, text=True, check=True).stdout.split()
    if priority is None:
        assert printed == ["nil", "nil", "other"]
    elif is_heard:
        assert printed == ["0", "placewise:held", "submit"]
    else:
        assert printed == ["nil", "nil", "submit"]


@pytest.mark.parametrize("address", ["https://127.0.0.1:1", "127.0.0.1:1"])
@pytest.mark.parametrize(("command", "code"), [("run", EXIT_CONFIG), ("check", EXIT_UNREACHABLE)])
def test_a_certificate_that_is_not_there_is_named(
    command: str, code: int, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "slurm.toml"
    service = f'[service]\naddress = "{address}"\nca_file = "{tmp_path}/ca.pem"\n'
    path.write_text(f'[adapter]\ncluster = "c"\n{service}[hooks]\nlisten_port = 0\nshares_dir = ""\n')
    assert main(["--config", str(path), command]) == code
    assert f"{tmp_path}/ca.pem" in capsys.readouterr().err

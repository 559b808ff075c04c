"""Finds or builds the binaries of a real control plane: kube-apiserver, kube-scheduler and etcd.

Order: `KUBEBUILDER_ASSETS` if set; a cache directory; a build from Go modules of the release (some 15 minutes of two
cores' time, and 5 GiB for Go's caches). It never installs anything and never needs root: a missing program is named,
so that a test can be skipped with the reason. `python -m tests.e2e.kubernetes.kubernetes_binaries` prints the
directory, or ends with 75 and the reason on standard error.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

VERSION = "v1.37.2"
MODULE = "k8s.io/kubernetes"
ETCD = "go.etcd.io/etcd/server/v3"
PACKAGES = {"etcd": ETCD} | {name: f"{MODULE}/cmd/{name}" for name in ("kube-apiserver", "kube-scheduler")}
NAMES = tuple(PACKAGES)
UNAVAILABLE = 75
LIMIT = "PLACEWISE_TEST_BUILD_LIMIT_S"


class BinariesUnavailableError(Exception):
    """No control plane can be had here; the message names the missing program."""


def find(environ: Mapping[str, str] = os.environ) -> Path:
    """Directory that holds every binary of NAMES.

    Raises:
        BinariesUnavailableError: they are neither given, nor cached, nor can they be built here.
    """
    assets = environ.get("KUBEBUILDER_ASSETS", "")
    if assets:
        return _checked(Path(assets))
    binaries = cache_directory(environ)
    binaries.mkdir(parents=True, exist_ok=True)
    with (binaries / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once must not build into one another
        if _missing(binaries):
            build(binaries, float(environ.get(LIMIT, "inf")))
    return _checked(binaries)


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of a build between runs."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "placewise" / "kubernetes" / VERSION


def build(binaries: Path, limit_s: float = float("inf")) -> None:
    """Builds the missing binaries, each under its name as soon as it is complete."""
    stop_s = time.monotonic() + limit_s
    if shutil.which("go") is None:
        raise BinariesUnavailableError("a build needs Go: https://go.dev/dl, of the release's go.mod or newer")
    work = binaries / "module"
    work.mkdir(exist_ok=True)
    found = json.loads(_run(["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"], work, stop_s))
    (work / "go.mod").write_text(module(Path(found["GoMod"]).read_text()))
    for name in _missing(binaries):
        command = ["go", "build", "-mod=mod", "-trimpath", "-p", "2", "-ldflags", _stamp(), "-o", f"../.{name}"]
        _run([*command, PACKAGES[name]], work, stop_s)
        (binaries / f".{name}").rename(binaries / name)
    shutil.rmtree(work)


def module(upstream: str) -> str:
    """A go.mod to build from: the release's staging modules are replaced by the published ones, and etcd is that of
    its own client."""
    head = re.findall(r"^(?:go|godebug) .*$", upstream, re.MULTILINE)
    etcd = re.findall(r"go\.etcd\.io/etcd/client/v3 (\S+)", upstream)[0]
    staging = re.findall(r"^\s*(?:replace )?(k8s\.io/[a-z-]+) => \./staging/", upstream, re.MULTILINE)
    published = VERSION.replace("v1.", "v0.", 1)
    lines = ["module kubernetes-binaries", *head, f"require {MODULE} {VERSION}", f"require {ETCD} {etcd}"]
    lines += [f"tool {package}" for package in PACKAGES.values()]
    return "\n".join([*lines, *(f"replace {name} => {name} {published}" for name in staging)]) + "\n"


def _stamp() -> str:
    major, minor, _ = VERSION.removeprefix("v").split(".")
    values = {"gitVersion": VERSION, "gitMajor": major, "gitMinor": minor}
    stamps = [f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items()]
    return " ".join(["-s", "-w", *stamps, f"-X k8s.io/client-go/pkg/version.gitVersion={VERSION}"])


def _missing(directory: Path) -> list[str]:
    return [name for name in NAMES if not os.access(directory / name, os.X_OK)]


def _checked(directory: Path) -> Path:
    missing = _missing(directory)
    if missing:
        raise BinariesUnavailableError(f"{directory} lacks {', '.join(missing)}")
    return directory


def _run(command: Sequence[str], cwd: Path, stop_s: float) -> str:
    left_s = None if stop_s == float("inf") else max(0.0, stop_s - time.monotonic())
    environ = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=left_s
        )
    except subprocess.TimeoutExpired as expired:
        raise BinariesUnavailableError(
            f"{' '.join(command[:2])} was not done in the time that {LIMIT} leaves"
        ) from expired
    if done.returncode != 0:
        raise BinariesUnavailableError(f"{' '.join(command[:2])} failed: {done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find()}\n")
    except BinariesUnavailableError as unavailable:
        sys.stderr.write(f"no Kubernetes binaries: {unavailable}\n")
        sys.exit(UNAVAILABLE)

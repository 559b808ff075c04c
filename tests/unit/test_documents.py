"""Everything that the documents name exists: linked files and headings, paths, make targets, commands, settings."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from typer.main import get_command

from placewise_core.policies.registry import placement_policies
from placewise_models.learned import LEARNED_POLICIES
from placewise_service.cli import app
from placewise_service.settings import FOREIGN_PREFIXES, PREFIX, Settings

ROOT = Path(__file__).parent.parent.parent
SOURCES = ("service", "training", "clients", "proto", "deploy", "docs", "tests", "tools")
DOCUMENTS = sorted(
    path.relative_to(ROOT) for pattern in ("*.md", "docs/**/*.md", "*/*/README.md") for path in ROOT.glob(pattern)
)
PATHS = sorted(
    "/" + str(path.relative_to(ROOT))
    for folder in SOURCES
    for path in (ROOT / folder).rglob("*")
    if "__pycache__" not in path.parts
)
FILES = r"\.(py|lua|md|ya?ml|toml|conf|csv|json|proto|onnx|png)$"


def text(document: Path) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def spans(document: Path) -> list[str]:
    """Text in backticks within one line."""
    return re.findall(r"`([^`\n]+)`", text(document))


def is_there(mention: str) -> bool:
    """Paths are named from the root, or from a folder that their document is about."""
    ending = mention.rstrip("/").replace("core/", "placewise_core/") if mention.startswith("core/") else mention
    return any(fnmatchcase(path, f"*/{ending.rstrip('/')}") for path in PATHS)


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text(document)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_paths_are_there(document: Path) -> None:
    named = [span for span in spans(document) if "/" in span and re.search(FILES, span) and " " not in span]
    ours = [span for span in named if not re.match(r"[A-Z_]+/|/|\w+:|build/|var/", span)]
    assert [span for span in ours if not is_there(span)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_make_targets_are_there(document: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z0-9-]+)(?=`|$|  )", text(document), re.MULTILINE)) <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_commands_are_there(document: Path) -> None:
    commands = set(get_command(app).list_commands(None))  # type: ignore[attr-defined]
    assert set(re.findall(r"(?:`|^ *\$ |^    )placewise ([a-z]+)", text(document), re.MULTILINE)) <= commands


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_settings_are_there(document: Path) -> None:
    known = {f"{PREFIX}{name}".upper() for name in Settings.model_fields}
    for name in set(re.findall(rf"\b{PREFIX}[A-Z0-9_]*[A-Z0-9]", text(document))):
        if not f"{name}_".startswith(FOREIGN_PREFIXES):
            assert name.split("__")[0] in known, name


@pytest.mark.parametrize("policy", [*placement_policies(), *LEARNED_POLICIES])
def test_every_placement_policy_has_a_row(policy: str) -> None:
    first_cells = [line.partition("|")[2].partition("|")[0] for line in text(Path("docs/placement.md")).splitlines()]
    assert any(f"`{policy}`" in cell for cell in first_cells), f"add a row for {policy} to docs/placement.md"


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_no_section_is_printed_twice(document: Path) -> None:
    sections = re.split(r"^(?=## )", text(document), flags=re.MULTILINE)[1:]
    assert sorted(set(sections)) == sorted(sections)


def test_every_truth_of_links_and_networks_has_a_source() -> None:
    """Where nobody knows one, the row says that it is assumed."""
    _, _, section = text(Path("docs/truths.md")).partition("### Sources of links, machines and networks")
    rows = re.findall(r"^\| (?!truth )(.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    assert len(rows) >= 10
    cells = [row.split(" | ") for row in rows]
    assert [row for row in cells if len(row) != 4 or not all(cell.strip() for cell in row)] == []

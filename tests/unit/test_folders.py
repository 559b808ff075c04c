"""No folder is a mere listing: at most fifteen Python files stand in one."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 15


@pytest.mark.parametrize(
    "root",
    [
        "service/placewise_models",
        "service/placewise_service",
        "training",
        "tests",
    ],
)
def test_a_folder_has_at_most_fifteen_python_files(root: str) -> None:
    folders = {path.parent for path in (ROOT / root).rglob("*.py")}
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in counts.items() if count > MOST} == {}

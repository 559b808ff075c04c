"""A Volcano that was not given is said to be missing: nothing takes its absence for a run that passed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.volcano.volcano_assets import AssetsUnavailableError, find


def given(folder: Path, *, definitions: bool = True) -> dict[str, str]:
    for name in ("vc-scheduler", "vc-controller-manager"):
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    (folder / "crds").mkdir()
    if definitions:
        (folder / "crds" / "jobs.yaml").write_text("")
    return {"VOLCANO_ASSETS": str(folder)}


def test_a_whole_folder_is_taken(tmp_path: Path) -> None:
    assert find(given(tmp_path)) == tmp_path


@pytest.mark.parametrize("environ", [{}, {"VOLCANO_ASSETS": ""}])
def test_without_the_variable_there_is_none(environ: dict[str, str]) -> None:
    with pytest.raises(AssetsUnavailableError, match="VOLCANO_ASSETS is not set"):
        find(environ)


def test_the_missing_parts_are_named(tmp_path: Path) -> None:
    environ = given(tmp_path, definitions=False)
    (tmp_path / "vc-scheduler").chmod(0o644)
    with pytest.raises(AssetsUnavailableError, match=r"lacks vc-scheduler, crds/\*\.yaml"):
        find(environ)

"""System trees of Slurm's releases: a mounted folder is never deleted with one, and each is of the release named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.e2e.slurm import slurm_tree
from tests.e2e.slurm.slurm_tree import MovedOnError, NoTreeError, check_release, main, mounted, remove

TABLE = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 254:0 /tmp {root}/tmp rw,relatime - ext4 /dev/vda rw
31 22 0:5 / {root}/dev rw - devtmpfs devtmpfs rw
32 31 0:6 / {root}/dev/a\\040b rw - devpts devpts rw
33 22 0:7 / {root}-beside rw - tmpfs tmpfs rw
"""


def test_mounts_of_a_tree_are_found_the_deepest_first() -> None:
    found = mounted(Path("/cache/24.11"), TABLE.format(root="/cache/24.11"))
    assert [str(point) for point in found] == ["/cache/24.11/tmp", "/cache/24.11/dev/a b", "/cache/24.11/dev"]


def test_to_unmount_is_umount_alone_the_deepest_first_and_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = slurm_tree.folder("24.11")
    precious = [root / "tmp" / "precious", root / "dev" / "a b" / "pts"]
    for path in precious:
        path.parent.mkdir(parents=True)
        path.write_text("kept")
    commands: list[list[str]] = []
    monkeypatch.setattr(slurm_tree, "_table", lambda: TABLE.format(root=root))
    monkeypatch.setattr("subprocess.run", lambda command, **_: commands.append(command))
    assert main("unmount", "24.11") == 0
    assert commands == [["umount", f"{root}/{name}"] for name in ("tmp", "dev/a b", "dev")]
    assert [path.read_text() for path in precious] == ["kept", "kept"]


def test_a_tree_is_not_deleted_while_something_is_mounted_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "24.11"
    (root / "tmp").mkdir(parents=True)
    (root / "tmp" / "precious").write_text("")
    monkeypatch.setattr(slurm_tree, "_table", lambda: TABLE.format(root=root))
    with pytest.raises(NoTreeError, match="is mounted: unmount it first"):
        remove(root)
    assert (root / "tmp" / "precious").exists()
    monkeypatch.setattr(slurm_tree, "_table", lambda: "")
    remove(root)
    assert not root.exists()


@pytest.mark.parametrize("installed", ["26.05", "26.05.5"])
def test_a_release_is_known_by_its_number(installed: str) -> None:
    check_release("26.05", installed)


@pytest.mark.parametrize("installed", ["26.11.1", "26.050", "25.05.3"])
def test_a_suite_that_has_moved_on_is_named(installed: str) -> None:
    with pytest.raises(MovedOnError, match=rf"Debian's forky has Slurm {installed} by now, and not 26\.05"):
        check_release("26.05", installed)


def test_a_suite_that_has_moved_on_fails_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(slurm_tree, "_fill", lambda root, suite: (root / "usr").mkdir(parents=True))
    monkeypatch.setattr(slurm_tree, "_installed", lambda root: "26.11.1")
    for _ in range(2):
        assert main("make", "26.05") == 1
        assert "forky has Slurm 26.11.1" in capsys.readouterr().err
    assert not slurm_tree.folder("26.05").exists()


def test_where_no_tree_can_be_made_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main("make", "24.11") == slurm_tree.UNAVAILABLE
    assert capsys.readouterr().out.startswith("SKIPPED: Slurm 24.11: ")


def test_an_unknown_release_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("make", "25.05") == 2
    assert "22.05, 24.11, 26.05" in capsys.readouterr().err


def test_names_are_looked_up_in_the_tree_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld asks who each caller is: a name server that answers late leaves requests unanswered."""
    root = tmp_path / "24.11.partial"

    def debootstrap(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        (root / "etc").mkdir(parents=True)
        (root / "etc" / "nsswitch.conf").write_text("passwd: files\nhosts:  files dns\nnetworks: files\n")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/sbin/debootstrap")
    monkeypatch.setattr(slurm_tree, "_mirror", lambda: "archive")
    monkeypatch.setattr("subprocess.run", debootstrap)
    slurm_tree._fill(root, "trixie")
    assert (root / "etc" / "hosts").read_text() == "127.0.0.1 localhost\n"
    assert (root / "etc" / "nsswitch.conf").read_text() == "passwd: files\nhosts: files\nnetworks: files\n"

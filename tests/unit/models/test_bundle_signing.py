"""Bundles that are refused: unsigned with a key configured, forged, misnamed, or reaching out of their folder."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.fakes.bundles import copy_bundle, forge, no_shadows, rewrite

from placewise_core.domain.errors import InvalidRequestError, NotFoundError
from placewise_models.bundle import MANIFEST, RELEASE, BundleError, load
from placewise_models.folder import bundle_folder, shipped_bundle, shipped_bundles
from placewise_models.public_key import SIGNATURES, PublicKey
from placewise_models.shipped import SHIPPED
from placewise_models.signing import BundleKeyError, read_public
from placewise_service.cli import invoke
from placewise_service.commands.exits import Exit
from placewise_service.engine.registry import BundleRegistry, BundleState


def make_key(root: Path, name: str = "site") -> PublicKey:
    assert invoke(["bundle", "keygen", str(root / name), "--json"]) == 0
    return read_public(root / f"{name}.pub")


def sign(folder: Path, key: Path) -> None:
    assert invoke(["bundle", "sign", str(folder), "--key", str(key), "--json"]) == 0


# -- names and paths ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../x", "a/b", "/etc/passwd", "..", ".hidden", "a\\b/../c", "", "x\n"])
def test_a_manifest_that_names_a_path_is_refused(tmp_path: Path, path: str) -> None:
    folder = copy_bundle(tmp_path / "bundle")
    (tmp_path / "x").write_text("{}")
    (folder / "a").mkdir()
    (folder / "a" / "b").write_text("{}")
    forge(folder, files={path: "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"})
    with pytest.raises(BundleError, match="list names of files in the bundle"):
        load(folder)


@pytest.mark.parametrize("file", ["throughput.json", MANIFEST])
def test_a_link_in_a_bundle_is_refused(tmp_path: Path, file: str) -> None:
    folder = copy_bundle(tmp_path / "bundle")
    (folder / file).rename(tmp_path / "elsewhere")
    (folder / file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match=f"{file}: it is a link"):
        load(folder)


def test_what_is_no_file_is_refused_and_waits_for_nobody(tmp_path: Path) -> None:
    folder = copy_bundle(tmp_path / "bundle")
    (folder / "throughput.json").unlink()
    os.mkfifo(folder / "throughput.json")
    with pytest.raises(BundleError, match="no regular file"):
        load(folder)
    (folder / "throughput.json").unlink()
    (folder / "throughput.json").mkdir()
    with pytest.raises(BundleError, match=r"throughput\.json: Is a directory"):
        load(folder)


def test_a_bundle_has_its_folders_name(tmp_path: Path) -> None:
    folder = copy_bundle(tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(BundleError, match="names the bundle 'old'"):
        load(folder)


def test_an_alias_leads_to_a_bundle_beside_it_and_nowhere_else(tmp_path: Path) -> None:
    copy_bundle(tmp_path / "root" / "one")
    root = tmp_path / "root"
    (root / "default").write_text("one\n")
    registry = BundleRegistry(root, "default", no_shadows())
    assert (registry.active, registry.is_alias("default"), registry.is_alias("one")) == ("one", True, False)
    assert [status.name for status in registry.list()] == ["one"]
    assert registry.verified("default").name == "one"
    (root / "default").unlink()
    (root / "default").symlink_to("one")
    assert (registry.verified("default").name, [status.name for status in registry.list()]) == ("one", ["one"])
    copy_bundle(tmp_path / "outside")
    for target in ("../outside", str(tmp_path / "outside"), "default"):
        (root / "default").unlink()
        (root / "default").symlink_to(target)
        with pytest.raises(InvalidRequestError):
            registry.verified("default")
    (root / "default").unlink()
    (root / "default").write_text("../outside")
    with pytest.raises(BundleError, match="letters"):
        BundleRegistry(root, "default", no_shadows())
    for name in ("../outside", "..", str(tmp_path / "outside")):
        with pytest.raises((NotFoundError, InvalidRequestError)):
            registry.verified(name)


def test_the_bundles_of_a_release_serve_beside_those_of_a_directory(tmp_path: Path) -> None:
    (root := tmp_path / "own").mkdir()
    shipped = shipped_bundle()
    registry = BundleRegistry(root, "default", no_shadows(), further=shipped_bundles())
    assert (registry.active, registry.is_alias("default")) == (shipped.name, True)
    for name in ("next", shipped.name):
        copy_bundle(root / name)
    assert [status.name for status in registry.list()] == [shipped.name, "next"]
    assert registry.verified("next").directory == (root / "next").resolve()
    assert registry.verified(shipped.name).digest != registry.bundle.digest, "of two the directory's"
    with pytest.raises(NotFoundError):
        registry.verified("other")
    with pytest.raises(BundleError, match="is no folder of bundles"):
        BundleRegistry(tmp_path / "misspelt", "default", no_shadows(), further=shipped_bundles())


def test_a_folder_called_default_needs_no_alias(tmp_path: Path) -> None:
    copy_bundle(tmp_path / "default")
    assert BundleRegistry(tmp_path, "default", no_shadows()).active == "default"


# -- signatures -----------------------------------------------------------------------------------------------------


def test_keys_are_made_once_and_the_private_one_is_for_its_owner(tmp_path: Path) -> None:
    make_key(tmp_path)
    assert stat.S_IMODE((tmp_path / "site.key").stat().st_mode) == 0o600
    before = (tmp_path / "site.key").read_bytes()
    assert invoke(["bundle", "keygen", str(tmp_path / "site")]) == Exit.REFUSED
    assert (tmp_path / "site.key").read_bytes() == before


def test_where_a_key_is_configured_a_bundle_must_be_signed_by_one_of_them(tmp_path: Path) -> None:
    old, new, other = (make_key(tmp_path, name) for name in ("old", "new", "other"))
    folder = copy_bundle(tmp_path / "bundle")
    assert load(folder).signed_by == ""
    with pytest.raises(BundleError, match=r"manifest\.sig is missing"):
        load(folder, [old])
    sign(folder, tmp_path / "old.key")
    assert load(folder, [new, old]).signed_by == old.id
    with pytest.raises(BundleError, match="another key"):
        load(folder, [other])
    sign(folder, tmp_path / "new.key")
    sign(folder, tmp_path / "new.key")
    assert len((folder / SIGNATURES).read_text().splitlines()) == 2
    assert [load(folder, [key]).signed_by for key in (old, new)] == [old.id, new.id]
    assert load(folder).digest == load(folder, [new]).digest, "signing alters nothing"


def test_a_signature_holds_for_its_bundle_alone(tmp_path: Path) -> None:
    key = make_key(tmp_path)
    folder = copy_bundle(tmp_path / "bundle")
    sign(folder, tmp_path / "site.key")
    rewrite(folder, git_commit="0" * 40)
    with pytest.raises(BundleError, match="another key"):
        load(folder, [key])
    shutil.copy(folder / SIGNATURES, copy_bundle(tmp_path / "next") / SIGNATURES)
    with pytest.raises(BundleError, match="another key"):
        load(tmp_path / "next", [key])


@pytest.mark.parametrize("line", ["ed25519 {id} !!!", "ed25519 {id}", "ed25519 {id} AAAA", "{id}", "\x00é ü ñ"])
def test_a_broken_signature_is_none(tmp_path: Path, line: str) -> None:
    key = make_key(tmp_path)
    folder = copy_bundle(tmp_path / "bundle")
    (folder / SIGNATURES).write_text(line.format(id=key.id), "utf-8")
    with pytest.raises(BundleError, match="another key"):
        load(folder, [key])


def test_a_released_bundle_needs_no_signature_wherever_it_lies(tmp_path: Path) -> None:
    key = make_key(tmp_path)
    shipped = load(shipped_bundle(), [key])
    assert shipped.signed_by == RELEASE
    learnt = [name for name, report in shipped.documents.items() if "log" in report]
    assert (shipped.manifest.logs, learnt) == ({}, []), "what learnt from a log ships not: it might be the judge's"
    shutil.copytree(shipped_bundle(), tmp_path / shipped_bundle().name)
    assert load(tmp_path / shipped_bundle().name, [key]).signed_by == RELEASE


def test_the_shipped_bundle_is_the_one_its_release_names() -> None:
    """Shipping another bundle means: give it the release's name, and add its digest."""
    assert bundle_folder(shipped_bundles(), "default").name == list(SHIPPED)[-1]
    assert {name: load(shipped_bundles() / name).digest for name in list(SHIPPED)[-1:]} == {
        name: SHIPPED[name] for name in list(SHIPPED)[-1:]
    }


def test_an_unsigned_bundle_neither_starts_nor_is_activated_nor_listed_as_available(tmp_path: Path) -> None:
    key = make_key(tmp_path)
    root = tmp_path / "root"
    copy_bundle(root / "signed")
    copy_bundle(root / "unsigned")
    sign(root / "signed", tmp_path / "site.key")
    with pytest.raises(BundleError, match=r"manifest\.sig is missing"):
        BundleRegistry(root, "unsigned", no_shadows(), [key])
    registry = BundleRegistry(root, "signed", no_shadows(), [key])
    with pytest.raises(InvalidRequestError, match=r"manifest\.sig is missing"):
        registry.verified("unsigned")
    states = {status.name: status.state for status in registry.list()}
    assert states == {"signed": BundleState.ACTIVE, "unsigned": BundleState.REFUSED}


def test_a_file_that_holds_another_kind_of_key_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "ec.pub"
    key = generate_private_key(SECP256R1()).public_key()
    path.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for content in (path.read_bytes(), b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"):
        path.write_bytes(content)
        with pytest.raises(BundleKeyError, match=r"ec\.pub"):
            read_public(path)
    with pytest.raises(BundleKeyError, match="nowhere"):
        read_public(tmp_path / "nowhere")


# -- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_bundle_is_built_once_and_never_over_another(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(shipped_bundle(), sources)
    target = tmp_path / "site-1"
    assert invoke(["bundle", "build", str(target), "--from", str(sources)]) == 0
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    (sources / "throughput.json").write_bytes((sources / "throughput.json").read_bytes() + b"\n")
    assert invoke(["bundle", "build", str(target), "--from", str(sources)]) == Exit.REFUSED
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert invoke(["bundle", "build", str(tmp_path / "a b"), "--from", str(sources)]) == Exit.BAD_INPUT


def test_verify_says_who_signed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    key, other = make_key(tmp_path), make_key(tmp_path, "other")
    folder = copy_bundle(tmp_path / "bundle")
    sign(folder, tmp_path / "site.key")
    capfd.readouterr()
    keys = ["--public-key", str(tmp_path / "site.pub"), "--public-key", str(tmp_path / "other.pub")]
    assert invoke(["bundle", "verify", str(folder), *keys, "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert (printed["signed_by"], printed["digest"]) == (key.id, load(folder).digest)
    assert other.id != key.id
    assert invoke(["bundle", "verify", str(folder), *keys[2:], "--json"]) == Exit.NEGATIVE
    assert "another key" in json.loads(capfd.readouterr().out)["refusal"]
    assert invoke(["bundle", "verify", str(folder), "--public-key", str(tmp_path / "site.key")]) == Exit.BAD_INPUT

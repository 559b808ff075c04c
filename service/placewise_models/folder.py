"""Finds the folder of a bundle. A bundle has the name of its folder; an alias leads to a folder beside it.

An alias is a file whose text is the name, or a link: `default`, the bundle that serves until another one is chosen, is
usually one. Reads; never writes.
"""

import os
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

DEFAULT_BUNDLE = "default"
# No path is a name: no "/", and no dot at the start.
BUNDLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_LONGEST_ALIAS = 1024  # bytes that are read of one


def bundle_folder(root: Path, name: str) -> Path:
    """Folder of the bundle or alias `name`, which need not exist. Raises ValueError where `name` is a path, or where
    the alias leads to anything but a folder beside it."""
    path = root / _checked(name, "a bundle's name")
    if path.is_symlink():
        target = os.readlink(path)
    elif path.is_file():
        with path.open("rb") as file:
            target = file.read(_LONGEST_ALIAS).decode("utf-8", "replace").strip()
    else:
        return path
    folder = root / _checked(target, f"the target of the alias {path}")
    if folder.is_symlink() or folder.is_file():
        raise ValueError(f"{path} must name a folder beside it: {target!r} is no folder")
    return folder


def root_of(roots: Sequence[Path], name: str) -> Path:
    """The first of these folders that has a bundle or alias of this name; the first of all if none has."""
    return next((root for root in roots if os.path.lexists(root / name)), roots[0])


def is_alias(root: Path, name: str) -> bool:
    """Whether `name` stands for another bundle, which may be one thing today and another after an upgrade."""
    return (root / name).is_symlink() or (root / name).is_file()


def shipped_bundles() -> Path:
    """The folder of the bundles that come with this package."""
    return Path(str(resources.files(__package__).joinpath("bundles")))


def shipped_bundle() -> Path:
    """The bundle that comes with the service: the one that its `default` names."""
    return bundle_folder(shipped_bundles(), DEFAULT_BUNDLE)


def _checked(name: str, what: str) -> str:
    if not BUNDLE_NAME.fullmatch(name):
        raise ValueError(f"{what} must be letters, digits, '.', '_' or '-', the first a letter or digit: {name!r}")
    return name

"""Paths of the API's objects. Names are checked and quoted: foreign input never becomes another path.

Quoting alone would not do: the apiserver splits a path only after it has decoded it.
"""

from __future__ import annotations

import re
from urllib.parse import quote

CORE = "/api/v1"
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_LABEL_LENGTH = 63
_NAME_LENGTH = 253


class BadNameError(ValueError):
    """No object of the API can have this name."""


def is_label(text: object) -> bool:
    """Whether a namespace may be called so (an RFC 1123 label)."""
    return isinstance(text, str) and len(text) <= _LABEL_LENGTH and _LABEL.fullmatch(text) is not None


def is_name(text: object) -> bool:
    """Whether a pod, a node or a group may be called so (an RFC 1123 subdomain)."""
    return isinstance(text, str) and len(text) <= _NAME_LENGTH and all(map(_LABEL.fullmatch, text.split(".")))


def collection_path(root: str, namespace: str, kind: str) -> str:
    """Objects of a namespace: `collection_path(CORE, "default", "pods")`. Raises BadNameError."""
    if not is_label(namespace):
        raise BadNameError(f"{namespace!r} is not a valid name of a namespace")
    return f"{root}/namespaces/{quote(namespace, safe='')}/{kind}"


def object_path(root: str, namespace: str, kind: str, name: str, part: str = "") -> str:
    """One object, or a part of it ("status", "binding"). Raises BadNameError."""
    if not is_name(name):
        raise BadNameError(f"{name!r} is not a valid name of {kind}")
    path = f"{collection_path(root, namespace, kind)}/{quote(name, safe='')}"
    return f"{path}/{part}" if part else path

"""Who signed a bundle: ed25519 over its manifest, which names every file by its SHA-256.

The signatures lie beside the manifest, a line each (`ed25519 KEY-ID BASE64`), so that a bundle can be signed by an old
and a new key while keys are changed. Private keys are read only to sign; the service has public ones.
"""

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from placewise_models.public_key import PublicKey

_ALGORITHM = "ed25519"
# A signature of ours means nothing elsewhere, and none made elsewhere means anything here.
_CONTEXT = b"placewise bundle manifest\n"
_ID_DIGITS = 16


class BundleKeyError(ValueError):
    """The file holds no key of the kind wanted; the message names it."""


def generate(private: Path, public: Path) -> PublicKey:
    """Writes a new pair of keys as PEM, the private one readable by its owner alone. Raises OSError if a file exists:
    a key is never overwritten."""
    key = Ed25519PrivateKey.generate()
    _write_new(private, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    made = key.public_key()
    _write_new(public, made.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)
    return _public(made)


def read_private(path: Path) -> Ed25519PrivateKey:
    """Raises BundleKeyError."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BundleKeyError(f"{path}: cannot read a private key: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BundleKeyError(f"{path} must hold an ed25519 private key: make one with `placewise bundle keygen`")
    return key


def read_public(path: Path) -> PublicKey:
    """Raises BundleKeyError."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BundleKeyError(f"{path}: cannot read a public key: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise BundleKeyError(f"{path} must hold an ed25519 public key: make one with `placewise bundle keygen`")
    return _public(key)


def signed(manifest: bytes, key: Ed25519PrivateKey, signatures: str = "") -> tuple[str, str]:
    """The file of signatures with one more by this key, in place of an earlier one; and the key's id."""
    key_id = _public(key.public_key()).id
    others = [line for line in signatures.splitlines() if line.split()[:2] != [_ALGORITHM, key_id]]
    made = base64.b64encode(key.sign(_CONTEXT + manifest)).decode()
    return "".join(f"{line}\n" for line in (*others, f"{_ALGORITHM} {key_id} {made}")), key_id


def signer(manifest: bytes, signatures: str, keys: Sequence[PublicKey]) -> str:
    """Id of a key of `keys` that signed the manifest; "" if none did."""
    by_id = {key.id: Ed25519PublicKey.from_public_bytes(key.raw) for key in keys}
    for line in signatures.splitlines():
        match line.split():
            case [_, key_id, text] if key_id in by_id and _is_good(by_id[key_id], text, manifest):
                return key_id
    return ""


def _public(key: Ed25519PublicKey) -> PublicKey:
    raw = key.public_bytes_raw()
    return PublicKey(hashlib.sha256(raw).hexdigest()[:_ID_DIGITS], raw)


def _is_good(key: Ed25519PublicKey, text: str, manifest: bytes) -> bool:
    try:
        key.verify(base64.b64decode(text, validate=True), _CONTEXT + manifest)
    except (InvalidSignature, binascii.Error):
        return False
    return True


def _write_new(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(content)

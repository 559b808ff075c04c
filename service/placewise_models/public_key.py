"""A public key that bundles may be signed with, as data: a service that checks no signature loads no cryptography."""

from placewise_core.basics.frozen import frozen

SIGNATURES = "manifest.sig"  # the file beside a manifest


@frozen
class PublicKey:
    """`id` are the first digits of the SHA-256 of the ed25519 key, `raw` (32 bytes)."""

    id: str
    raw: bytes

"""The public key that verifies a bundle's signature. Plain data: a service that verifies none loads no cryptography."""

from placewise_core.basics.frozen import frozen

SIGNATURES = "manifest.sig"  # the file beside a manifest


@frozen
class PublicKey:
    """`raw` is the ed25519 key (32 bytes), `id` the first digits of its SHA-256."""

    id: str
    raw: bytes

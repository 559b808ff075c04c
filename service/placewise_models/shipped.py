"""The bundles that come with releases, known by the digest of their manifests: they need no signature."""

from typing import Final

# One entry a release of the bundle; earlier ones stay, as a site may have gone on with one.
SHIPPED: Final = {
    "2026.11": "6762af119d4608a5a8453b62c98d1d4df468d48914e54278e64cea8c8933799d",
}

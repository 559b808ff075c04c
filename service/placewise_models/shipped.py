"""The bundles that come with releases, known by the digest of their manifests: they need no signature."""

from typing import Final

# One entry a release of the bundle; earlier ones stay, as a site may have gone on with one.
SHIPPED: Final = {
    "2026.11": "4275328b2573ee69afa3507f5067e3057ea6040b7b892b878eab53fbbdd72072",
}

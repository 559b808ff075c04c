"""The bundles that come with releases, known by the digest of their manifests: they need no signature."""

from typing import Final

# One entry a release of the bundle; earlier ones stay, as a site may have gone on with one.
SHIPPED: Final = {
    "2026.11": "e7cfa3379f941af0ed2fb338613be7cff864c94c32840a15bacf38c5339ab081",
}

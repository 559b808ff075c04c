"""Whole bundles to choose from: copies of the shipped one under other names, with other contents where asked."""

import shutil
from pathlib import Path

import msgspec

from placewise_core.gang.neighbours import declared_speed
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.speed.completed_interference import InterferenceSource
from placewise_models.bundle import MANIFEST, Bundle, BundleError, Manifest, write_manifest
from placewise_models.folder import shipped_bundle
from placewise_models.learned import LearnedPolicies
from placewise_service.engine.shadows import PolicySet, Shadows


def copy_bundle(folder: Path, created: str = "2026-01-01T00:00:00Z", source: Path | None = None) -> Path:
    """A copy of `source`, the shipped bundle by default, with its folder's name; another `created` gives it another
    digest."""
    shutil.copytree(source or shipped_bundle(), folder)
    return rewrite(folder, name=folder.name, created=created)


def rewrite(folder: Path, **changes: object) -> Path:
    """Writes the manifest again with these fields, checksums included: what its files are, and no signature."""
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    write_manifest(folder, msgspec.structs.replace(manifest, **changes))
    return folder


def forge(folder: Path, **changes: object) -> Path:
    """Writes the manifest with these fields and checksums."""
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    (folder / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, **changes)))
    return folder


def no_shadows() -> Shadows:
    """For a registry without an engine: nothing shadows, and no bundle can."""

    def refused(bundle: Bundle) -> PolicySet:
        raise BundleError(f"{bundle.name} has no policies here")

    interference = InterferenceSource(packaged_tables().interference)
    return Shadows(PolicySet({}, LearnedPolicies(), interference, declared_speed, lambda *_: None), refused)

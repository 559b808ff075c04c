"""Copies an export to a store of files: what pyarrow reaches by itself, or through fsspec if that is installed.

Readers see a manifest whose files are all there: it is written last. Files that it names are copied once.
"""

from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs

from placewise_log.manifest import NAME, LogManifest
from placewise_log.store import LogError, opened

_CHUNK: Final = 1 << 20
_POSITIONS: Final = "positions.json"


class StoreError(Exception):
    """The store cannot be reached or written: says which, and why."""


class Store:
    """A folder of a store, by its URL."""

    def __init__(self, url: str) -> None:
        """Raises StoreError for a URL that neither pyarrow nor an installed fsspec knows."""
        self._url = url
        try:
            self._files, self._folder = opened(url)
        except LogError as error:
            raise StoreError(str(error)) from error

    def publish(self, directory: Path) -> int:
        """Copies the files of the directory's manifest that the store lacks, then the manifest; how many.

        Files that a day's join replaced are written again, those that are no longer named stay. Raises StoreError, and
        ManifestError for a directory without one. A publication that was cut off can be repeated.
        """
        manifest = LogManifest.read(directory)
        try:
            there = self._manifest()
            names = [name for name, file in manifest.files.items() if there.get(name) != file.sha256]
            for name in (*names, _POSITIONS, NAME):
                self._copy(directory / name, name)
        except (pa.ArrowException, OSError) as error:
            raise StoreError(f"{self._url}: {str(error).splitlines()[0]}. Run the export again: it goes on") from error
        return len(names)

    def _manifest(self) -> dict[str, str]:
        """Hashes of the files that the store has, as its manifest names them; none if it has no manifest."""
        path = f"{self._folder}/{NAME}"
        if self._files.get_file_info(path).type is fs.FileType.NotFound:
            return {}
        with self._files.open_input_stream(path) as file:
            found = LogManifest.parse(file.readall().decode("utf-8"), f"{self._url}/{NAME}")
        return {name: each.sha256 for name, each in found.files.items()}

    def _copy(self, source: Path, name: str) -> None:
        path = f"{self._folder}/{name}"
        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        with source.open("rb") as file, self._files.open_output_stream(path, compression=None) as target:
            while chunk := file.read(_CHUNK):
                target.write(chunk)

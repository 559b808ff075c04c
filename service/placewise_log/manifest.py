"""The manifest of an exported log: which files it has, their hashes, and up to when. A training names it as its data.

    manifest = LogManifest.read(Path("DIR"))
    manifest.check(Path("DIR"))
    manifest.digest

The files of decisions, outcomes and views never change; those of derived tables do when a day is joined again.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Final

from placewise_core.basics.frozen import frozen

NAME: Final = "manifest.json"
_CHUNK: Final = 1 << 20


class ManifestError(ValueError):
    """The manifest, or a file that it names, is not as it should be: says which, and why."""


@frozen
class LogFile:
    """One file: hex SHA-256, size, and the time of its last change, which spares hashing it again."""

    sha256: str
    bytes: int
    changed_ns: int


@frozen
class LogManifest:
    """`files` by their path in the directory. `watermark` has for each cluster the position up to which its log is in
    here; `made_time_s` is the store's time of the export, epoch seconds. `dropped` counts by cluster and log the
    entries that were lost before any export had them, since the cluster was made. `host_times_s` has the times of
    clusters whose host sets the time."""

    files: Mapping[str, LogFile] = field(default_factory=dict)
    watermark: Mapping[str, str] = field(default_factory=dict)
    made_time_s: float = 0.0
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    host_times_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the files' names and hashes and the watermark: equal logs have equal ones."""
        hashes = {name: file.sha256 for name, file in sorted(self.files.items())}
        text = json.dumps({"files": hashes, "watermark": dict(sorted(self.watermark.items()))}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def read(cls, directory: Path) -> "LogManifest":
        """That of a directory. Raises ManifestError if it has none, or one that cannot be read."""
        path = directory / NAME
        try:
            return cls.parse(path.read_text("utf-8"), str(path))
        except FileNotFoundError:
            raise ManifestError(f"{path}: missing; `placewise log export` writes it") from None

    @classmethod
    def parse(cls, text: str, source: str) -> "LogManifest":
        """The manifest in a text. Raises ManifestError, which names the source."""
        try:
            found: dict[str, Any] = json.loads(text)
            files = {name: LogFile(**file) for name, file in dict(found["files"]).items()}
            later = (dict(found.get(name, {})) for name in ("dropped", "host_times_s"))
            return cls(files, found["watermark"], found["made_time_s"], *later)
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{source}: no manifest of a log: {error}") from error

    @classmethod
    def of(
        cls,
        directory: Path,
        watermark: Mapping[str, str],
        made_time_s: float,
        before: "LogManifest",
        *,
        dropped: Mapping[str, Mapping[str, int]],
        host_times_s: Mapping[str, float],
    ) -> "LogManifest":
        """That of the files there are. Files as `before` has them are not hashed again."""
        files = {}
        for path in sorted(directory.glob("*/date=*/*.parquet")):
            name, stat = path.relative_to(directory).as_posix(), path.stat()
            file = before.files.get(name)
            if file is None or (file.bytes, file.changed_ns) != (stat.st_size, stat.st_mtime_ns):
                file = LogFile(_hashed(path), stat.st_size, stat.st_mtime_ns)
            files[name] = file
        return cls(files, dict(watermark), made_time_s, dropped, host_times_s)

    def text(self) -> str:
        """The text of the file."""
        files = {name: asdict(file) for name, file in self.files.items()}
        whole = {"digest": self.digest, "made_time_s": self.made_time_s, "watermark": self.watermark}
        whole |= {"dropped": self.dropped, "host_times_s": self.host_times_s, "files": files}
        return json.dumps(whole, indent=1)

    def check(self, directory: Path, names: Iterable[str] = ()) -> None:
        """Compares these files, all unless some are named, with their hashes. Raises ManifestError for the first that
        differs or is missing."""
        for name in names or self.files:
            if name not in self.files:
                raise ManifestError(f"{directory / name}: not in the manifest")
            try:
                is_equal = _hashed(directory / name) == self.files[name].sha256
            except FileNotFoundError:
                raise ManifestError(f"{directory / name}: missing, though the manifest names it") from None
            if not is_equal:
                raise ManifestError(f"{directory / name}: not as the manifest has it")


def _hashed(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()

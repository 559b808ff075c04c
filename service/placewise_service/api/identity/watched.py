"""Files of credentials, read again when they change. A file that cannot be used keeps its last good content in force
for a while; after that nobody is let in. Never writes one.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import structlog
import yaml
from pydantic import BaseModel, ValidationError

from placewise_core.basics.clock import Clock
from placewise_core.domain.errors import StateUnavailableError
from placewise_service.files import why_unreadable

log = structlog.get_logger(__name__)

T = TypeVar("T")
Document = TypeVar("Document", bound=BaseModel)

_CHECK_PERIOD_S = 1.0  # how often the file's date is looked at

Stamp = tuple[int, int, int, int, int]
OnStale = Callable[[str, float], None]


class CredentialsFileError(ValueError):
    """A file of tokens, certificates or keys cannot be used; the text says which, and why."""


def ignore_stale(name: str, seconds: float) -> None:
    pass


class WatchedFile(Generic[T]):
    """What `parse` makes of a file, looked at once a second when it is asked for.

    `parse` raises CredentialsFileError, without the path. Construction raises it, with the path; later only the log
    and `on_stale(name, seconds)` hear of it, until `keep_s` seconds have passed: then `value` refuses.
    `on_change(old, new)` hears of each new content.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        parse: Callable[[bytes], T],
        clock: Clock,
        keep_s: float,
        on_change: Callable[[T, T], None] = lambda old, new: None,
        on_stale: OnStale = ignore_stale,
    ) -> None:
        self.name = name
        self._path = path
        self._parse = parse
        self._clock = clock
        self._keep_s = keep_s
        self._on_change = on_change
        self._on_stale = on_stale
        content, self._stamp = read(path)
        self._value = self._parsed(content)
        self._checked_s = clock.monotonic_s()
        self._failing_since_s: float | None = None
        self._reason = ""
        on_stale(name, 0.0)

    def value(self) -> T:
        """The newest good content. Raises StateUnavailableError when the last good one is too old."""
        if self.problem():
            raise StateUnavailableError(f"callers cannot be authenticated now: the {self.name} cannot be read")
        return self._value

    def problem(self) -> str:
        """Why nobody is let in; "" while the content, or the last good one, is in force."""
        self._refresh()
        if self._failing_since_s is None or self._clock.monotonic_s() - self._failing_since_s < self._keep_s:
            return ""
        return f"the {self.name} could not be used for {self._keep_s:g} s"

    def _refresh(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._checked_s < _CHECK_PERIOD_S:
            return
        self._checked_s = now_s
        try:
            if self._failing_since_s is None and stamp_of(self._path) == self._stamp:
                return
            content, stamp = read(self._path)  # a failed read is repeated: a repair may leave the date unchanged
            value = self._parsed(content)
        except CredentialsFileError as error:
            self._fail(str(error), now_s)
            return
        self._recover()
        old, self._value, self._stamp = self._value, value, stamp
        self._on_change(old, value)

    def _fail(self, reason: str, now_s: float) -> None:
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if reason != self._reason:
            self._reason = reason
            log.error(f"{self.name} not usable; the last good one stays in force", keep_s=self._keep_s, reason=reason)
        self._on_stale(self.name, max(now_s - self._failing_since_s, _CHECK_PERIOD_S))

    def _recover(self) -> None:
        if self._failing_since_s is not None:
            log.info(f"{self.name} usable again")
            self._failing_since_s, self._reason = None, ""
            self._on_stale(self.name, 0.0)

    def _parsed(self, content: bytes) -> T:
        try:
            return self._parse(content)
        except CredentialsFileError as error:
            raise CredentialsFileError(f"{self._path}: {error}") from None


def document_of(content: bytes, document: type[Document], empty: str) -> Document:
    """A YAML file's content. `empty` is how the file says that there is nothing. Raises CredentialsFileError."""
    try:
        data = yaml.safe_load(content)
    except yaml.YAMLError:
        raise CredentialsFileError("not YAML") from None
    if data is None:  # half-written, or emptied by mistake
        raise CredentialsFileError(f"is empty: write `{empty}` to refuse every caller")
    try:
        return document.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise CredentialsFileError(f"{_place(first['loc'], data)}: {first['msg']}") from None


def _place(location: tuple[int | str, ...], data: Any) -> str:
    """The place in the document, with the entry's name if it has one."""
    words = ".".join(map(str, location))
    try:
        name = data[location[0]][location[1]]["name"]
    except (LookupError, TypeError):
        return words
    return f"{words} ({name})"


def read(path: Path) -> tuple[bytes, Stamp]:
    """Content and stamp of one moment. Raises CredentialsFileError."""
    try:
        with path.open("rb") as file:
            _lock(path, file.fileno())
            stamp = _stamp(os.fstat(file.fileno()))
            return file.read(), stamp
    except OSError as error:
        _refuse(path, error)


def stamp_of(path: Path) -> Stamp:
    """What changes with the file: its inode too, and with its owner or mode. Raises CredentialsFileError."""
    try:
        return _stamp(path.stat())
    except OSError as error:
        _refuse(path, error)


def _refuse(path: Path, error: OSError) -> NoReturn:
    raise CredentialsFileError(why_unreadable(path, error)) from None


def _lock(path: Path, file: int) -> None:
    """Shared, against `placewise token`, which changes the file in its place. Raises CredentialsFileError."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CredentialsFileError(f"{path}: another command is changing it: try again") from None
    except OSError:
        pass  # a file system without locks


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev

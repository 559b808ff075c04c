"""What to say of a file that cannot be read. Never opens one."""

import os
import stat
from pathlib import Path


def why_unreadable(path: Path, error: OSError) -> str:
    """Names the file and the reason; for a lack of rights, also the owner and this process's user."""
    text = f"{path}: {error.strerror or error}"
    if not isinstance(error, PermissionError):
        return text
    try:
        status = path.stat()
    except OSError:
        return f"{text}; uid {os.geteuid()} may not enter its folder"
    whose = f"the file belongs to uid {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}"
    return (
        f"{text}; this process runs as uid {os.geteuid()}, {whose}: "
        "change its owner, or give it a group of this process that may read it"
    )

"""The scripts that run inside Slurm, as templates, and the function that fills them in."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewise_slurm.config import BridgeConfig

SCRIPTS = ("job_submit.lua", "prolog_slurmctld.sh", "jobcomp.sh", "task_prolog.sh", "task_epilog.sh")
_PLACE = re.compile(r"@([A-Z_]+)@")
# These values become program text: no quotes, spaces or other shell characters.
_SAFE = re.compile(r"[\w./:-]+")


def write_hooks(config: BridgeConfig, folder: Path) -> list[Path]:
    """Writes the scripts with the site's values; overwrites earlier ones. Raises ValueError for an unusable name."""
    values = script_values(config)
    written = []
    for name in SCRIPTS:
        template = resources.files(__package__).joinpath(name).read_text()
        path = folder / name
        path.write_text(_PLACE.sub(lambda match: values[match[1]], template))
        path.chmod(0o755)
        written.append(path)
    return written


def script_values(config: BridgeConfig) -> dict[str, str]:
    """The text for each placeholder of the templates. Raises ValueError for a name with unsafe characters."""
    hooks = config.hooks
    for text in (hooks.listen_host, *hooks.partitions, hooks.shares_dir or "/"):
        if not _SAFE.fullmatch(text):
            raise ValueError(f"{text!r} goes into the scripts: use only letters, digits and _ . / : -")
    return {
        "POKE_HOST": hooks.listen_host,
        "POKE_PORT": str(hooks.listen_port),
        "PARTITIONS": ", ".join(f"[{json.dumps(name)}] = true" for name in hooks.partitions),
        "HOLD": "false" if config.adapter.is_dry_run else "true",
        "HOLD_WITHOUT_BRIDGE": "true" if hooks.hold_without_bridge else "false",
        "KEEPS_GRES": "true" if hooks.has_gpu_types else "false",
        "SHARES_DIR": hooks.shares_dir,
    }

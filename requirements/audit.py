"""`python requirements/audit.py LOCK…`: known vulnerabilities of locked packages, as pip-audit finds them.

Exit code 1 if there is one. If no source of advisories can be reached, it prints SKIPPED and exits 0: nothing was
checked.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

TIMEOUT_S = 240


def main(locks: Sequence[str]) -> int:
    found: dict[str, dict[str, Any]] = {}
    for lock in locks:
        dependencies = audited(lock)
        if dependencies is None:
            print("SKIPPED: audit: no source of advisories can be reached")
            return 0
        found |= {f"{entry['name']} {entry.get('version', '')}": entry for entry in dependencies}
    return report(found)


def audited(lock: str) -> list[dict[str, Any]] | None:
    """pip-audit's result for each package of a lock; None if no source could be reached."""
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--progress-spinner", "off"]
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            [*command, "--format", "json", "--requirement", lock],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return list(json.loads(done.stdout)["dependencies"])
    except (subprocess.TimeoutExpired, ValueError):
        return None


def report(found: dict[str, dict[str, Any]]) -> int:
    """Prints one line for each advisory and the packages that nobody knew; the exit code."""
    unknown = sorted(name for name, entry in found.items() if "skip_reason" in entry)
    if len(unknown) == len(found):
        print("SKIPPED: audit: the source of advisories knows none of the packages")
        return 0
    advisories = [(name, advisory) for name, entry in sorted(found.items()) for advisory in entry.get("vulns", ())]
    for name, advisory in advisories:
        print(f"{name}: {advisory['id']}, fixed in {', '.join(advisory['fix_versions']) or 'no version yet'}")
    if unknown:
        print(f"not audited, as the source does not know them: {', '.join(unknown)}")
    print(f"{len(found) - len(unknown)} packages audited, {len(advisories)} advisories")
    return 1 if advisories else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

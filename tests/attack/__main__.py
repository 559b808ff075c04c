"""`python -m tests.attack`: runs the attacks of every item file, prints a line each, and writes docs/reliability.md.

    --quick           the short attacks only; one that finds its promise broken is repeated, twice at most, as a busy
                      machine may have done it; the line printed for each try stays
    --before TREE     a source tree (a git worktree) to run the same attacks against first
    --only WORD       attacks whose file or name contains the word
    --write FILE      write the report there; with --only, renew the rows of these attacks in the report that is there
    --json FILE       write every figure there
    --limit-s S       stop starting attacks after so many seconds; each that was not run is named as skipped

The exit code is 1 if a promise does not hold, or an attack failed to run against today's tree.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.attack.attack import Attack, CannotRunError, Result
from tests.attack.report import markdown, renewed, shown
from tests.attack.source import Source

_QUICK_TRIES = 3
ROOT = Path(__file__).parent.parent.parent


def main() -> int:
    arguments = _arguments()
    began_s = time.monotonic()
    paths = sorted(Path(__file__).parent.glob("*/item_*.py"), key=lambda path: path.stem)
    modules = {path.stem: f"tests.attack.{path.parent.name}.{path.stem}" for path in paths}
    titles, chosen = {}, {}
    for name, place in modules.items():
        module = importlib.import_module(place)
        attacks = [a for a in module.ATTACKS if _is_chosen(a, name, arguments)]
        if attacks:
            titles[name], chosen[name] = module.TITLE, attacks
    trees = [Source(ROOT, "now")]
    if arguments.before:
        trees.insert(0, Source(Path(arguments.before).resolve(), "before"))
    results: dict[str, dict[str, list[Result]]] = {tree.name: {} for tree in trees}
    for name, attacks in chosen.items():
        for tree in trees:
            results[tree.name][name] = [_tried(attack, tree, began_s, arguments) for attack in attacks]
    if arguments.write:
        names = {"before": _commit(trees[0].root), "now": _commit(ROOT), "machine": _machine()}
        page, earlier = Path(arguments.write), results.get("before", {})
        page.write_text(
            renewed(page.read_text(), results["now"], earlier, names["now"])
            if arguments.only
            else markdown(titles, results["now"], earlier, names)
        )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(_plain(results), indent=1))
    return _verdict([result for of in results["now"].values() for result in of])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--before", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--write", default="")
    parser.add_argument("--json", default="")
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    return parser.parse_args()


def _is_chosen(attack: Attack, module: str, arguments: argparse.Namespace) -> bool:
    is_named = not arguments.only or arguments.only in attack.name or arguments.only in module
    return is_named and (attack.is_quick or not arguments.quick)


def _tried(attack: Attack, source: Source, suite_began_s: float, arguments: argparse.Namespace) -> Result:
    for _ in range(_QUICK_TRIES if arguments.quick and source.name == "now" else 1):
        result = _run(attack, source, suite_began_s, arguments.limit_s)
        if result.is_held or result.is_skipped:
            break
    return result


def _run(attack: Attack, source: Source, suite_began_s: float, limit_s: float) -> Result:
    if source.name == "before" and attack.needs:
        return Result(attack, reason=f"no {attack.needs}", is_skipped=True)
    if time.monotonic() - suite_began_s > limit_s:
        return _told(source, Result(attack, reason="the time was up before it could run", is_skipped=True))
    began_s = time.monotonic()
    try:
        figures = attack.measure(source)
    except CannotRunError as error:
        return _told(source, Result(attack, reason=str(error), is_skipped=True))
    except Exception as error:
        if source.name == "now":
            traceback.print_exc()
        reason = f"failed: {type(error).__name__}: {str(error)[:200]}"
        return _told(source, Result(attack, reason=reason, seconds=time.monotonic() - began_s))
    return _told(source, Result(attack, figures, seconds=time.monotonic() - began_s))


def _told(source: Source, result: Result) -> Result:
    verdict = "SKIPPED" if result.is_skipped else "held" if result.is_held else "BROKEN"
    text = shown(result.figures) if result.figures else result.reason
    print(f"{verdict}: {source.name}: {result.attack.name}: {text} ({result.seconds:.1f} s)", flush=True)
    return result


def _verdict(results: Sequence[Result]) -> int:
    broken = [result.attack.name for result in results if not result.is_held and not result.is_skipped]
    skipped = sum(result.is_skipped for result in results)
    print(f"\n{len(results) - len(broken) - skipped} passed, {len(broken)} failed, {skipped} skipped")
    for name in broken:
        print(f"BROKEN: {name}")
    return 1 if broken else 0


def _plain(results: dict[str, dict[str, list[Result]]]) -> object:
    return {
        tree: {
            module: [
                {"name": r.attack.name, "holds": r.is_held, "figures": dict(r.figures), "reason": r.reason} for r in of
            ]
            for module, of in by_module.items()
        }
        for tree, by_module in results.items()
    }


def _commit(root: Path) -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def _machine() -> str:
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end"


if __name__ == "__main__":
    sys.exit(main())

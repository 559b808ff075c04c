"""The acts of the demonstration: mechanics on a sabotaged incumbent, the claim on the shipped bundle, and bundles that
must not pass."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from placewise_models.folder import shipped_bundle
from placewise_training.demo.loop import POLICY, DemoStep, Loop, Sizes, gate
from placewise_training.demo.sabotage import flipped, shuffled
from placewise_training.demo.service import DemoService
from placewise_training.demo.site import Site

MECHANICS: Final = "mechanics (the incumbent is sabotaged: no claim)"
CLAIM: Final = "claim (the incumbent is the shipped bundle)"
NEGATIVES: Final = "negatives"
_BAD_CANARY: Final = 40  # number of its window


def play(service: DemoService, member: int, sizes: Sizes, folder: Path, show: Callable[[str, DemoStep], None]) -> None:
    """All acts, one after the other. `show` gets each step with its act. Raises DemoError."""
    site = Site(member, folder)
    sabotaged = flipped(shipped_bundle(), service.bundles / "sabotaged")
    baselines: dict[str, list[float]] = {}
    for act, name, incumbent in ((MECHANICS, "mechanics", sabotaged), (CLAIM, "claim", shipped_bundle())):
        own = folder / name
        own.mkdir()
        loop = Loop(service, site, name, incumbent, sizes, own, baselines, partial(show, act))
        loop.run()
    bad = {
        "reward sign flipped": flipped(shipped_bundle(), service.bundles / "flipped"),
        "shuffled weights": shuffled(shipped_bundle(), service.bundles / "shuffled", seed=1),
    }
    for name, bundle in bad.items():
        show(NEGATIVES, _refused(service, folder / "claim" / "log-2", name, bundle, "claim", sizes))
    other, honest = folder / "mechanics" / "log-2", service.bundles / loop.candidate
    show(NEGATIVES, _refused(service, other, "log of another cluster", honest, "claim", sizes))
    show(NEGATIVES, _rolled_back(service, site, sizes))


def _refused(service: DemoService, log: Path, name: str, bundle: Path, cluster: str, sizes: Sizes) -> DemoStep:
    """A candidate that the gate has to refuse on this log."""
    began_s = time.monotonic()
    found = gate(service, log, bundle, shipped_bundle(), cluster, sizes, "--brief")
    failed = {each["name"]: each["text"] for each in found["checks"] if not each["has_passed"]}
    text = "; ".join(f"{check}: {why}" for check, why in failed.items())
    return DemoStep(name, found["verdict"], text, {"failed": list(failed)}, round(time.monotonic() - began_s, 1))


def _rolled_back(service: DemoService, site: Site, sizes: Sizes) -> DemoStep:
    """A canary whose net is too uncertain to answer, so that fallbacks do: its guards have to end it."""
    began_s = time.monotonic()
    service.ask("bundle", "canary", "shuffled", "--share", 0.5)
    window = site.window(_BAD_CANARY, sizes.canary)
    plot = window.trace.with_suffix(".png")
    service.ask("replay", *window.options, "--policy", POLICY, "--cluster", "bad-canary", "--plot", plot)
    last = service.ask("bundle", "history")["changes"][0]
    is_ended = last["kind"] == "CANARY_ROLLED_BACK"
    if not is_ended:
        service.ask("bundle", "canary", "--off")
    text = str(last["reason"]) if is_ended else f"no guard ended it within {sizes.canary} jobs"
    verdict = "rolled back" if is_ended else "not rolled back"
    return DemoStep("a canary that turns bad", verdict, text, {"last": last}, round(time.monotonic() - began_s, 1))

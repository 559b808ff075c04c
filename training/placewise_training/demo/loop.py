"""One round of the learning loop on a running service, step by step: explore, export, retrain, gate, shadow, canary,
promote, and the same fresh jobs before and after. A step that the gate does not allow is not done."""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from placewise_training.demo.arms import gain_of_arms
from placewise_training.demo.service import DemoService
from placewise_training.demo.site import Site, Window
from placewise_training.lab.work.asked import workers_of
from placewise_training.sim.statistics import estimate

POLICY: Final = "search"
CONSOLIDATE: Final = "consolidate"
_FIRST, _SECOND, _SHADOW, _CANARY, _FRESH = 0, 1, 2, 3, 10  # numbers of windows
_EXPLORERS: Final = (CONSOLIDATE, "load-balance")
_Z, _ONE_SIDED_Z = 1.96, 1.645


@dataclass(frozen=True, slots=True)
class Sizes:
    """Jobs of the log that is learned from, of the log that judges, of shadow and canary, and of each fresh window. The
    number of these, the share of the usual steps of training, and the gate's windows and blocks of time."""

    learned: int = 600
    judged: int = 1300
    canary: int = 300
    fresh: int = 100
    windows: int = 4
    effort: float = 0.2
    simulated: int = 4
    block_min: float = 120.0


@dataclass(slots=True)
class DemoStep:
    """`verdict` in a word, `text` in a sentence, and its numbers."""

    name: str
    verdict: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Loop:
    """Begins with `incumbent`, a bundle of the service, and leaves it in force. `name` is that of the cluster."""

    def __init__(
        self,
        service: DemoService,
        site: Site,
        name: str,
        incumbent: Path,
        sizes: Sizes,
        folder: Path,
        baselines: dict[str, list[float]],
        show: Callable[[DemoStep], None],
    ) -> None:
        """`baselines` keeps the JCT of `consolidate` and the oracle on the fresh windows for the next act."""
        self._show, self._baselines = show, baselines
        self.candidate = f"{name}-candidate"
        self.judging_log = folder / "log-2"
        self._service, self._site, self._name = service, site, name
        self._incumbent, self._sizes, self._folder = incumbent, sizes, folder
        self._began_s = time.monotonic()

    def run(self) -> None:
        """All steps, each shown when it is done. Raises DemoError."""
        before = self._fresh("before", self._incumbent.name)
        self._explore()
        self._retrain()
        verdict, gain = self._judge()
        passed = verdict == "promoted"
        realised = self._deployed() if passed else self._tried()
        self._compare(gain, realised)
        after = self._fresh("after", f"{self.candidate}{'-gated' if passed else ''}")
        self._change(before, after, is_promoted=passed)
        self._service.ask("bundle", "activate", self._incumbent.name)

    def _note(self, name: str, verdict: str, text: str, numbers: Mapping[str, Any] | None = None) -> None:
        now_s = time.monotonic()
        self._show(DemoStep(name, verdict, text, numbers or {}, round(now_s - self._began_s, 1)))
        self._began_s = now_s

    def _replay(self, window: Window, *more: object, policy: str = POLICY) -> Mapping[str, Any]:
        found = self._service.ask(
            "replay",
            *window.options,
            "--policy",
            policy,
            "--cluster",
            self._name,
            "--plot",
            self._folder / "replay.png",
            *more,
        )
        played: Mapping[str, Any] = found["policies"][0]
        return played

    def _explore(self) -> None:
        log = self._folder / "log-1"
        named = [word for name in _EXPLORERS for word in ("--explorer", name)]
        window = self._site.window(_FIRST, self._sizes.learned)
        found = self._replay(window, "--exploration-rate", 0.5, *named, "--log", log)
        jobs = found["jobs_started"]
        self._note("explore and export", "done", f"{jobs} jobs, half of them placed by {' or '.join(_EXPLORERS)}")

    def _retrain(self) -> None:
        out = self._service.bundles / self.candidate
        found = self._service.run(
            "retrain", "--log", self._folder / "log-1", "--start", self._incumbent, "--out", out, "--policy", POLICY,
            "--only", "reward", "--effort", self._sizes.effort, *_gates(self._sizes),
        )  # fmt: skip
        if not found["promoted"]:
            shutil.copytree(found["bundle"], out)
        shutil.rmtree(out.with_name(f"{out.name}.retrain"), ignore_errors=True)
        later = found["steps"]["reward"]["later"]
        verdict = "lets it pass" if found["promoted"] else f"refuses: {', '.join(_failed(found['gate']))}"
        errors = f"{later['error_before']:.1%} → {later['error_after']:.1%}"
        text = f"error of the reward model on later rows {errors}; on this log the gate {verdict}"
        self._note("retrain", "promoted" if found["promoted"] else "refused", text, {"later": later})

    def _judge(self) -> tuple[str, Mapping[str, Any]]:
        """The verdict on a second log, in which the candidate explores; the estimated gain of one decision."""
        window = self._site.window(_SECOND, self._sizes.judged)
        named = ("--explorer", f"{self.candidate}/{POLICY}=2", "--explorer", CONSOLIDATE)
        self._replay(window, "--exploration-rate", 0.5, *named, "--log", self.judging_log)
        candidate = self._service.bundles / self.candidate
        record = "--record", candidate.with_name(f"{candidate.name}-gated")
        found = gate(self._service, self.judging_log, candidate, self._incumbent, self._name, self._sizes, *record)
        check = next((each for each in found["checks"] if each["name"] == "no loss by the log"), None)
        numbers = dict(check["numbers"]) if check is not None else {}
        numbers["failed"] = _failed(found)
        reasons = [each["text"] for each in found["checks"] if not each["has_passed"]]
        self._note("gate", found["verdict"], "; ".join(reasons) or "all checks hold", numbers)
        return found["verdict"], numbers

    def _deployed(self) -> tuple[float, float]:
        """Shadow, canary and promotion; mean reward of the canary's jobs less that of the others, and its error."""
        gated = f"{self.candidate}-gated"
        self._service.ask("bundle", "shadow", gated)
        log = self._folder / "log-shadow"
        self._replay(self._site.window(_SHADOW, self._sizes.canary // 4), "--log", log)
        found = self._service.run(
            "bundle", "compare", f"{self._incumbent.name}/{POLICY}", f"{gated}/{POLICY}", "--log", log
        )
        self._service.ask("bundle", "shadow", "--off")
        self._note("shadow", "done", f"compared with {self._incumbent.name} on {self._sizes.canary // 4} jobs", found)
        self._service.ask("bundle", "canary", gated, "--share", 0.5)
        log = self._folder / "log-canary"
        self._replay(self._site.window(_CANARY, self._sizes.canary), "--log", log, "--keep")
        gain = gain_of_arms(log, "arm", "canary")
        last = self._service.ask("bundle", "history")["changes"][0]
        if last["kind"] == "CANARY_ROLLED_BACK":
            self._note("canary", "rolled back", str(last["reason"]), last)
            self._note("promote", "not done", "a guard ended the canary")
            self._service.do("cluster", "delete", self._name, "--yes")
            return gain
        self._note("canary", "done", f"{self._sizes.canary} jobs, half of them the canary's; no guard ended it")
        self._service.ask("bundle", "promote")
        self._service.do("cluster", "delete", self._name, "--yes")
        self._note("promote", "done", f"{gated} answers every job")
        return gain

    def _tried(self) -> tuple[float, float]:
        """A refused candidate goes no further. Its gain is measured all the same, to see whether the gate was right."""
        log = self._folder / "log-tried"
        window = self._site.window(_CANARY, self._sizes.canary)
        named = ("--explorer", f"{self.candidate}/{POLICY}")
        self._replay(window, "--exploration-rate", 0.5, *named, "--log", log)
        for name in ("shadow", "canary", "promote"):
            self._note(name, "not done", "the gate refused the candidate")
        return gain_of_arms(log, "is_explored", True)

    def _compare(self, estimated: Mapping[str, Any], realised: tuple[float, float]) -> None:
        """The estimate of the gate beside the same quantity on later jobs, which has an error of its own: they agree if
        the 95 % interval of their difference holds 0."""
        gain, error = realised
        least = gain - _Z * error, gain + _Z * error
        numbers: dict[str, Any] = {"realised": gain, "realised_interval": least}
        text = f"reward of one decision: realised {gain:+.3f} ({least[0]:+.3f} … {least[1]:+.3f})"
        verdict = "no estimate"
        if estimated.get("gain") is not None and math.isfinite(gain):
            bound = (estimated["gain"] - estimated["least_gain"]) * _Z / _ONE_SIDED_Z
            interval = estimated["gain"] - bound, estimated["gain"] + bound
            numbers |= {"estimated": estimated["gain"], "estimated_interval": interval}
            verdict = "agree" if abs(estimated["gain"] - gain) <= math.hypot(bound, _Z * error) else "differ"
            text += f", estimated {estimated['gain']:+.3f} ({interval[0]:+.3f} … {interval[1]:+.3f})"
        self._note("estimate and what happened", verdict, text, numbers)

    def _fresh(self, when: str, bundle: str) -> Mapping[str, list[float]]:
        """Mean JCT of fresh windows with this bundle in force, by policy; before also by consolidate and the oracle."""
        self._service.ask("bundle", "activate", bundle)
        windows = [self._site.window(_FRESH + i, self._sizes.fresh) for i in range(self._sizes.windows)]
        found = {POLICY: [self._replay(window)["avg_jct_s"] for window in windows]}
        if when == "before":
            if not self._baselines:
                with workers_of(None, 0) as workers:
                    self._baselines["oracle"] = list(workers.mapped(Window.oracle_jct_s, windows))
                played = [self._replay(window, policy=CONSOLIDATE) for window in windows]
                self._baselines[CONSOLIDATE] = [each["avg_jct_s"] for each in played]
            found |= self._baselines
        means = {name: float(np.mean(values)) for name, values in found.items()}
        text = ", ".join(f"{name} {mean:,.0f} s" for name, mean in means.items())
        self._note(f"fresh jobs {when}", "done", f"mean JCT with {bundle}: {text}", {"jct_s": found})
        return found

    def _change(
        self, before: Mapping[str, list[float]], after: Mapping[str, list[float]], *, is_promoted: bool
    ) -> None:
        numbers, words = {}, []
        rows = {"the incumbent": before[POLICY], CONSOLIDATE: before[CONSOLIDATE], "the oracle": before["oracle"]}
        for name, other in rows.items():
            found = estimate([math.log(ours / theirs) for ours, theirs in zip(after[POLICY], other, strict=True)])
            numbers[name] = {"mean": found.mean, "half_width": found.half_width}
            words.append(f"{100 * found.mean:+.1f} ± {100 * found.half_width:.1f} % against {name}")
        verdict = "promoted" if is_promoted else "refused"
        self._note("change of mean JCT", verdict, ", ".join(words), numbers)


def gate(
    service: DemoService, log: Path, candidate: Path, incumbent: Path, cluster: str, sizes: Sizes, *more: object
) -> Mapping[str, Any]:
    """The gate's report; `more` are options."""
    found: Mapping[str, Any] = service.run(
        "gate", "--log", log, "--bundle", candidate, "--incumbent", incumbent, "--policy", POLICY, "--cluster", cluster,
        *_gates(sizes), *more,
    )  # fmt: skip
    return found


def _gates(sizes: Sizes) -> Sequence[object]:
    return "--windows", sizes.simulated, "--block-min", sizes.block_min


def _failed(found: Mapping[str, Any]) -> Sequence[str]:
    return [each["name"] for each in found["checks"] if not each["has_passed"]]

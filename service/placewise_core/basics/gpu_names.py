"""GPU models by their names: which two are one, and how fast one is. A name may say more than the model does."""

import re
from collections.abc import Mapping
from functools import lru_cache

# Training speed relative to a V100. K80, T4, A100 and RTX 6000 by measured ResNet-50 seconds per sample; P4, P100,
# 1080 Ti and 2080 Ti by peak single-precision rates; the others, for want of measurements, by the geometric mean of
# peak memory bandwidth and peak single-precision rate.
GPU_SPEEDS: Mapping[str, float] = {
    "k80": 0.124,
    "p4": 0.35,
    "t4": 0.63,
    "p100": 0.59,
    "1080ti": 0.72,
    "2080ti": 0.86,
    "v100": 1.0,
    "a100": 1.38,
    "p40": 0.54,
    "l4": 0.80,
    "a30": 0.82,
    "rtx6000": 0.72,
    "a10": 1.15,
    "3080": 1.27,
    "a40": 1.36,
    "a6000": 1.45,
    "3090": 1.54,
    "l40": 2.36,
    "4090": 2.43,
    "h100": 3.98,
    "h200": 4.77,
}
_LONGEST_FIRST = sorted(GPU_SPEEDS, key=len, reverse=True)


@lru_cache(maxsize=4096)
def gpu_speed(name: str) -> float | None:
    """Speed relative to a V100; None for a model that is not in the table."""
    written = canonical_gpu(name)
    return next((GPU_SPEEDS[known] for known in _LONGEST_FIRST if holds(written, known)), None)


@lru_cache(maxsize=4096)
def is_one_gpu(name: str, other: str) -> bool:
    """Whether two names may be of one GPU model, one of them in more words."""
    mine, its = canonical_gpu(name), canonical_gpu(other)
    return holds(mine, its) or holds(its, mine)


def canonical_gpu(name: str) -> str:
    """Lower case, letters and digits only."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def holds(name: str, part: str) -> bool:
    """Whether a canonical name of a GPU model holds another: "teslav100sxm216gb" does hold "v100", and "v100sxm2"
    before the size of its memory; "a100" does not hold "a10"."""
    ends = r"(?=[1-9]\d*g|\D|$)" if part[-1:].isdigit() else ""
    return bool(part) and re.search(re.escape(part) + ends, name) is not None

"""Measurement noise of the size the measurements have. Seeded by run, job and attempt: the same under every policy.

Pollux' repeated configurations differ by 2 % in the median and 7 % at the 90th percentile; a normal with σ = 3 % has
the first, so one in five draws is taken three times as wide to have the second. GPUs of one type differ by 1-2 % among
themselves (Longhorn, Frontera), which is inside that.
"""

import hashlib
import math
import struct

_SIGMA = 0.03
_WIDE_SHARE, _WIDE = 0.2, 3.0


def speed_noise(seed: int, job_number: int, attempt: int) -> float:
    """A factor on the job's speed, median 1."""
    key = hashlib.blake2b(struct.pack("<qqq", seed, job_number, attempt), digest_size=24).digest()
    choice, radius, angle = (word / 2.0**64 for word in struct.unpack("<QQQ", key))
    normal = math.sqrt(-2.0 * math.log(1.0 - radius)) * math.cos(2.0 * math.pi * angle)  # Box and Muller
    return math.exp(_SIGMA * (_WIDE if choice < _WIDE_SHARE else 1.0) * normal)

"""UUIDv7 ids: sortable by time, unique without coordination (RFC 9562). They are names, not secrets."""

import os
import random
import time

# Seeded by the system, in every process. Asking the system each time costs a decision several microseconds.
_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)
random_bits = _random.getrandbits


def uuid7() -> str:
    """48 bits of Unix milliseconds, then random bits; version 7, variant 10."""
    ms = time.time_ns() // 1_000_000
    bits = f"{random_bits(74):020x}"
    variant = "89ab"[int(bits[1], 16) & 3]
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{bits[2:5]}-{variant}{bits[5:8]}-{bits[8:20]}"

"""UUIDv7 ids: sortable by time, unique without coordination (RFC 9562). They are names, not secrets."""

import os
import random
import time

# Seeded by the system, in every process. Asking the system each time costs a decision several microseconds.
_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)
random_bits = _random.getrandbits
_LOW_BITS = (1 << 62) - 1


def uuid7() -> str:
    """48 bits of Unix milliseconds, then random bits; version 7, variant 10."""
    ms, drawn = time.time_ns() // 1_000_000, random_bits(74)
    digits = f"{ms << 80 | 7 << 76 | drawn >> 62 << 64 | 2 << 62 | drawn & _LOW_BITS:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

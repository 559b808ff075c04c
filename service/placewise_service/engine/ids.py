"""UUIDv7 ids: sortable by time, unique without coordination (RFC 9562)."""

import os
import time


def uuid7() -> str:
    """48 bits of Unix milliseconds, then random bits; version 7, variant 10."""
    ms = time.time_ns() // 1_000_000
    random = os.urandom(10).hex()
    variant = "89ab"[int(random[3], 16) & 3]
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{random[:3]}-{variant}{random[4:7]}-{random[7:19]}"

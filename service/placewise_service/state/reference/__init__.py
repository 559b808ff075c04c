"""The state store in memory, which the one on Redis is held against."""

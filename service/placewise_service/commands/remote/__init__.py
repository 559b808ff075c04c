"""Commands that ask a running service."""

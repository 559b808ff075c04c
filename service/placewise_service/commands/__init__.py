"""Subcommands of `placewise`, one module each. They are clients of the service, or start it; none decides anything."""

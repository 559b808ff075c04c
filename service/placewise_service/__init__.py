"""The decision service: thin faces over one engine, state in Redis."""

"""The state store on Redis: connections, scripts, event streams, the embedded server."""

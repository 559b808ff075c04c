"""One call, whatever its face: credentials, limits, the table of handlers, errors, audit."""

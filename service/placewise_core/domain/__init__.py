"""Jobs, clusters, requests, decisions, events and errors, as values. Decide nothing."""

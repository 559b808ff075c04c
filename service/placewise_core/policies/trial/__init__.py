"""Two bundles in trial on one cluster: the arms of a canary, and a heuristic that stands in for a learned policy."""

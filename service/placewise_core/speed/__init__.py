"""Models of how fast a job runs: throughput by shape, slowdown beside neighbours."""

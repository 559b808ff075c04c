"""Measures a service from outside, against a bare gRPC echo in the same run, and hunts for broken promises."""

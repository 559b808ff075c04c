"""Devices of the API group resource.k8s.io: GPUs by ResourceSlice, and the claims that hold them."""

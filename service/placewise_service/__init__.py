"""The decision service: thin faces over one engine, state in Redis, models in ONNX Runtime."""

import os

# ONNX Runtime looks up its maker's telemetry host some seconds after its import, and heeds nothing but this. It is set
# here because Python runs this file before any other of the package.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

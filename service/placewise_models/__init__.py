"""The nets that serve: bundles on disk, their runtimes, the learned policies. ONNX Runtime and JSON; never torch.

The service and the simulator share it, so that both decide with the same code.
"""

import os

# ONNX Runtime looks up its maker's telemetry host some seconds after its import, and heeds nothing but this. It is set
# here because Python runs this file before any other of the package.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

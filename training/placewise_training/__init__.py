"""Everything that learns or judges: simulator, environment, data, models, trainers, experiments. Never serves."""

import os

# As in placewise_models: ONNX Runtime looks up its maker's telemetry host unless this is set before its import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

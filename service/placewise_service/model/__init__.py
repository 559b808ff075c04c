"""Model bundles: loaded, verified, swapped. Runs on ONNX Runtime and JSON; never on torch."""

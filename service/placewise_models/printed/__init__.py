"""Nets of policies as their papers print them, on ONNX Runtime."""

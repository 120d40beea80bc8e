"""Checkpoint to bundle: ONNX graphs built node by node from the weights."""

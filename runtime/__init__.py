"""What ships to the device: audio in, text out, on NumPy and ONNX Runtime alone."""

"""The server: runs exported encoders on ONNX Runtime and answers gRPC; knows nothing of PyTorch."""

"""The wire: gRPC services, the HTTP address, and the translation of protobuf to core types and back."""

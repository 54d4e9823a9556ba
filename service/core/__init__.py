"""From validated sequences to vectors; knows nothing of gRPC or protobuf."""

"""Generated messages of the Open Inference Protocol."""

"""A graph of an artifact in ONNX Runtime, with the options that the server uses."""

import mmap
import os
from pathlib import Path

from model.artifact import WEIGHTS
from model.selfcheck import Arrays, Run

# ONNX Runtime would report to its makers, and keep an identifier of this machine in the home folder.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime


def load_run(path: Path) -> Run:
    """A function from a graph's inputs to all its outputs, by name."""
    options = onnxruntime.SessionOptions()
    weights = path.with_name(WEIGHTS)
    if not weights.resolve().is_relative_to(path.resolve().parent):
        # ONNX Runtime refuses weights that a link keeps outside the folder of the graph's own file.
        with weights.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # copied with the session
        options.add_external_initializers_from_files_in_memory([WEIGHTS], [content], [len(content)])
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Exact int8 products: without VNNI the faster ones overflow 16 bits in silence. No effect where VNNI is.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        path,
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["SkipLayerNormFusion", "BiasGeluFusion"],
    )
    wanted = {value.name for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        feeds = {name: array for name, array in inputs.items() if name in wanted}
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run

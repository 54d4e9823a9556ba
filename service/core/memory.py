"""How much memory the worst load that the settings allow can take, and whether it fits.

An upper bound, not a forecast: every lane runs the worst batch while the queue and the messages are full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from service.core.artifact import Artifact, Graph
from service.core.cgroups import CGROUP_ROOT, PROCESS_CGROUPS, cgroup_folders
from service.errors import StartError

_FLOAT_BYTES = 4
# Python, ONNX Runtime, gRPC and the tokenizer, before any weights.
_BASE_BYTES = 200 << 20
# Weights are mapped from the file and packed once more for the matrix kernels.
_WEIGHT_COPIES = 2
# Live at once in a layer, in floats for each token and hidden unit: input, residual, query, key, value,
# attention output, and the feed-forward's hidden layer (four times as wide) before and after its activation.
_ACTIVATIONS = 6 + 2 * 4
# Scores before and after softmax.
_SCORE_COPIES = 2
# As the graph gives them, and stacked for one caller.
_MAP_COPIES = 2
# Token ids of a waiting input as Python, NumPy and protobuf hold them.
_QUEUED_TOKEN_BYTES = 32
# A message as bytes, as protobuf and as arrays.
_MESSAGE_COPIES = 3
# More than version 1 of cgroups reports for "no limit".
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, all upper bounds."""

    weights: int
    lanes: int
    queue: int
    messages: int

    @property
    def total(self) -> int:
        return _BASE_BYTES + self.weights + self.lanes + self.queue + self.messages


def plan_memory(
    artifact: Artifact,
    graphs: Sequence[Graph],
    *,
    lanes: int,
    max_batch_tokens: int,
    max_batch_cells: int,
    max_queued_tokens: int,
    max_message_bytes: int,
    on_gpu: bool = False,
) -> MemoryPlan:
    """`on_gpu`: batches take the GPU's memory, not this one."""
    tokens = max(max_batch_tokens, artifact.max_positions)
    activations = tokens * artifact.hidden_size * _ACTIVATIONS
    # Rows as long as possible have the most scores: tokens / S rows of S x S each.
    scores = tokens * artifact.max_positions * artifact.head_count * _SCORE_COPIES
    maps = 0
    if any(graph.kind == "attention" for graph in graphs):
        cells = artifact.layer_count * artifact.head_count * artifact.max_positions**2
        maps = max(max_batch_cells, cells) * _MAP_COPIES
    return MemoryPlan(
        weights=_WEIGHT_COPIES * sum(path.stat().st_size for path in _files(graphs) if path.exists()),
        lanes=0 if on_gpu else lanes * _FLOAT_BYTES * (activations + scores + maps),
        queue=max_queued_tokens * _QUEUED_TOKEN_BYTES,
        messages=_MESSAGE_COPIES * max_message_bytes * lanes,
    )


def check_memory(plan: MemoryPlan, limit: int | None) -> None:
    """Raises StartError when the worst load does not fit; None: there is no limit."""
    if limit is not None and plan.total > limit:
        raise StartError(
            f"the worst load needs {plan.total} bytes (weights {plan.weights}, lanes {plan.lanes}, queue "
            f"{plan.queue}, messages {plan.messages}), --memory-limit-bytes is {limit}; lower --lanes, "
            "--max-batch-tokens, --max-batch-map-cells, --max-queued-tokens or --max-message-bytes, set "
            "--attention-maps false, or give it more memory"
        )


def read_memory_limit(root: Path = CGROUP_ROOT, process_cgroups: Path = PROCESS_CGROUPS) -> int | None:
    """The smallest limit of this process's cgroups in bytes; None: no limit."""
    limits = []
    for folder in cgroup_folders("memory", root, process_cgroups):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                limits.append(int((folder / name).read_text()))
            except (OSError, ValueError):
                continue
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def _files(graphs: Sequence[Graph]) -> set[Path]:
    """Each once: graphs share weights. What is missing is refused when it is loaded."""
    files = {graph.path for graph in graphs}
    for graph in graphs:
        files.update(graph.path.parent / name for name in graph.external_data)
    return files

"""Runs batches on the lanes of one provider; knows nothing of calls or queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Literal

from service.core.artifact import Artifact, Graph
from service.core.collation import BatchArrays
from service.core.lanes import StopSignal
from service.core.sessions import (
    Precision,
    Provider,
    Session,
    SessionConfig,
    encoder_graph,
    ort_name,
)
from service.types import Array

GraphKind = Literal["encoder", "attention"]
_ATTENTION_GRAPH = ("attention", "fp32")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`provider` can compute in `precision` here: see `sessions.choose_provider`."""

    provider: Provider
    precision: Precision
    lanes: int
    threads_per_lane: int = 1
    attention_maps: bool = True
    device_id: int = 0


def choose_graphs(artifact: Artifact, config: EngineConfig) -> dict[GraphKind, Graph]:
    graphs: dict[GraphKind, Graph] = {"encoder": encoder_graph(artifact, config.provider, config.precision)}
    if config.attention_maps:
        graphs["attention"] = artifact.graph(*_ATTENTION_GRAPH)
    return graphs


class Engine:
    """Lanes share one session; on the CPU with several threads a lane, each lane has a session of its own,
    since a session's lanes would share its threads.
    """

    def __init__(self, artifact: Artifact, config: EngineConfig) -> None:
        self.lanes = config.lanes
        self.precision = config.precision
        self._provider = config.provider
        graphs = choose_graphs(artifact, config)
        self.encoder_graph = graphs["encoder"]
        artifact.check_files(graphs.values())
        self._sessions = {kind: self._load(kind, graph, config) for kind, graph in graphs.items()}

    @property
    def provider(self) -> str:
        """ONNX Runtime's name of what runs the encoder."""
        return ort_name(self._provider)

    @property
    def compiles_shapes(self) -> bool:
        """Whether a shape seen for the first time costs more, so that few shapes are better."""
        return self._provider != "cpu"

    @property
    def runs_on_gpu(self) -> bool:
        return self._provider == "cuda"

    @property
    def attention_maps(self) -> bool:
        return "attention" in self._sessions

    def run(
        self,
        graph: GraphKind,
        arrays: BatchArrays,
        output_names: Sequence[str],
        stop: StopSignal | None = None,
    ) -> dict[str, Array]:
        """Called on the lanes' threads; the GIL is free while ONNX Runtime computes."""
        inputs = {
            "input_ids": arrays.input_ids,
            "attention_mask": arrays.attention_mask,
            "token_type_ids": arrays.token_type_ids,
        }
        sessions = self._sessions[graph]
        session = sessions.get()
        try:
            return session.run(output_names, inputs, stop or StopSignal())
        finally:
            sessions.put(session)

    def _load(self, kind: str, graph: Graph, config: EngineConfig) -> SimpleQueue[Session]:
        """What a lane takes for its run and puts back: a session for each, or as often the one they share."""
        provider, precision = self._provider, config.precision
        if kind == "attention":
            precision = "fp32"
            if provider == "openvino":
                provider = "cpu"
        own_session = provider == "cpu" and config.threads_per_lane > 1
        session_config = SessionConfig(
            provider, precision, config.lanes, config.threads_per_lane, config.device_id
        )
        shared = None if own_session else Session(graph, session_config)
        sessions: SimpleQueue[Session] = SimpleQueue()
        for _ in range(config.lanes):
            sessions.put(shared or Session(graph, session_config))
        return sessions

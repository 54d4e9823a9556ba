"""The values that travel through the request path; they know nothing of protobuf, tokenizers or ONNX.

Letters in shape comments, here and elsewhere: N inputs of a call, B batch, S sequence, D hidden,
H heads, L layers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from service.errors import ServiceError

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Pooling(enum.StrEnum):
    NONE = "none"
    CLS = "cls"
    MEAN = "mean"
    MAX = "max"
    LAST = "last"


class Truncation(enum.StrEnum):
    ERROR = "error"
    RIGHT = "right"
    LEFT = "left"


class DataType(enum.StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    UBINARY = "ubinary"


class OnError(enum.StrEnum):
    FAIL_CALL = "fail_call"
    PER_INPUT = "per_input"


class AttentionReduction(enum.StrEnum):
    NONE = "none"
    MEAN_HEADS = "mean_heads"
    ROLLOUT = "rollout"


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class TextPair:
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Tokens made by the caller. An empty mask means all real, empty type ids mean all 0."""

    ids: Ids  # (S,)
    attention_mask: Ids  # (S,) or (0,)
    type_ids: Ids  # (S,) or (0,)


@dataclass(frozen=True, slots=True)
class NoContent:
    """A sequence in which the caller set nothing."""


InputSequence = Text | TextPair | TokenIds | NoContent


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Which maps to return. Empty layers or heads: all. Negative indices count from the last."""

    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    reduction: AttentionReduction = AttentionReduction.NONE
    data_type: DataType = DataType.FLOAT32


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """What a caller chose; None: the model's own."""

    pooling: Pooling | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    embedding_type: DataType = DataType.FLOAT32
    truncation: Truncation = Truncation.ERROR
    max_tokens: int | None = None
    prompt_name: str = ""
    prompt: str = ""
    token_embeddings: bool = False
    tokens: bool = False
    attention: AttentionOptions | None = None
    on_error: OnError = OnError.FAIL_CALL
    priority: int = 0


@dataclass(frozen=True, slots=True)
class EncodeCall:
    inputs: tuple[InputSequence, ...]
    options: EncodeOptions = field(default_factory=EncodeOptions)
    model: str = ""
    expected_revision: str = ""
    # Whether the reply pads token embeddings and maps to the longest input.
    padded_reply: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """One token; offsets in code points of the text sent, end exclusive, both 0 for special tokens.

    `segment` is -1 for a prompt's tokens, whose offsets count in the prompt.
    """

    id: int
    text: str
    start: int
    end: int
    special: bool
    segment: int


@dataclass(slots=True)
class Encoding:
    """The answer for one input; `error` set: it failed and nothing else is."""

    error: ServiceError | None = None
    token_count: int = 0
    unknown_token_count: int = 0
    truncated: bool = False
    token_embeddings: Floats | None = None  # (token_count, D)
    attention: Array | None = None  # (layers, heads, token_count, token_count), reduced as asked
    tokens: list[Token] | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, of the input that finished last; the first three sum to at most the total."""

    tokenize: float
    queue: float
    inference: float
    total: float


@dataclass(slots=True, eq=False, weakref_slot=True)
class BatchRun:
    """A batch on its lane. Moments, here and in Timeline, are time.perf_counter's; 0: not reached."""

    graph: str
    input_count: int
    started: float
    ended: float = 0.0


@dataclass(slots=True)
class Timeline:
    """Where the time of a call's inputs went, as far as they came; of the input that finished last."""

    begun: float = 0.0
    input_count: int = 0
    submitted: float = 0.0  # to the queue
    batches: list[BatchRun] = field(default_factory=list)
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    @property
    def stages(self) -> dict[str, tuple[float, float]]:
        """Begin and end of tokenize, queue and inference, once it has ended."""
        started = self.batches[-1].started if self.batches else self.ended
        stages = {"tokenize": (self.begun, self.submitted or self.ended)}
        if self.submitted:
            stages["queue"] = (self.submitted, started)
        if self.batches:
            stages["inference"] = (started, self.batches[-1].ended or self.ended)
        return stages

    @property
    def tokenize_s(self) -> float:
        return self._seconds_of("tokenize")

    @property
    def queue_s(self) -> float:
        return self._seconds_of("queue")

    @property
    def inference_s(self) -> float:
        return self._seconds_of("inference")

    def _seconds_of(self, stage: str) -> float:
        begun, ended = self.stages.get(stage, (0.0, 0.0))
        return ended - begun


@dataclass(frozen=True, slots=True)
class Vectors:
    """Pooled vectors in the type the caller chose.

    `data` is (N, dimensions), for UBINARY (N, dimensions / 8); BFLOAT16 travels as uint16 bit patterns.
    `scales` is (N,), only with INT8.
    """

    data: Array
    data_type: DataType
    scales: Floats | None = None


@dataclass(frozen=True, slots=True)
class EncodeResult:
    vectors: Vectors | None
    encodings: list[Encoding]
    attention_type: DataType
    precision: str
    timing: Timing


@dataclass(frozen=True, slots=True)
class TokenizedSequence:
    """What the encoder sees of one input; masked columns at the right end are cut off.

    `mask` is None when every token is real. `token_count` counts the real ones.
    """

    ids: Ids  # (S,)
    mask: Ids | None  # (S,)
    type_ids: Ids | None  # (S,), None: all 0
    token_count: int
    unknown_token_count: int = 0
    truncated: bool = False
    tokens: list[Token] | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """AttentionOptions with every index resolved to 0 <= index < count."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    reduction: AttentionReduction
    data_type: DataType

    def shape(self, token_count: int) -> tuple[int, int, int, int]:
        """Of the map of an input: (layers, heads, tokens, tokens) after the reduction."""
        layers, heads = len(self.layers), len(self.heads)
        if self.reduction is AttentionReduction.MEAN_HEADS:
            heads = 1
        if self.reduction is AttentionReduction.ROLLOUT:
            layers = heads = 1
        return layers, heads, token_count, token_count


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a call needs from the graph."""

    pooling: Pooling
    token_embeddings: bool = False
    attention: AttentionPlan | None = None

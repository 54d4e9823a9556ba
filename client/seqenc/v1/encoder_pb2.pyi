from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_NONE: _ClassVar[Pooling]
    POOLING_CLS: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
    POOLING_MAX: _ClassVar[Pooling]
    POOLING_LAST: _ClassVar[Pooling]

class Truncation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRUNCATION_UNSPECIFIED: _ClassVar[Truncation]
    TRUNCATION_ERROR: _ClassVar[Truncation]
    TRUNCATION_RIGHT: _ClassVar[Truncation]
    TRUNCATION_LEFT: _ClassVar[Truncation]

class OnError(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_ERROR_UNSPECIFIED: _ClassVar[OnError]
    ON_ERROR_FAIL_CALL: _ClassVar[OnError]
    ON_ERROR_PER_INPUT: _ClassVar[OnError]

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_BFLOAT16: _ClassVar[DataType]
    DATA_TYPE_INT8: _ClassVar[DataType]
    DATA_TYPE_UBINARY: _ClassVar[DataType]

class AttentionReduction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTENTION_REDUCTION_UNSPECIFIED: _ClassVar[AttentionReduction]
    ATTENTION_REDUCTION_NONE: _ClassVar[AttentionReduction]
    ATTENTION_REDUCTION_MEAN_HEADS: _ClassVar[AttentionReduction]
    ATTENTION_REDUCTION_ROLLOUT: _ClassVar[AttentionReduction]
POOLING_UNSPECIFIED: Pooling
POOLING_NONE: Pooling
POOLING_CLS: Pooling
POOLING_MEAN: Pooling
POOLING_MAX: Pooling
POOLING_LAST: Pooling
TRUNCATION_UNSPECIFIED: Truncation
TRUNCATION_ERROR: Truncation
TRUNCATION_RIGHT: Truncation
TRUNCATION_LEFT: Truncation
ON_ERROR_UNSPECIFIED: OnError
ON_ERROR_FAIL_CALL: OnError
ON_ERROR_PER_INPUT: OnError
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_BFLOAT16: DataType
DATA_TYPE_INT8: DataType
DATA_TYPE_UBINARY: DataType
ATTENTION_REDUCTION_UNSPECIFIED: AttentionReduction
ATTENTION_REDUCTION_NONE: AttentionReduction
ATTENTION_REDUCTION_MEAN_HEADS: AttentionReduction
ATTENTION_REDUCTION_ROLLOUT: AttentionReduction

class EncodeRequest(_message.Message):
    __slots__ = ("model", "inputs", "options", "request_id", "expected_revision")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Sequence]
    options: EncodeOptions
    request_id: str
    expected_revision: str
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Sequence, _Mapping]]] = ..., options: _Optional[_Union[EncodeOptions, _Mapping]] = ..., request_id: _Optional[str] = ..., expected_revision: _Optional[str] = ...) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("text", "text_pair", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TEXT_PAIR_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    text_pair: TextPair
    token_ids: TokenIds
    def __init__(self, text: _Optional[str] = ..., text_pair: _Optional[_Union[TextPair, _Mapping]] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ...) -> None: ...

class TextPair(_message.Message):
    __slots__ = ("first", "second")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    first: str
    second: str
    def __init__(self, first: _Optional[str] = ..., second: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids", "attention_mask", "type_ids")
    IDS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_MASK_FIELD_NUMBER: _ClassVar[int]
    TYPE_IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    attention_mask: _containers.RepeatedScalarFieldContainer[int]
    type_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., attention_mask: _Optional[_Iterable[int]] = ..., type_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class EncodeOptions(_message.Message):
    __slots__ = ("pooling", "normalize", "dimensions", "embedding_type", "truncation", "max_tokens", "prompt_name", "prompt", "token_embeddings", "tokens", "attention", "on_error", "priority")
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_TYPE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    ON_ERROR_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    pooling: Pooling
    normalize: bool
    dimensions: int
    embedding_type: DataType
    truncation: Truncation
    max_tokens: int
    prompt_name: str
    prompt: str
    token_embeddings: bool
    tokens: bool
    attention: AttentionOptions
    on_error: OnError
    priority: int
    def __init__(self, pooling: _Optional[_Union[Pooling, str]] = ..., normalize: bool = ..., dimensions: _Optional[int] = ..., embedding_type: _Optional[_Union[DataType, str]] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., max_tokens: _Optional[int] = ..., prompt_name: _Optional[str] = ..., prompt: _Optional[str] = ..., token_embeddings: bool = ..., tokens: bool = ..., attention: _Optional[_Union[AttentionOptions, _Mapping]] = ..., on_error: _Optional[_Union[OnError, str]] = ..., priority: _Optional[int] = ...) -> None: ...

class AttentionOptions(_message.Message):
    __slots__ = ("layers", "heads", "reduction", "type")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    heads: _containers.RepeatedScalarFieldContainer[int]
    reduction: AttentionReduction
    type: DataType
    def __init__(self, layers: _Optional[_Iterable[int]] = ..., heads: _Optional[_Iterable[int]] = ..., reduction: _Optional[_Union[AttentionReduction, str]] = ..., type: _Optional[_Union[DataType, str]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("type", "shape", "data")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    type: DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, type: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("request_id", "embeddings", "embedding_scales", "results", "model", "revision", "precision", "timing")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SCALES_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    embeddings: Tensor
    embedding_scales: _containers.RepeatedScalarFieldContainer[float]
    results: _containers.RepeatedCompositeFieldContainer[Encoding]
    model: str
    revision: str
    precision: str
    timing: Timing
    def __init__(self, request_id: _Optional[str] = ..., embeddings: _Optional[_Union[Tensor, _Mapping]] = ..., embedding_scales: _Optional[_Iterable[float]] = ..., results: _Optional[_Iterable[_Union[Encoding, _Mapping]]] = ..., model: _Optional[str] = ..., revision: _Optional[str] = ..., precision: _Optional[str] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ...) -> None: ...

class EncodeStreamResponse(_message.Message):
    __slots__ = ("request_id", "response", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    response: EncodeResponse
    error: _status_pb2.Status
    def __init__(self, request_id: _Optional[str] = ..., response: _Optional[_Union[EncodeResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class Encoding(_message.Message):
    __slots__ = ("status", "token_count", "unknown_token_count", "truncated", "token_embeddings", "attention", "tokens")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    status: _status_pb2.Status
    token_count: int
    unknown_token_count: int
    truncated: bool
    token_embeddings: Tensor
    attention: Tensor
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., token_count: _Optional[int] = ..., unknown_token_count: _Optional[int] = ..., truncated: bool = ..., token_embeddings: _Optional[_Union[Tensor, _Mapping]] = ..., attention: _Optional[_Union[Tensor, _Mapping]] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "text", "start", "end", "special", "segment")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    start: int
    end: int
    special: bool
    segment: int
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., special: bool = ..., segment: _Optional[int] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("tokenize_seconds", "queue_seconds", "inference_seconds", "total_seconds")
    TOKENIZE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    tokenize_seconds: float
    queue_seconds: float
    inference_seconds: float
    total_seconds: float
    def __init__(self, tokenize_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., inference_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "inputs", "options")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Sequence]
    options: EncodeOptions
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Sequence, _Mapping]]] = ..., options: _Optional[_Union[EncodeOptions, _Mapping]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TokenizedSequence]
    def __init__(self, results: _Optional[_Iterable[_Union[TokenizedSequence, _Mapping]]] = ...) -> None: ...

class TokenizedSequence(_message.Message):
    __slots__ = ("status", "tokens", "truncated")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    status: _status_pb2.Status
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    truncated: bool
    def __init__(self, status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., truncated: bool = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "revision", "family", "hidden_size", "embedding_size", "layer_count", "head_count", "vocabulary_size", "max_tokens", "max_positions", "pooling", "normalize", "prompts", "precision", "provider", "attention_maps", "max_input_count", "max_message_bytes", "fidelity", "default_prompt_name")
    class PromptsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    HEAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_MAPS_FIELD_NUMBER: _ClassVar[int]
    MAX_INPUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIDELITY_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    revision: str
    family: str
    hidden_size: int
    embedding_size: int
    layer_count: int
    head_count: int
    vocabulary_size: int
    max_tokens: int
    max_positions: int
    pooling: Pooling
    normalize: bool
    prompts: _containers.ScalarMap[str, str]
    precision: str
    provider: str
    attention_maps: bool
    max_input_count: int
    max_message_bytes: int
    fidelity: float
    default_prompt_name: str
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[str] = ..., family: _Optional[str] = ..., hidden_size: _Optional[int] = ..., embedding_size: _Optional[int] = ..., layer_count: _Optional[int] = ..., head_count: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., max_tokens: _Optional[int] = ..., max_positions: _Optional[int] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., normalize: bool = ..., prompts: _Optional[_Mapping[str, str]] = ..., precision: _Optional[str] = ..., provider: _Optional[str] = ..., attention_maps: bool = ..., max_input_count: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., fidelity: _Optional[float] = ..., default_prompt_name: _Optional[str] = ...) -> None: ...

"""protobuf -> the types of the request path, and results -> protobuf; values only, no policy."""

from __future__ import annotations

import enum
from typing import Any, TypeVar

import numpy as np
from google.rpc import code_pb2, error_details_pb2, status_pb2

from seqenc.v1 import encoder_pb2 as pb
from service.core.artifact import Artifact
from service.core.pipeline import PipelineConfig
from service.core.tokenization import TokenizedCall
from service.errors import InvalidInputError, ServiceError, TryLaterError, Violation
from service.types import (
    Array,
    AttentionOptions,
    AttentionReduction,
    DataType,
    EncodeCall,
    EncodeOptions,
    EncodeResult,
    Encoding,
    InputSequence,
    NoContent,
    OnError,
    Pooling,
    Text,
    TextPair,
    Token,
    TokenIds,
    Truncation,
)

ERROR_DOMAIN = "seqenc"
Choice = TypeVar("Choice", bound=enum.StrEnum)


def _by_number(choices: type[Choice], enum_type: Any) -> dict[int, Choice]:
    """A protobuf enum's numbers and our values; 0, which is unspecified, has none."""
    prefix = enum_type.Name(0).removesuffix("UNSPECIFIED")
    return {
        number: choices(name.removeprefix(prefix).lower()) for name, number in enum_type.items() if number
    }


_POOLINGS = _by_number(Pooling, pb.Pooling)
_DATA_TYPES = _by_number(DataType, pb.DataType)
_TRUNCATIONS = _by_number(Truncation, pb.Truncation)
_ON_ERROR = _by_number(OnError, pb.OnError)
_REDUCTIONS = _by_number(AttentionReduction, pb.AttentionReduction)
_POOLING_NUMBERS: dict[str, Any] = {pooling: number for number, pooling in _POOLINGS.items()}
_DATA_TYPE_NUMBERS: dict[str, Any] = {data_type: number for number, data_type in _DATA_TYPES.items()}


def encode_call(request: pb.EncodeRequest | pb.TokenizeRequest, model: Artifact) -> EncodeCall:
    """Raises InvalidInputError for an enum value that the contract does not have.

    Of lists that are longer than the model allows only as much is read as shows that they are.
    """
    limit = model.max_positions + 1
    return EncodeCall(
        inputs=tuple(_sequence(sequence, limit) for sequence in request.inputs),
        options=_options(request.options, model),
        model=request.model,
        expected_revision=request.expected_revision if isinstance(request, pb.EncodeRequest) else "",
    )


def _sequence(sequence: pb.Sequence, limit: int) -> InputSequence:
    content = sequence.WhichOneof("content")
    if content == "text":
        return Text(sequence.text)
    if content == "text_pair":
        return TextPair(sequence.text_pair.first, sequence.text_pair.second)
    if content == "token_ids":
        ids = sequence.token_ids
        return TokenIds(
            np.array(ids.ids[:limit], np.int64),
            np.array(ids.attention_mask[:limit], np.int64),
            np.array(ids.type_ids[:limit], np.int64),
        )
    return NoContent()


def _options(options: pb.EncodeOptions, model: Artifact) -> EncodeOptions:
    return EncodeOptions(
        pooling=_choice(_POOLINGS, options.pooling, "options.pooling"),
        normalize=options.normalize if options.HasField("normalize") else None,
        dimensions=options.dimensions if options.HasField("dimensions") else None,
        embedding_type=_choice(_DATA_TYPES, options.embedding_type, "options.embedding_type")
        or DataType.FLOAT32,
        truncation=_choice(_TRUNCATIONS, options.truncation, "options.truncation") or Truncation.ERROR,
        max_tokens=options.max_tokens if options.HasField("max_tokens") else None,
        prompt_name=options.prompt_name,
        prompt=options.prompt,
        token_embeddings=options.token_embeddings,
        tokens=options.tokens,
        attention=_attention(options.attention, model) if options.HasField("attention") else None,
        on_error=_choice(_ON_ERROR, options.on_error, "options.on_error") or OnError.FAIL_CALL,
        priority=options.priority,
    )


def _attention(options: pb.AttentionOptions, model: Artifact) -> AttentionOptions:
    reduction = _choice(_REDUCTIONS, options.reduction, "options.attention.reduction")
    return AttentionOptions(
        layers=tuple(options.layers[: model.layer_count + 1]),
        heads=tuple(options.heads[: model.head_count + 1]),
        reduction=reduction or AttentionReduction.NONE,
        data_type=_choice(_DATA_TYPES, options.type, "options.attention.type") or DataType.FLOAT32,
    )


def _choice(choices: dict[int, Choice], number: int, field: str) -> Choice | None:
    """None for the unspecified one, 0."""
    if number and number not in choices:
        raise InvalidInputError.of(field, f"is {number}; the API has 0 to {max(choices)}")
    return choices.get(number)


def encode_response(request: pb.EncodeRequest, result: EncodeResult, model: Artifact) -> pb.EncodeResponse:
    response = pb.EncodeResponse(
        request_id=request.request_id,
        model=model.name,
        revision=model.revision,
        precision=result.precision,
        timing=pb.Timing(
            tokenize_seconds=result.timing.tokenize,
            queue_seconds=result.timing.queue,
            inference_seconds=result.timing.inference,
            total_seconds=result.timing.total,
        ),
    )
    for encoding in result.encodings:
        _fill_encoding(response.results.add(), encoding, result.attention_type)
    if result.vectors is not None:
        _fill_tensor(response.embeddings, result.vectors.data, result.vectors.data_type)
        if result.vectors.scales is not None:
            response.embedding_scales.extend(result.vectors.scales.tolist())
    return response


def tokenize_response(tokenized: TokenizedCall, count: int) -> pb.TokenizeResponse:
    response = pb.TokenizeResponse()
    for index in range(count):
        if index in tokenized.errors:
            response.results.add(status=status_of(tokenized.errors[index]))
        else:
            sequence = tokenized.sequences[index]
            response.results.add(tokens=map(_token, sequence.tokens or ()), truncated=sequence.truncated)
    return response


def model_response(model: Artifact, server: PipelineConfig) -> pb.GetModelResponse:
    return pb.GetModelResponse(
        model=pb.Model(
            name=model.name,
            revision=model.revision,
            family=model.family,
            hidden_size=model.hidden_size,
            embedding_size=model.hidden_size,
            layer_count=model.layer_count,
            head_count=model.head_count,
            vocabulary_size=model.vocabulary_size,
            max_tokens=model.max_tokens,
            max_positions=model.max_positions,
            pooling=_POOLING_NUMBERS[model.pooling],
            normalize=model.normalize,
            prompts=model.prompts,
            precision=server.precision,
            provider=server.provider,
            attention_maps=server.attention_maps,
            max_input_count=server.max_inputs,
            max_message_bytes=server.max_message_bytes,
            fidelity=server.fidelity,
            default_prompt_name=model.default_prompt_name,
        )
    )


def status_of(error: ServiceError) -> status_pb2.Status:
    """A status with ErrorInfo and, where they apply, BadRequest or RetryInfo."""
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code), message=str(error))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN))
    if isinstance(error, InvalidInputError):
        status.details.add().Pack(_bad_request(error.violations))
    if isinstance(error, TryLaterError):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        status.details.add().Pack(retry)
    return status


def _bad_request(violations: tuple[Violation, ...]) -> error_details_pb2.BadRequest:
    return error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(
                field=violation.field, description=violation.description
            )
            for violation in violations
        ]
    )


def _fill_encoding(message: pb.Encoding, encoding: Encoding, attention_type: DataType) -> None:
    """Fills in place: each copy of a message into another would copy its arrays."""
    if encoding.error:
        message.status.CopyFrom(status_of(encoding.error))
        return
    message.token_count = encoding.token_count
    message.unknown_token_count = encoding.unknown_token_count
    message.truncated = encoding.truncated
    if encoding.token_embeddings is not None:
        _fill_tensor(message.token_embeddings, encoding.token_embeddings, DataType.FLOAT32)
    if encoding.attention is not None:
        _fill_tensor(message.attention, encoding.attention, attention_type)
    if encoding.tokens is not None:
        message.tokens.extend(map(_token, encoding.tokens))


def _token(token: Token) -> pb.Token:
    return pb.Token(
        id=token.id,
        text=token.text,
        start=token.start,
        end=token.end,
        special=token.special,
        segment=token.segment,
    )


def _fill_tensor(message: pb.Tensor, array: Array, data_type: DataType) -> None:
    message.type = _DATA_TYPE_NUMBERS[data_type]
    message.shape.extend(array.shape)
    message.data = array.tobytes()

"""inference.GRPCInferenceService (Open Inference Protocol v2) on the same pipeline as EncoderService."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TypeVar

import grpc
import numpy as np
from google.protobuf.message import Message

from service.api.allowance import Allowance
from service.api.handlers import Context, UnaryMethod, unary
from service.api.inference import open_inference_pb2 as pb
from service.api.inference_tensors import INPUTS, Inputs, add_output, read_parameters
from service.api.lifecycle import Lifecycle
from service.api.observation import Observer, timed
from service.core.artifact import Artifact
from service.errors import InvalidInputError, ReplyTooLargeError, Violation
from service.types import (
    Array,
    AttentionOptions,
    EncodeCall,
    EncodeOptions,
    EncodeResult,
    Floats,
    Ids,
    InputSequence,
    Pooling,
    Text,
    TextPair,
    TokenIds,
    Truncation,
)

SERVICE_NAME = "inference.GRPCInferenceService"
Choice = TypeVar("Choice", Pooling, Truncation)
_OUTPUTS = ("embedding", "token_embeddings", "attention_mask", "attentions")
_PARAMETERS = {
    "pooling": "string_param",
    "normalize": "bool_param",
    "dimensions": "int64_param",
    "truncation": "string_param",
    "prompt_name": "string_param",
}
# An upper bound of a reply without its tensors' data.
_REPLY_BYTES = 1_024
_NO_IDS = np.zeros(0, np.int64)
_INPUT_PATH = re.compile(r"inputs\[(\d+)\](?:\.(text|text_pair)\b.*|\.token_ids\.(\w+)(?:\[(\d+)\])?)?")
_ID_TENSORS = {"ids": "input_ids", "attention_mask": "attention_mask", "type_ids": "token_type_ids"}


class OpenInferenceService:
    def __init__(self, lifecycle: Lifecycle, observer: Observer, allowance: Allowance) -> None:
        self._lifecycle = lifecycle
        self._allowance = allowance
        self._observer = observer

    def register(self, server: grpc.aio.Server) -> None:
        methods: dict[str, tuple[type[Message], UnaryMethod]] = {
            "ServerLive": (pb.ServerLiveRequest, self.server_live),
            "ServerReady": (pb.ServerReadyRequest, self.server_ready),
            "ModelReady": (pb.ModelReadyRequest, self.model_ready),
            "ServerMetadata": (pb.ServerMetadataRequest, self.server_metadata),
            "ModelMetadata": (pb.ModelMetadataRequest, self.model_metadata),
            "ModelInfer": (pb.ModelInferRequest, self.model_infer),
        }
        handlers = {
            name: unary(name, request, method, self._observer) for name, (request, method) in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    async def server_live(self, *_: object) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, *_: object) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._lifecycle.is_serving)

    async def model_ready(self, request: pb.ModelReadyRequest, _: Context) -> pb.ModelReadyResponse:
        if not self._lifecycle.is_serving:
            return pb.ModelReadyResponse(ready=False)
        self._lifecycle.pipeline.check_model(request.name, request.version)
        return pb.ModelReadyResponse(ready=True)

    async def server_metadata(self, *_: object) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="seqenc", version=version("seqenc"))

    async def model_metadata(self, request: pb.ModelMetadataRequest, _: Context) -> pb.ModelMetadataResponse:
        pipeline = self._lifecycle.pipeline
        pipeline.check_model(request.name, request.version)
        return _metadata(pipeline.model, attention_maps=pipeline.config.attention_maps)

    async def model_infer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        pipeline = self._lifecycle.pipeline
        pipeline.check_model(request.model_name, request.model_version)
        wanted = _wanted_outputs(request)
        inputs = Inputs(request, max_rows=pipeline.config.max_inputs)
        sequences = _sequences(inputs)
        call = EncodeCall(sequences, _options(request, wanted), padded_reply=True)
        width = _given_width(inputs)
        _check_reply(width, len(sequences), wanted, pipeline.model, pipeline.config.max_message_bytes)
        self._allowance.take(context, len(sequences))
        try:
            deadline = self._allowance.deadline_of(context)
            with timed(len(sequences)) as timeline:
                result = await pipeline.encode(call, deadline=deadline, timeline=timeline)
        except InvalidInputError as error:
            raise error.rename(_name_tensor) from error
        response = pb.ModelInferResponse(
            model_name=pipeline.model.name, model_version=pipeline.model.revision, id=request.id
        )
        _add_outputs(response, result, wanted, _real_positions(inputs, result), width)
        return response


def _metadata(model: Artifact, *, attention_maps: bool) -> pb.ModelMetadataResponse:
    response = pb.ModelMetadataResponse(
        name=model.name, versions=[model.revision], platform="onnxruntime_onnx"
    )
    for name, (datatypes, axes) in INPUTS.items():
        response.inputs.add(name=name, datatype=datatypes[0], shape=[-1] * axes)
    response.outputs.add(name="embedding", datatype="FP32", shape=[-1, model.hidden_size])
    response.outputs.add(name="token_embeddings", datatype="FP32", shape=[-1, -1, model.hidden_size])
    response.outputs.add(name="attention_mask", datatype="INT64", shape=[-1, -1])
    if attention_maps:
        shape = [-1, model.layer_count, model.head_count, -1, -1]
        response.outputs.add(name="attentions", datatype="FP32", shape=shape)
    return response


def _wanted_outputs(request: pb.ModelInferRequest) -> list[str]:
    if len(request.outputs) > len(_OUTPUTS):
        raise InvalidInputError.of(
            "outputs",
            f"asks for {len(request.outputs)} outputs, this model has {len(_OUTPUTS)}; ask for each once",
        )
    wanted = [output.name for output in request.outputs] or ["embedding"]
    for index, name in enumerate(wanted):
        if name not in _OUTPUTS:
            raise InvalidInputError.of(
                f"outputs[{index}].name", f"is not an output of this model; it has {', '.join(_OUTPUTS)}"
            )
        if name in wanted[:index]:
            raise InvalidInputError.of(f"outputs[{index}].name", f"names {name} again; ask for each once")
    for index, output in enumerate(request.outputs):
        if output.parameters:
            raise InvalidInputError.of(
                f"outputs[{index}].parameters", "are set, such as shared memory; this server takes none"
            )
    if "token_embeddings" in wanted and "attention_mask" not in wanted:
        wanted.append("attention_mask")
    return wanted


def _options(request: pb.ModelInferRequest, wanted: list[str]) -> EncodeOptions:
    values = read_parameters(request.parameters, _PARAMETERS)
    pooling = _choose(Pooling, "pooling", values.pop("pooling", None))
    truncation = _choose(Truncation, "truncation", values.pop("truncation", None))
    attention = AttentionOptions() if "attentions" in wanted else None
    if "embedding" not in wanted:
        _refuse_without_embedding(pooling, values)
        pooling = Pooling.NONE
    elif pooling is Pooling.NONE:
        raise InvalidInputError.of(
            "parameters[pooling]", "is none but embedding is asked for; ask for another output or pooling"
        )
    return EncodeOptions(
        pooling=pooling,
        truncation=truncation or Truncation.ERROR,
        token_embeddings="token_embeddings" in wanted,
        tokens=wanted == ["attention_mask"],
        attention=attention,
        **values,  # type: ignore[arg-type]  # read_parameters checked the kinds
    )


def _refuse_without_embedding(pooling: Pooling | None, values: dict[str, bool | int | str]) -> None:
    given: list[str] = [name for name in ("normalize", "dimensions") if name in values]
    if pooling not in (None, Pooling.NONE):
        given.insert(0, "pooling")
    if given:
        raise InvalidInputError.of(
            f"parameters[{given[0]}]",
            "is set but embedding is not among the outputs; ask for it or leave this out",
        )


def _choose(choices: type[Choice], name: str, value: object) -> Choice | None:
    if value is None:
        return None
    if value not in [str(choice) for choice in choices]:
        raise InvalidInputError.of(f"parameters[{name}]", f"must be one of {', '.join(choices)}")
    return choices(value)


def _sequences(inputs: Inputs) -> tuple[InputSequence, ...]:
    """One for each row; raises InvalidInputError for tensors that do not belong together."""
    texts, integers = inputs.texts, inputs.integers
    if ("text" in texts) == ("input_ids" in integers):
        raise InvalidInputError.of("inputs", "must have either text or input_ids")
    if "text" in texts:
        if integers:
            raise InvalidInputError.of(next(iter(integers)), "is set together with text; leave it out")
        return _text_sequences(texts["text"], texts.get("text_pair"))
    if texts:
        raise InvalidInputError.of("text_pair", "is set together with input_ids; leave it out")
    ids = integers["input_ids"]
    for name, values in integers.items():
        if values.shape != ids.shape:
            raise InvalidInputError.of(
                name, f"has shape {list(values.shape)}, input_ids has {list(ids.shape)}; give both the same"
            )
    masks, types = integers.get("attention_mask"), integers.get("token_type_ids")
    return tuple(
        TokenIds(ids[row], _NO_IDS if masks is None else masks[row], _NO_IDS if types is None else types[row])
        for row in range(len(ids))
    )


def _text_sequences(texts: list[str], pairs: list[str] | None) -> tuple[InputSequence, ...]:
    if pairs is None:
        return tuple(map(Text, texts))
    if len(pairs) != len(texts):
        raise InvalidInputError.of(
            "text_pair", f"has {len(pairs)} texts for {len(texts)} of text; send one for each"
        )
    return tuple(map(TextPair, texts, pairs))


def _given_width(inputs: Inputs) -> int:
    """Columns of token ids as sent, which token outputs keep; 0 for text."""
    ids = inputs.integers.get("input_ids")
    return 0 if ids is None else ids.shape[1]


def _check_reply(width: int, count: int, wanted: list[str], model: Artifact, limit: int) -> None:
    """Refuses token ids whose outputs, as wide as sent, would be too large; text is checked later."""
    floats = 0
    if "embedding" in wanted:
        floats += model.hidden_size
    if "token_embeddings" in wanted:
        floats += width * model.hidden_size
    if "attentions" in wanted:
        floats += model.layer_count * model.head_count * width * width
    size = _REPLY_BYTES + count * (4 * floats + 8 * width)
    if width and size > limit:
        raise ReplyTooLargeError(size, limit)


def _name_tensor(violation: Violation) -> Violation:
    """A violation's path in the terms of this protocol: `inputs[3].token_ids.ids[7]` is `input_ids[3, 7]`."""
    match = _INPUT_PATH.fullmatch(violation.field)
    if not match:
        field = violation.field.removeprefix("options.")
        return Violation(f"parameters[{field}]" if field != violation.field else field, violation.description)
    row, text, ids, column = match.groups()
    tensor = text or _ID_TENSORS.get(ids or "", "inputs")
    if violation.field.endswith(".second"):
        tensor = "text_pair"
    elif text:
        tensor = "text"
    place = f"{row}, {column}" if column else row
    return Violation(f"{tensor}[{place}]", violation.description)


def _real_positions(inputs: Inputs, result: EncodeResult) -> list[Ids]:
    """For each row, the columns of its real tokens."""
    masks = inputs.integers.get("attention_mask")
    if masks is not None:
        return [np.flatnonzero(mask) for mask in masks]
    return [np.arange(encoding.token_count) for encoding in result.encodings]


def _add_outputs(
    response: pb.ModelInferResponse,
    result: EncodeResult,
    wanted: list[str],
    positions: list[Ids],
    width: int,
) -> None:
    width = width or max(len(columns) for columns in positions)
    for name in wanted:
        if name == "embedding":
            add_output(response, name, _given(result.vectors.data if result.vectors else None))
        elif name == "token_embeddings":
            rows = [encoding.token_embeddings for encoding in result.encodings]
            add_output(response, name, _place_tokens(rows, positions, width))
        elif name == "attention_mask":
            add_output(response, name, _place_mask(positions, width))
        else:
            maps = [encoding.attention for encoding in result.encodings]
            add_output(response, name, _place_maps(maps, positions, width))


def _place_mask(positions: list[Ids], width: int) -> Ids:
    mask = np.zeros((len(positions), width), np.int64)
    for row, columns in enumerate(positions):
        mask[row, columns] = 1
    return mask


def _place_tokens(rows: list[Floats | None], positions: list[Ids], width: int) -> Floats:
    """(n, width, D), zero where there is no real token."""
    placed = np.zeros((len(rows), width, _given(rows[0]).shape[1]), np.float32)
    for row, columns in enumerate(positions):
        placed[row, columns] = _given(rows[row])
    return placed


def _place_maps(maps: list[Array | None], positions: list[Ids], width: int) -> Floats:
    """(n, L, H, width, width), zero where there is no real token."""
    layers, heads = _given(maps[0]).shape[:2]
    placed = np.zeros((len(maps), layers, heads, width, width), np.float32)
    for row, columns in enumerate(positions):
        placed[row][:, :, columns[:, None], columns] = _given(maps[row])
    return placed


def _given(array: Array | None) -> Array:
    if array is None:
        raise AssertionError("an output that was asked for is missing")
    return array

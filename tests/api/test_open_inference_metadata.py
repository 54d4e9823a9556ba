"""What the Open Inference Protocol says of the server and its model, ready or not."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
import pytest

from api.api_server import ApiServer
from api.conftest import ServeApi
from api.refusals import refusal_of
from api.tensors import infer_request, outputs_of
from service.api.inference import open_inference_pb2 as pb

CALLS = {
    "ModelInfer": infer_request({"text": ["a"]}),
    "ModelMetadata": pb.ModelMetadataRequest(),
}


@pytest.fixture
def starting(serve: ServeApi) -> Iterator[ApiServer]:
    with serve(ready=False) as server:
        yield server


@pytest.fixture
def draining(serve: ServeApi) -> Iterator[ApiServer]:
    with serve() as server:
        server.lifecycle.drain()
        yield server


def test_a_server_that_serves_is_live_and_ready(server: ApiServer) -> None:
    assert server.inference.ServerLive(pb.ServerLiveRequest()).live
    assert server.inference.ServerReady(pb.ServerReadyRequest()).ready
    assert server.inference.ModelReady(pb.ModelReadyRequest()).ready
    revision = server.pipeline.model.revision
    assert server.inference.ModelReady(pb.ModelReadyRequest(name="tiny-bert", version=revision)).ready


@pytest.mark.parametrize(("state", "reason"), [("starting", "NOT_READY"), ("draining", "DRAINING")])
def test_a_server_that_does_not_serve_is_live_but_not_ready(
    request: pytest.FixtureRequest, state: str, reason: str
) -> None:
    server: ApiServer = request.getfixturevalue(state)
    assert server.inference.ServerLive(pb.ServerLiveRequest()).live
    assert not server.inference.ServerReady(pb.ServerReadyRequest()).ready
    assert not server.inference.ModelReady(pb.ModelReadyRequest(name="tiny-bert")).ready
    assert server.inference.ServerMetadata(pb.ServerMetadataRequest()).name == "seqenc"
    for name, message in CALLS.items():
        refusal = refusal_of(getattr(server.inference, name), message)
        assert (refusal.code, refusal.reason) == ("UNAVAILABLE", reason)


def test_a_server_about_to_drain_is_not_ready_but_answers(serve: ServeApi) -> None:
    with serve() as server:
        server.lifecycle.leave()
        assert not server.inference.ServerReady(pb.ServerReadyRequest()).ready
        assert not server.inference.ModelReady(pb.ModelReadyRequest()).ready
        assert "embedding" in outputs_of(server.inference.ModelInfer(CALLS["ModelInfer"]))


@pytest.mark.parametrize("name", ["ModelReady", "ModelMetadata"])
def test_another_model_or_revision_is_refused(server: ApiServer, name: str) -> None:
    call, message = getattr(server.inference, name), getattr(pb, f"{name}Request")
    assert refusal_of(call, message(name="other")).code == "NOT_FOUND"
    assert refusal_of(call, message(version="1")).code == "FAILED_PRECONDITION"


def test_the_server_names_itself(server: ApiServer) -> None:
    metadata = server.inference.ServerMetadata(pb.ServerMetadataRequest())
    assert (metadata.name, metadata.version, list(metadata.extensions)) == ("seqenc", version("seqenc"), [])


def test_the_model_lists_its_tensors(server: ApiServer) -> None:
    metadata = server.inference.ModelMetadata(pb.ModelMetadataRequest(name="tiny-bert"))
    assert metadata.name == "tiny-bert"
    assert list(metadata.versions) == [server.pipeline.model.revision]
    assert tensors(metadata.inputs) == {
        "text": ("BYTES", [-1]),
        "text_pair": ("BYTES", [-1]),
        "input_ids": ("INT64", [-1, -1]),
        "attention_mask": ("INT64", [-1, -1]),
        "token_type_ids": ("INT64", [-1, -1]),
    }
    assert tensors(metadata.outputs) == {
        "embedding": ("FP32", [-1, 32]),
        "token_embeddings": ("FP32", [-1, -1, 32]),
        "attention_mask": ("INT64", [-1, -1]),
        "attentions": ("FP32", [-1, 2, 2, -1, -1]),
    }


def test_the_tensors_listed_are_those_of_a_reply(server: ApiServer) -> None:
    listed = tensors(server.inference.ModelMetadata(pb.ModelMetadataRequest()).outputs)
    response = server.inference.ModelInfer(infer_request({"text": ["a", "b c"]}, listed))
    for tensor in response.outputs:
        datatype, shape = listed[tensor.name]
        assert tensor.datatype == datatype
        assert [size if known > 0 else -1 for size, known in zip(tensor.shape, shape, strict=True)] == shape
    assert all(np.isfinite(values).all() for values in outputs_of(response).values())


def tensors(listed: object) -> dict[str, tuple[str, list[int]]]:
    return {tensor.name: (tensor.datatype, list(tensor.shape)) for tensor in listed}  # type: ignore[attr-defined]

"""Compression, limits of size and reflection, as far as the transport has them."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from api.api_server import ApiServer
from api.conftest import ServeApi
from api.refusals import refusal_of
from seqenc.v1 import encoder_pb2 as pb

REQUEST = pb.EncodeRequest(inputs=[pb.Sequence(text="What a long day!")] * 50)
BYTES_LIMIT = 1 << 16


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate], ids=str)
def test_compressed_requests_are_read(server: ApiServer, compression: grpc.Compression) -> None:
    plain = server.encoder.Encode(REQUEST, timeout=30)
    response = server.encoder.Encode(REQUEST, timeout=30, compression=compression)
    vectors, expected = (np.frombuffer(reply.embeddings.data, np.float32) for reply in (response, plain))
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip], ids=str)
def test_a_request_over_the_limit_is_refused(
    small_reply_server: ApiServer, compression: grpc.Compression
) -> None:
    request = pb.EncodeRequest(inputs=[pb.Sequence(text="a " * BYTES_LIMIT)])
    refusal = refusal_of(small_reply_server.encoder.Encode, request, compression=compression)
    assert refusal.code == "RESOURCE_EXHAUSTED"
    assert "larger than max" in refusal.message
    assert small_reply_server.encoder.Encode(REQUEST, timeout=30).model == "tiny-bert"


def test_reflection_can_be_turned_off(serve: ServeApi) -> None:
    with serve(reflection=False) as server:
        stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        ask = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.ServerReflectionInfo(ask, timeout=30))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert server.encoder.Encode(REQUEST, timeout=30).model == "tiny-bert"

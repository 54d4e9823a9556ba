"""Bearer tokens: the file's form, who is let in at which call, and what happens when the file changes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from api.files import replace
from api.own_server import TIMEOUT_S, OwnServer, check_health, code_of, raw_stream, raw_unary, serve_here
from api.refusals import read_refusal
from service.api.tokens import load_tokens
from service.errors import StartError

ALICE, BOB, NEW = "alice-secret-0123456789", "bob/secret+0123456789==", "renewed-secret-987654321"
REQUEST = b"\x0a\x00"
METHODS = [
    "/seqenc.v1.EncoderService/Encode",
    "/seqenc.v1.EncoderService/EncodeStream",
    "/seqenc.v1.EncoderService/Tokenize",
    "/seqenc.v1.EncoderService/GetModel",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/inference.GRPCInferenceService/ModelReady",
    "/inference.GRPCInferenceService/ServerMetadata",
    "/inference.GRPCInferenceService/ModelMetadata",
    "/inference.GRPCInferenceService/ModelInfer",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/no.such.Service/Call",
]
BAD_HEADERS = [
    (),
    (("authorization", ""),),
    (("authorization", "Bearer"),),
    (("authorization", "Bearer "),),
    (("authorization", ALICE),),
    (("authorization", f"Basic {ALICE}"),),
    (("authorization", f"Bearer {ALICE}x"),),
    (("authorization", f"Bearer {ALICE[:-1]}"),),
    (("authorization", f"Bearer {ALICE} {ALICE}"),),
    (("authorization", f"Bearer {ALICE.upper()}"),),
    (("authorization", "Bearer alice"),),
    (("authorization", f"Bearer {ALICE}"), ("authorization", f"Bearer {BOB}")),
    (("x-authorization", f"Bearer {ALICE}"),),
    (("authorization-bin", f"Bearer {ALICE}".encode()),),
]
Headers = tuple[tuple[str, Any], ...]


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# callers\n\nalice:{ALICE}\n  bob:{BOB}  \nalice:{ALICE}-of-next-month\n")
    return path


def bearer(token: str) -> Headers:
    return (("authorization", f"Bearer {token}"),)


async def call(server: OwnServer, headers: Headers, method: str = METHODS[0]) -> str:
    """What a call of any kind comes to; a server that let it in has no pipeline, or no such method."""
    async with server.channel() as channel:
        if method.endswith(("Stream", "Info")):
            return await code_of(anext(aiter(raw_stream(channel, method)(iter([REQUEST]), metadata=headers))))
        return await code_of(raw_unary(channel, method)(REQUEST, metadata=headers, timeout=TIMEOUT_S))


def count_series(server: OwnServer) -> int:
    return generate_latest(server.metrics.registry).count(b"\n")


@pytest.mark.parametrize("method", METHODS)
async def test_every_call_needs_a_token(tokens_file: Path, method: str) -> None:
    async with serve_here(tokens_file=tokens_file) as server:
        before = count_series(server)
        assert await call(server, (), method) == "UNAUTHENTICATED"
        assert await call(server, bearer("x" * 30), method) == "UNAUTHENTICATED"
        assert await call(server, bearer(ALICE), method) != "UNAUTHENTICATED"
        assert count_series(server) == before


async def test_health_is_open(tokens_file: Path) -> None:
    async with serve_here(tokens_file=tokens_file) as server, server.channel() as channel:
        assert await check_health(channel) == "NOT_SERVING"
        assert await check_health(channel, "nobody") == "NOT_FOUND"


@pytest.mark.parametrize("headers", BAD_HEADERS, ids=range(len(BAD_HEADERS)))
async def test_headers_that_are_no_token(tokens_file: Path, headers: Headers) -> None:
    async with serve_here(tokens_file=tokens_file) as server:
        assert await call(server, headers) == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    "value", [f"Bearer {ALICE}", f"bearer {ALICE}", f"BEARER  {BOB}", f"Bearer {ALICE}-of-next-month"]
)
async def test_each_token_is_taken(tokens_file: Path, value: str) -> None:
    async with serve_here(tokens_file=tokens_file) as server:
        assert await call(server, (("authorization", value),)) == "UNAVAILABLE"


async def test_a_refusal_says_what_to_send_and_is_counted(tokens_file: Path) -> None:
    async with serve_here(tokens_file=tokens_file) as server, server.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await raw_unary(channel, METHODS[0])(REQUEST, metadata=bearer("x" * 30), timeout=TIMEOUT_S)
        refusal = read_refusal(raised.value)
        assert (refusal.code, refusal.reason, refusal.domain) == (
            "UNAUTHENTICATED",
            "UNAUTHENTICATED",
            "seqenc",
        )
        assert "Bearer" in refusal.message
        assert "xxx" not in str(refusal.raw)
        counted = server.metrics.requests_total.labels("Encode", "UNAUTHENTICATED")
        assert counted._value.get() == 1


async def test_a_stream_is_refused_before_it_sends_anything(tokens_file: Path) -> None:
    async with serve_here(tokens_file=tokens_file) as server, server.channel() as channel:
        stream = raw_stream(channel, METHODS[1])()
        assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_tokens_change_without_a_restart(tokens_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve_here(tokens_file=tokens_file) as server:
        replace(tokens_file, f"carol:{NEW}".encode())
        assert await call(server, bearer(NEW)) == "UNAVAILABLE"
        assert await call(server, bearer(ALICE)) == "UNAUTHENTICATED"
    assert "the bearer tokens read again" in caplog.messages


@pytest.mark.parametrize("content", [b"", b"# nobody\n", b"alice\n", None])
async def test_a_file_that_turns_bad_leaves_the_last_tokens_in_use(
    tokens_file: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_here(tokens_file=tokens_file) as server:
        replace(tokens_file, content)
        for _ in range(2):
            assert await call(server, bearer(ALICE)) == "UNAVAILABLE"
            assert await call(server, bearer(NEW)) == "UNAUTHENTICATED"
    assert caplog.messages.count("the bearer tokens kept as they were") == 1


async def test_tokens_are_in_no_log(tokens_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve_here(tokens_file=tokens_file) as server:
        await call(server, bearer(ALICE))
        await call(server, bearer(NEW))
        replace(tokens_file, f"carol {NEW}\n{ALICE}".encode())
        await call(server, bearer(ALICE))
    log = str([vars(record) for record in caplog.records])
    assert "tokens-file" in log
    assert ALICE not in log
    assert NEW not in log


async def test_plaintext_tokens_are_warned_of(tokens_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serve_here(tokens_file=tokens_file):
        assert any("plaintext" in message for message in caplog.messages)


def refusal_of(path: Path) -> str:
    with pytest.raises(StartError) as raised:
        load_tokens(path)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        ALICE,
        f":{ALICE}",
        f"alice {ALICE}",
        f"alice: {ALICE}",
        "alice:too-short-12345",
        f"al ice:{ALICE}",
        f"{'a' * 65}:{ALICE}",
        f"älice:{ALICE}",
        f"alice:{ALICE}\x00",
        f"alice:{ALICE}é",
    ],
)
def test_a_line_of_another_form_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"bob:{BOB}\n\n{line}\n")
    if line == "alice:too-short-12345":
        path.write_text(f"bob:{BOB}\n\nalice:{'x' * 15}\n")
    message = refusal_of(path)
    assert f"--tokens-file {path}, line 3: must be name:token" in message
    assert ALICE not in message


def test_a_token_has_one_name(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"alice:{ALICE}\nbob:{ALICE}\n")
    assert "line 2: repeats an earlier token" in refusal_of(path)


def test_a_file_without_tokens_or_none_at_all(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    assert "No such file or directory" in refusal_of(path)
    path.write_text("\n# nobody\n")
    assert "has no tokens" in refusal_of(path)


def test_names_are_those_of_the_file(tokens_file: Path) -> None:
    tokens = load_tokens(tokens_file).current()
    names = [tokens.name_of(f"Bearer {token}") for token in (ALICE, BOB, f"{ALICE}-of-next-month", NEW)]
    assert names == ["alice", "bob", "alice", None]


def test_every_token_is_compared_whichever_fits(tokens_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(given: bytes, known: bytes) -> bool:
        compared.append(known)
        return given == known

    tokens = load_tokens(tokens_file).current()
    monkeypatch.setattr("service.api.tokens.hmac.compare_digest", compare)
    for credentials in (f"Bearer {ALICE}", f"Bearer {BOB}", f"Bearer {NEW}", ""):
        compared.clear()
        tokens.name_of(credentials)
        assert len(set(compared)) == 3

"""Servers that do not answer: the one who waits is told, and the wait has an end."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from e2e.server_process import BIN, clean_environment
from field_jobs import Outcome, read_lines
from jobs.job_files import write_jsonl, write_parquet
from seqenc.v1 import encoder_pb2 as pb
from seqenc.v1 import encoder_pb2_grpc
from service.cli import main

LONG_S = 60.0  # of no test that passes
WORD = "no answer yet"
Run = Callable[..., Outcome]


class Terminal(io.StringIO):
    """`spoken` is set when the word of a wait was written."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self.spoken = threading.Event()

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        written = super().write(text)
        if WORD in text:
            self.spoken.set()
        return written


class Held(encoder_pb2_grpc.EncoderServiceServicer):
    """Answers as an encoder of four dimensions; streams wait for `released` first."""

    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.GetModelResponse:
        model = pb.Model(name="fake", revision="r1", precision="fp32", embedding_size=4, hidden_size=4)
        model.max_tokens, model.max_input_count, model.max_message_bytes = 64, 100, 1 << 20
        return pb.GetModelResponse(model=model)

    def Encode(self, request: pb.EncodeRequest, context: grpc.ServicerContext) -> pb.EncodeResponse:
        rows = np.ones((len(request.inputs), 4), np.float32)
        return pb.EncodeResponse(
            embeddings=pb.Tensor(type=pb.DATA_TYPE_FLOAT32, shape=rows.shape, data=rows.tobytes()),
            results=[pb.Encoding(token_count=3)] * len(request.inputs),
            model="fake",
            revision="r1",
            precision="fp32",
        )

    def EncodeStream(
        self, requests: Iterator[pb.EncodeRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.EncodeStreamResponse]:
        for request in requests:
            self._released.wait(LONG_S)
            yield pb.EncodeStreamResponse(response=self.Encode(request, context))


class SlowToRefuse(grpc.GenericRpcHandler):
    """Any method: waits for `released` and fails."""

    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
            self._released.wait(LONG_S)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "refused at last")

        return grpc.unary_unary_rpc_method_handler(refuse)


@contextmanager
def serving(add: Callable[[grpc.Server], Any]) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()


@contextmanager
def held_server(released: threading.Event) -> Iterator[str]:
    with serving(
        lambda server: encoder_pb2_grpc.add_EncoderServiceServicer_to_server(Held(released), server)
    ) as address:
        try:
            yield address
        finally:
            released.set()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in.jsonl", [{"text": f"text {row}"} for row in range(5)])


@pytest.mark.parametrize("command", ["encode", "tokenize", "attend", "health"])
def test_a_command_on_a_terminal_says_that_it_waits(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    terminal = Terminal(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    handlers = (SlowToRefuse(terminal.spoken),)
    with serving(lambda server: server.add_generic_rpc_handlers(handlers)) as address:
        flags = ["--timeout-s", str(LONG_S)] if command == "health" else ["a text"]
        assert main([command, "--address", address, *flags]) == 1
    first, *_, last = terminal.getvalue().splitlines()
    assert first.startswith(f"seqenc: {address}: {WORD}, after ")
    assert last == f"seqenc: {address}: FAILED_PRECONDITION: refused at last"


def test_a_stream_of_a_command_on_a_terminal_says_that_it_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with held_server(terminal.spoken) as address:
        assert main(["encode", "a text", "--format", "jsonl", "--address", address]) == 0
    assert WORD in terminal.getvalue()
    assert json.loads(capsys.readouterr().out)["embedding"] == [1, 1, 1, 1]


def test_a_job_says_that_servers_do_not_answer_its_first_call(
    run_job: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Terminal(is_terminal=False)
    monkeypatch.setattr(sys, "stderr", log)
    handlers = (SlowToRefuse(log.spoken),)
    with serving(lambda server: server.add_generic_rpc_handlers(handlers)) as address:
        assert run_job(file, "--address", address).status == 1
    assert f"{WORD} address={address} waited_s=" in log.getvalue()
    assert log.getvalue().splitlines()[-1].startswith(f"seqenc: {address}: FAILED_PRECONDITION")


def test_a_job_says_that_servers_stopped_answering_and_goes_on_when_they_do(
    run_job: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Terminal(is_terminal=False)
    monkeypatch.setattr(sys, "stderr", log)
    with held_server(log.spoken) as address:
        assert run_job(file, "--address", address).status == 0
    assert f"{WORD} address={address}" in log.getvalue()
    assert pq.read_table(tmp_path / "out").num_rows == 5


def test_a_job_whose_servers_stopped_answering_ends(
    run_job: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Terminal(is_terminal=False)
    monkeypatch.setattr(sys, "stderr", log)
    with held_server(threading.Event()) as address:
        assert run_job(file, "--address", address, "--answer-timeout-s", "0.3").status == 1
    last = log.getvalue().splitlines()[-1]
    assert last.startswith(f"seqenc: {address}: no answer for 0.3 s, which is --answer-timeout-s; finished")


def test_carried_values_do_not_end_a_job_on_servers(run_job: Run, tmp_path: Path) -> None:
    far = pa.array([2**63 - 1]).view(pa.timestamp("us", "Mars/Phobos"))
    file = write_parquet(tmp_path / "in.parquet", {"text": ["a"], "far": far, "raw": [b"\xff"]})
    released = threading.Event()
    released.set()
    flags = ["--id-column", "raw", "--keep-columns", "far", "--output-format", "jsonl"]
    with held_server(released) as address:
        assert run_job(file, "--address", address, *flags).status == 0
    (record,) = read_lines(tmp_path / "out")
    assert (record["raw"], record["far"]) == ("ff", "294247-01-10 04:00:54.775807Z")


def test_a_job_names_the_reason_while_it_tries_again(file: Path, tmp_path: Path) -> None:
    """Of a server that takes connections and says nothing, and of one that is not there."""
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = silent.getsockname()[1]
        reasons = {f"127.0.0.1:{port}": "SETTINGS", "127.0.0.1:1": "refused"}
        processes = {}
        for place, address in enumerate(reasons):
            command = [BIN / "seqenc", "job", file, "--out", tmp_path / f"{place}", "--address", address]
            processes[address] = subprocess.Popen(
                command, env=clean_environment(), stderr=subprocess.PIPE, text=True
            )
            stack.callback(processes[address].communicate)
            stack.callback(processes[address].kill)
        for address, process in processes.items():
            assert process.stderr is not None
            line = process.stderr.readline()
            assert f"{WORD} address={address}" in line
            assert reasons[address] in line

"""From start to drained: health at every stage, signals, and the HTTP address."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chaos.chaos_server import ChaosServer, start_chaos_server
from chaos.faults import Fault
from chaos.tally import Tally
from e2e.refusals import reason, status_of
from e2e.server_process import ServerProcess, connect, start_server
from seqenc import Client, RetryPolicy, UnavailableError
from seqenc.v1 import encoder_pb2 as pb

SERVICE = "seqenc.v1.EncoderService"
GOOD = pb.EncodeRequest(inputs=[pb.Sequence(text="a good text")])
WORK = pb.EncodeRequest(inputs=[pb.Sequence(text="a good text")] * 30)
LANES = 2
METHODS = {
    "Encode": GOOD,
    "Tokenize": pb.TokenizeRequest(inputs=GOOD.inputs),
    "GetModel": pb.GetModelRequest(),
}
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]


def health_of(server: ServerProcess, service: str) -> str:
    with grpc.insecure_channel(server.grpc_address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            reply = check(health_pb2.HealthCheckRequest(service=service), timeout=60)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


def healths(server: ServerProcess) -> set[str]:
    return {health_of(server, name) for name in ("", SERVICE)}


@contextmanager
def held_at_start(artifact: Path, folder: Path) -> Iterator[tuple[ServerProcess, Path]]:
    """A server that waits for its manifest, and the pipe through which it is to get it."""
    shutil.copytree(artifact, folder / "held")
    pipe = folder / "held" / "manifest.json"
    pipe.unlink()
    os.mkfifo(pipe)
    with start_server(folder / "held", wait=False) as server:
        server.wait_for("listening", "http_address")
        yield server, pipe


@contextmanager
def start_held(
    artifact: Path, *flags: str, last_answers_s: float | None = None
) -> Iterator[tuple[ChaosServer, Any]]:
    """A server whose work goes on until `release`, and its stub."""
    held = start_chaos_server(artifact, Tally(), *flags, last_answers_s=last_answers_s)
    with held as server, connect(server) as stub:
        server.inject(Fault.HANG, LANES)
        yield server, stub


def release(server: ChaosServer) -> None:
    server.inject(Fault.NONE, 0)


def wait_until_in_work(server: ServerProcess, messages: int) -> None:
    """Until so many have been tokenised: each waits for a lane, or has one."""
    while server.metrics()["tokenize_duration_seconds_count",] < messages:
        pass


def wait_until_closed(server: ServerProcess) -> None:
    """Until it takes no connections. gRPC can leave a call unanswered that meets this very moment."""
    host, _, port = server.grpc_address.rpartition(":")
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))):
                return


def wait_for_a_call(*servers: ServerProcess) -> ServerProcess:
    """The server that has one in work."""
    while True:
        for server in servers:
            if server.metrics()["inflight_requests",]:
                return server


def test_health_and_readiness_follow_the_warm_up(tiny_artifact: Path, tmp_path: Path) -> None:
    with held_at_start(tiny_artifact, tmp_path) as (server, pipe), connect(server) as stub:
        assert healths(server) == {"NOT_SERVING"}
        assert health_of(server, "nope") == "NOT_FOUND"
        assert server.get("/healthz")[0] == 200
        assert server.get("/readyz") == (503, "starting\n")
        assert server.metrics()["queued_inputs",] == 0
        for method, request in METHODS.items():
            status = status_of(getattr(stub, method), request)
            assert (status.code, reason(status)) == (UNAVAILABLE, "NOT_READY")
        pipe.write_bytes((tiny_artifact / "manifest.json").read_bytes())
        server.wait_for("ready")
        assert healths(server) == {"SERVING"}
        assert health_of(server, "nope") == "NOT_FOUND"
        assert server.get("/readyz") == (200, "ready\n")
        assert len(stub.Encode(GOOD).results) == 1


def test_sigterm_before_ready_ends_the_process(tiny_artifact: Path, tmp_path: Path) -> None:
    with held_at_start(tiny_artifact, tmp_path) as (server, _):
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_calls_in_flight_finish_and_the_exit_is_clean(tiny_artifact: Path, number: int) -> None:
    once = RetryPolicy(max_attempts=1)
    with (
        ThreadPoolExecutor(2) as callers,
        start_held(tiny_artifact, "--drain-timeout-s", "600") as (server, stub),
        Client(server.grpc_address, deadline_s=30, retry=once) as late,
    ):
        late.tokenize("in time")
        unary = callers.submit(stub.Encode, WORK)
        stream = callers.submit(list, stub.EncodeStream(iter([WORK, GOOD])))
        wait_until_in_work(server, 1 + 3)
        server.process.send_signal(number)
        wait_until_closed(server)
        with pytest.raises(UnavailableError):
            late.tokenize("too late")
        release(server)
        assert len(unary.result().results) == 30
        assert [len(answer.response.results) for answer in stream.result()] == [30, 1]
        assert server.wait() == 0
        server.wait_for("stopped")
    assert not complaints(server)


def complaints(server: ServerProcess) -> list[dict[str, Any]]:
    """Log lines that are no news of an ordinary run."""
    return [event for event in server.events if event.get("level") not in ("debug", "info")]


def test_an_open_stream_gets_its_answers_and_is_ended(tiny_artifact: Path) -> None:
    requests: SimpleQueue[pb.EncodeRequest | None] = SimpleQueue()
    with start_held(tiny_artifact, "--drain-timeout-s", "600") as (server, stub):
        stream = stub.EncodeStream(iter(requests.get, None))
        requests.put(WORK)
        wait_until_in_work(server, 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        requests.put(GOOD)
        while not server.metrics()["stream_messages_total", "UNAVAILABLE"]:
            pass
        release(server)
        assert len(next(stream).response.results) == 30
        assert reason(next(stream).error) == "DRAINING"
        status = status_of(next, stream)
        assert (status.code, reason(status)) == (UNAVAILABLE, "DRAINING")
        assert server.wait() == 0
        requests.put(None)
    assert not complaints(server)


def test_a_clients_idle_stream_holds_no_server_and_moves_on(tiny_artifact: Path) -> None:
    flags = ("--drain-timeout-s", "120")
    with (
        start_server(tiny_artifact, *flags) as one,
        start_server(tiny_artifact, *flags) as other,
        Client([one.grpc_address, other.grpc_address]) as client,
    ):

        def texts() -> Iterator[str]:
            yield from ["a", "b", "c"]
            used = wait_for_a_call(one, other)
            used.process.send_signal(signal.SIGTERM)
            assert used.wait() == 0
            yield "d"

        assert len(list(client.encode_stream(texts(), batch_size=1))) == 4


def test_callers_of_two_servers_lose_no_call_while_one_stops(tiny_artifact: Path) -> None:
    with start_server(tiny_artifact) as one, start_server(tiny_artifact) as other:
        stopped = threading.Event()

        def call(client: Any) -> int:
            count = 0
            while not stopped.is_set() or count % 50:
                assert len(client.encode(["a", "b"]).embeddings) == 2
                count += 1
            return count

        with Client([one.grpc_address, other.grpc_address]) as client, ThreadPoolExecutor(4) as callers:
            calls = [callers.submit(call, client) for _ in range(4)]
            while one.metrics()["requests_total", "OK", "Encode"] < 50:
                assert not any(made.done() for made in calls)
            one.process.send_signal(signal.SIGTERM)
            assert one.wait() == 0
            stopped.set()
            assert all(made.result() for made in calls)
        assert not complaints(one)


def test_health_and_readiness_while_draining(tiny_artifact: Path) -> None:
    with start_server(tiny_artifact, "--drain-delay-s", "30") as server, connect(server) as stub:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        assert healths(server) == {"NOT_SERVING"}
        assert server.get("/readyz") == (503, "draining\n")
        assert server.get("/healthz")[0] == 200
        assert len(stub.Encode(GOOD).results) == 1


def test_a_second_signal_ends_the_process_at_once(tiny_artifact: Path) -> None:
    with (
        ThreadPoolExecutor(1) as callers,
        start_held(tiny_artifact, "--drain-timeout-s", "600") as (server, stub),
    ):
        work = callers.submit(status_of, stub.Encode, WORK)
        wait_until_in_work(server, 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 130
        assert work.result().code == UNAVAILABLE


def test_work_that_takes_too_long_is_cut_off(tiny_artifact: Path) -> None:
    with (
        ThreadPoolExecutor(1) as callers,
        start_held(tiny_artifact, "--drain-timeout-s", "0.2", last_answers_s=60) as (server, stub),
    ):
        work = callers.submit(status_of, stub.Encode, WORK)
        wait_until_in_work(server, 1)
        server.process.send_signal(signal.SIGTERM)
        assert (work.result().code, reason(work.result())) == (UNAVAILABLE, "DRAINING")
        release(server)
        assert server.wait() == 0
    assert not complaints(server)


def test_an_idle_server_stops_at_once(tiny_artifact: Path) -> None:
    with start_server(tiny_artifact, "--drain-timeout-s", "600") as server, connect(server) as stub:
        stub.Encode(GOOD)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    assert not complaints(server)


def test_the_port_is_free_again_after_the_stop(tiny_artifact: Path) -> None:
    with start_server(tiny_artifact) as server:
        address = server.grpc_address
        server.process.send_signal(signal.SIGTERM)
        server.wait()
    with start_server(tiny_artifact, "--grpc-address", address) as again:
        assert again.grpc_address == address


def test_metrics_are_all_there_from_the_first_scrape(tiny_artifact: Path) -> None:
    with start_server(tiny_artifact) as server:
        before = server.metrics()
        status, page = server.get("/metrics")
        assert status == 200
        assert all(line.startswith(("# ", "seqenc_")) for line in page.splitlines())
        assert before["requests_total", "OK", "Encode"] == before["tokens_total",] == 0
        assert before["lanes",] >= 1
        with connect(server) as stub:
            stub.Encode(pb.EncodeRequest(inputs=[pb.Sequence(text="a b c")] * 3))
            status_of(stub.Encode, pb.EncodeRequest())
            status_of(stub.Encode, pb.EncodeRequest(model="another", inputs=GOOD.inputs))
        after = server.metrics()
        assert after.keys() == before.keys()
        moved = {name: after[name] - before[name] for name in after}
        assert moved["requests_total", "OK", "Encode"] == 1
        assert moved["requests_total", "INVALID_ARGUMENT", "Encode"] == 1
        assert moved["requests_total", "NOT_FOUND", "Encode"] == 1
        assert moved["inputs_total", "ok"] == moved["input_tokens_count",] == 3
        assert moved["tokens_total",] == moved["input_tokens_sum",] == 15
        assert moved["padding_tokens_total",] == 0
        assert moved["batch_inputs_sum",] == 3
        assert moved["inference_duration_seconds_count", "encoder"] == moved["batch_inputs_count",]
        assert after["queued_inputs",] == after["inflight_requests",] == after["busy_lanes",] == 0


def test_pages_that_are_not_there(tiny_server: ServerProcess) -> None:
    assert tiny_server.get("/nope")[0] == 404


def test_the_port_of_another_process_is_not_shared(tiny_artifact: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("--grpc-address", "--http-address"):
            with start_server(tiny_artifact, flag, address, wait=False) as server:
                assert server.wait() != 0
            (line,) = [event["line"] for event in server.events if not event["event"]]
            assert flag in line
            assert address in line


def test_two_servers_do_not_share_a_port(tiny_server: ServerProcess, tiny_artifact: Path) -> None:
    with start_server(tiny_artifact, "--grpc-address", tiny_server.grpc_address, wait=False) as second:
        assert second.wait() != 0
    assert not any(event["event"] == "ready" for event in second.events)


def test_reflection_names_the_services(tiny_server: ServerProcess) -> None:
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with grpc.insecure_channel(tiny_server.grpc_address) as channel:
        services: Any = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {SERVICE, "grpc.health.v1.Health"} <= set(services)

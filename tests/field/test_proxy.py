"""Proxies in the environment: never for this machine, and named where a call fails through one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from seqenc import AsyncClient, Client, RetryPolicy, SeqencError, UnavailableError
from service.cli import main

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
ONCE = RetryPolicy(max_attempts=1)


class Proxy:
    """Refuses what it is asked for; `asked` has the first line of every request."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.asked.append(connection.recv(1 << 16).decode().partition("\r\n")[0])
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """No variable names it yet, and none makes an exception."""
    for name in (*VARIABLES, "no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a server that is healthy, on IPv4 and where there is one on IPv6."""
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("[::]:0" if socket.has_dualstack_ipv6() else "127.0.0.1:0")
    server.start()
    yield port
    server.stop(0)


@pytest.mark.parametrize("variable", VARIABLES)
def test_no_variable_sends_localhost_through_a_proxy(
    proxy: Proxy, port: int, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, proxy.url)
    assert main(["health", "--address", f"localhost:{port}"]) == 0
    assert proxy.asked == []


@pytest.mark.parametrize(
    "address",
    [
        "LOCALHOST:{0}",
        "127.0.0.1:{0}",
        "127.0.0.2:{0}",
        "0.0.0.0:{0}",
        "dns:///localhost:{0}",
        "dns:localhost:{0}",
        "ipv4:127.0.0.1:{0}",
        "ipv4:127.0.0.1:{0},127.0.0.2:{0}",
        "127.0.0.1:{0},127.0.0.2:{0}",
        "localhost:{0},127.0.0.1:{0}",
    ],
)
def test_this_machine_is_never_called_through_a_proxy(
    proxy: Proxy, port: int, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    assert main(["health", "--address", address.format(port)]) == 0
    assert proxy.asked == []


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("address", ["[::1]:{0}", "ipv6:[::1]:{0}", "[::ffff:127.0.0.1]:{0}"])
def test_nor_by_ipv6(proxy: Proxy, port: int, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    assert main(["health", "--address", address.format(port)]) == 0
    assert proxy.asked == []


async def test_both_clients_go_around_it(proxy: Proxy, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    with Client(f"localhost:{port}") as client:
        assert client.health() == "SERVING"
    async with AsyncClient(f"localhost:{port}") as async_client:
        assert await async_client.health() == "SERVING"
    assert proxy.asked == []


@pytest.mark.parametrize(
    ("variable", "command"),
    [("grpc_proxy", ["health"]), ("https_proxy", ["health"]), ("http_proxy", ["encode", "a"])],
)
def test_an_error_through_a_proxy_says_so(
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    command: list[str],
) -> None:
    monkeypatch.setenv(variable, proxy.url)
    assert main([*command, "--address", "encoder.invalid:50051"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"encoder.invalid:50051 is called through the proxy in the variable {variable}" in line
    assert "no_proxy" in line
    assert proxy.url not in line
    assert "CONNECT encoder.invalid:50051 HTTP/1.1" in proxy.asked


async def test_the_errors_of_both_clients_say_so(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", proxy.url)
    with (
        Client("encoder.invalid:1", retry=ONCE) as client,
        pytest.raises(UnavailableError, match="through the proxy in the variable https_proxy"),
    ):
        client.encode("a")
    async with AsyncClient("encoder.invalid:1", retry=ONCE) as async_client:
        with pytest.raises(UnavailableError, match="through the proxy in the variable https_proxy"):
            await async_client.encode("a")


@pytest.mark.parametrize(
    ("name", "exception"),
    [
        ("no_grpc_proxy", "encoder.invalid"),
        ("no_proxy", "other, .INVALID"),
        ("no_proxy", "*"),
        ("NO_PROXY", "invalid"),
    ],
)
def test_exceptions_are_called_directly(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, name: str, exception: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv(name, exception)
    with Client("encoder.invalid:1", retry=ONCE) as client, pytest.raises(UnavailableError) as error:
        client.health()
    assert "proxy" not in str(error.value)
    assert proxy.asked == []


def test_each_of_several_addresses_is_asked_for(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy does not know gRPC's lists of addresses."""
    monkeypatch.setenv("http_proxy", proxy.url)
    with Client(["192.0.2.1:1", "192.0.2.2:1"], retry=ONCE) as client:
        for _ in range(2):
            with pytest.raises(UnavailableError):
                client.health()
    assert {line.split()[1] for line in proxy.asked} == {"192.0.2.1:1", "192.0.2.2:1"}


def test_networks_are_exceptions_too(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "192.0.2.0/24")
    with Client("192.0.2.1:1", retry=ONCE) as client, pytest.raises(SeqencError) as error:
        client.health(deadline_s=0.2)
    assert "proxy" not in str(error.value)
    assert proxy.asked == []

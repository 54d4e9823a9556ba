import socket
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from seqenc import Client, Tls, UnavailableError
from seqenc.channel import Rotation, build_connection
from seqenc.v1 import encoder_pb2 as pb


@contextmanager
def port_without_server():
    """Bound, so that nobody else takes it, but refusing connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "targets"),
    [
        ("host:1", ("host:1",)),
        ("dns:///host:1", ("dns:///host:1",)),
        ("unix:/tmp/socket", ("unix:/tmp/socket",)),
        ("127.0.0.1:1", ("127.0.0.1:1",)),
        ("127.0.0.1:1,127.0.0.2:2", ("ipv4:127.0.0.1:1,127.0.0.2:2",)),
        (["127.0.0.1:1", "127.0.0.2:2"], ("ipv4:127.0.0.1:1,127.0.0.2:2",)),
        ("[::1]:1, [::1]:2", ("ipv6:[::1]:1,[::1]:2",)),
        ("ipv4:127.0.0.1:1,127.0.0.2:2", ("ipv4:127.0.0.1:1,127.0.0.2:2",)),
        (["a:1", "b:2"], ("a:1", "b:2")),
        (["127.0.0.1:1", "[::1]:1"], ("127.0.0.1:1", "[::1]:1")),
    ],
)
def test_addresses_become_targets(address, targets):
    assert build_connection(address, None, None).targets == targets


def test_with_tls_addresses_share_a_target_only_under_one_name():
    addresses = ["127.0.0.1:1", "127.0.0.2:2"]
    assert build_connection(addresses, True, None).targets == tuple(addresses)
    assert len(build_connection(addresses, Tls(server_name="encoder"), None).targets) == 1


@pytest.mark.parametrize("address", ["", [], "a:1,,b:2"])
def test_an_empty_address_is_refused(address):
    with pytest.raises(ValueError, match="expected host:port"):
        build_connection(address, None, None)


def test_rotation_is_even_whatever_thread_asks():
    rotation = Rotation("abc")
    with ThreadPoolExecutor(4) as pool:
        given = Counter(pool.map(lambda _: rotation.next(), range(300)))
    assert given == {"a": 100, "b": 100, "c": 100}


@pytest.mark.parametrize("form", ["ipv4", "names"])
def test_load_is_spread_over_servers(serve, connect, form):
    servers = [serve() for _ in range(3)]
    addresses = [server.address for server in servers]
    if form == "names":
        addresses = [address.replace("127.0.0.1", "localhost") for address in addresses]
    client = connect(addresses)
    last_moment = time.monotonic() + 30
    while not all(server.requests for server in servers):
        assert time.monotonic() < last_moment
        client.encode("connects")
    for server in servers:
        server.requests.clear()
    for _ in range(60):
        client.encode("a")
    counts = [len(server.requests) for server in servers]
    assert sum(counts) == 60
    assert min(counts) >= 15


def test_a_server_that_is_down_costs_no_call(serve, connect):
    with port_without_server() as port:
        up = serve()
        client = connect([f"localhost:{port}", up.address.replace("127.0.0.1", "localhost")])
        for _ in range(4):
            client.encode("a")
    assert len(up.requests) == 4


def test_no_server_is_unavailable(connect):
    with port_without_server() as port, pytest.raises(UnavailableError):
        connect(f"127.0.0.1:{port}").encode("a")


def test_a_token_is_sent_as_a_bearer_with_every_call(connect, server):
    client = connect(server.address, token="secret")  # noqa: S106
    client.encode("a")
    client.tokenize("a")
    assert [metadata["authorization"] for metadata in server.metadata] == ["Bearer secret"] * 2


def test_without_a_token_nothing_is_sent(client, server):
    client.encode("a")
    assert "authorization" not in server.metadata[0]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """(certificate, key) files for the name `encoder`."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-keyout", key, "-out", certificate, "-days", "1", "-subj", "/CN=encoder"]
    command += ["-addext", "subjectAltName=DNS:encoder,DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_tls_with_the_servers_own_certificate_as_root(serve, connect, certificate):
    path, key = certificate
    server = serve(grpc.ssl_server_credentials([(key.read_bytes(), path.read_bytes())]))
    port = server.address.rpartition(":")[2]
    assert connect(f"localhost:{port}", tls=path).encode("a").embeddings.shape == (1, 4)
    assert connect(f"localhost:{port}", tls=str(path)).encode("a").embeddings.shape == (1, 4)
    several = [server.address, server.address]
    assert connect(several, tls=Tls(ca=path, server_name="encoder"), token="t").encode("a").results  # noqa: S106
    assert server.metadata[-1]["authorization"] == "Bearer t"


def test_mutual_tls(serve, connect, certificate):
    path, key = certificate
    server = serve(
        grpc.ssl_server_credentials(
            [(key.read_bytes(), path.read_bytes())],
            root_certificates=path.read_bytes(),
            require_client_auth=True,
        )
    )
    tls = Tls(ca=path, certificate=path, key=key, server_name="encoder")
    assert connect(server.address, tls=tls).encode("a").results


@pytest.mark.parametrize("tls", [True, None])
def test_a_server_that_is_not_trusted_is_unavailable(serve, connect, certificate, tls):
    path, key = certificate
    server = serve(grpc.ssl_server_credentials([(key.read_bytes(), path.read_bytes())]))
    port = server.address.rpartition(":")[2]
    with pytest.raises(UnavailableError):
        connect(f"localhost:{port}", tls=tls, deadline_s=60).encode("a")


def test_replies_over_grpcs_default_limit_arrive(client, server):
    width = 2_000_000
    server.answer = lambda _: pb.EncodeResponse(
        embeddings=pb.Tensor(type=pb.DATA_TYPE_FLOAT32, shape=[1, width], data=bytes(4 * width)),
        results=[pb.Encoding()],
    )
    assert client.encode("a").embeddings.shape == (1, width)


def test_a_closed_client_refuses(server):
    client = Client(server.address)
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.encode("a")

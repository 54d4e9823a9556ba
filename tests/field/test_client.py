"""The Python client, blocking and asyncio: what it takes as inputs and options, and how long it lives."""

from __future__ import annotations

import asyncio
import io
import math
import pickle
import socket
import subprocess
import sys
from array import array
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from e2e.server_process import start_server
from seqenc import AsyncClient, CallCancelledError, Client, RetryPolicy, Tls, TokenIds
from service import cli

# Nobody is there: an error that comes from the client is raised before anything is sent.
NOWHERE = "127.0.0.1:1"
SURROGATE = "secret \ud83d half"
Pair = namedtuple("Pair", ["question", "answer"])


@pytest.fixture(scope="module")
def address(tiny_artifact: Path) -> Iterator[str]:
    with start_server(tiny_artifact) as server:
        yield server.grpc_address


@pytest.fixture(params=[Client, AsyncClient])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def call(kind: Any, address: str, method: str, *arguments: Any, **options: Any) -> Any:
    """What a method of a fresh client returns; of a stream the list of its results."""
    if kind is Client:
        with Client(address) as client:
            result = getattr(client, method)(*arguments, **options)
            return list(result) if method == "encode_stream" else result

    async def run() -> Any:
        async with AsyncClient(address) as client:
            result = getattr(client, method)(*arguments, **options)
            return [each async for each in result] if method == "encode_stream" else await result

    return asyncio.run(run())


async def asynchronous() -> Any:
    for text in ("a", "b"):
        yield text


class Indexed:
    """Iterable in the old way."""

    def __getitem__(self, index: int) -> str:
        return ["a", "b"][index]


INPUTS: dict[str, tuple[Callable[[], Any], int]] = {
    "a text": (lambda: "document", 1),
    "an empty text": (lambda: "", 1),
    "a numpy text": (lambda: np.array("document"), 1),
    "a pair": (lambda: ("Where is it?", "Over there."), 1),
    "a named pair": (lambda: Pair("Where is it?", "Over there."), 1),
    "a row of ids": (lambda: [5, 6, 7], 1),
    "a tuple of ids": (lambda: (5, 6, 7), 1),
    "a range of ids": (lambda: range(5, 9), 1),
    "a deque of ids": (lambda: deque([5, 6]), 1),
    "an array of ids": (lambda: array("i", [5, 6]), 1),
    "a numpy row of ids": (lambda: np.arange(5, 9), 1),
    "ids with a mask": (lambda: {"ids": [5, 6, 7], "attention_mask": [1, 1, 0]}, 1),
    "another mapping": (lambda: OrderedDict(ids=[5, 6, 7]), 1),
    "TokenIds": (lambda: TokenIds([5, 6, 7]), 1),
    "rows of ids": (lambda: np.arange(5, 11).reshape(2, 3), 2),
    "ranges": (lambda: [range(5, 8), range(6, 9)], 2),
    "texts": (lambda: ["a", "b"], 2),
    "three texts in a tuple": (lambda: ("a", "b", "c"), 3),
    "numpy texts": (lambda: np.array(["a", "b"]), 2),
    "a column": (lambda: pd.Series(["a", "b"]), 2),
    "a column of another library": (lambda: pl.Series(["a", "b"]), 2),
    "pairs among texts": (lambda: [("a", "b"), "c", [5, 6]], 3),
    "a generator": (lambda: (text for text in "ab"), 2),
    "keys": (lambda: {"a": 1, "b": 2}.keys(), 2),
    "lines of a file": (lambda: io.StringIO("one\ntwo\n"), 2),
    "an old iterable": (Indexed, 2),
    "nothing": (lambda: [], 0),
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_stream_takes_inputs_as_encode_does(kind: Any, address: str, name: str) -> None:
    build, count = INPUTS[name]
    expected = call(kind, address, "encode", build()).embeddings
    vectors = [encoding.embedding for encoding in call(kind, address, "encode_stream", build())]
    assert len(expected) == len(vectors) == count
    assert len(call(kind, address, "tokenize", build())) == count
    for vector, row in zip(vectors, expected, strict=True):
        np.testing.assert_allclose(vector, row, atol=1e-5)


NOT_INPUTS: dict[str, tuple[Callable[[], Any], str]] = {
    "bytes": (lambda: b"secret", "decode it"),
    "a bytearray": (lambda: bytearray(b"secret"), "decode it"),
    "a memoryview": (lambda: memoryview(b"secret"), "decode it"),
    "lines of bytes": (lambda: io.BytesIO(b"secret\n"), r"inputs\[0\].*decode it"),
    "a set": (lambda: {"secret", "other"}, "order"),
    "a frozenset": (lambda: frozenset(["secret"]), "order"),
    "a data frame": (lambda: pd.DataFrame({"secret": ["a", "b"]}), "DataFrame.*one column"),
    "a frame of another library": (lambda: pl.DataFrame({"secret": ["a", "b"]}), "DataFrame.*one column"),
    "a path": (lambda: Path("secret"), "Path"),
    "a number": (lambda: 3, "int"),
    "None": (lambda: None, "NoneType"),
    "None among texts": (lambda: ["a", None], r"inputs\[1\].*NoneType"),
    "NaN in a column": (lambda: pd.Series(["a", None, "secret"]), r"inputs\[1\]"),
    "None in an array": (lambda: np.array(["a", None], dtype=object), r"inputs\[1\].*NoneType"),
    "floats": (lambda: [0.5, 1.5], r"inputs\[0\].*float"),
    "nested texts": (lambda: [["secret", "b"]], r"inputs\[0\].*tuple of two str.*list of str"),
    "a half pair": (lambda: [("secret", None)], r"inputs\[0\].*str and NoneType"),
    "masked ids": (lambda: np.ma.masked_array([5, 6], [0, 1]), r"inputs\[0\].*int"),
    "ids of None": (lambda: {"ids": None}, r"inputs\[0\]: ids.*NoneType"),
    "a mask of ids": (lambda: {"ids": np.array([True, False])}, r"inputs\[0\]: ids"),
    "a mapping of texts": (lambda: {"secret key": "secret"}, "keys ids, attention_mask, type_ids"),
    "half of a surrogate pair": (lambda: ["a", SURROGATE], r"inputs\[1\].*surrogate"),
    "one in a pair": (lambda: [("a", SURROGATE)], r"inputs\[0\].*surrogate"),
}


@pytest.mark.parametrize("method", ["encode", "encode_stream", "tokenize"])
@pytest.mark.parametrize("name", NOT_INPUTS)
def test_what_is_no_input_is_named_without_its_text(kind: Any, address: str, method: str, name: str) -> None:
    build, words = NOT_INPUTS[name]
    with pytest.raises((TypeError, ValueError), match=words) as caught:
        call(kind, address, method, build())
    assert str(caught.value).startswith("inputs")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["a text", "a set", "None", "a data frame", "an asynchronous generator"])
def test_a_stream_judges_its_inputs_when_it_is_asked_for(kind: Any, name: str) -> None:
    client = kind(NOWHERE)
    if name == "a text":
        client.encode_stream("document")
    elif name == "an asynchronous generator" and kind is AsyncClient:
        client.encode_stream(asynchronous())
    else:
        value = asynchronous() if name == "an asynchronous generator" else NOT_INPUTS[name][0]()
        with pytest.raises(TypeError, match="inputs"):
            client.encode_stream(value)


def test_an_asynchronous_generator_is_for_the_asyncio_stream(kind: Any, address: str) -> None:
    for method in ("encode", "tokenize"):
        with pytest.raises(TypeError, match=r"async_generator is asynchronous.*AsyncClient"):
            call(kind, address, method, asynchronous())
    assert len(call(AsyncClient, address, "encode_stream", asynchronous())) == 2


@pytest.mark.parametrize("method", ["encode", "encode_stream", "tokenize"])
def test_an_error_of_the_source_is_the_callers(kind: Any, address: str, method: str) -> None:
    def source() -> Iterator[str]:
        yield "a"
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        call(kind, address, method, source())


OPTIONS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "too large": ({"dimensions": 10**12}, ValueError, "dimensions=1000000000000: expected an int from 1"),
    "too small": ({"dimensions": -(10**12)}, ValueError, "dimensions.*expected an int"),
    "float": ({"dimensions": 64.0}, TypeError, "dimensions: expected an int.*float"),
    "bool": ({"dimensions": True}, TypeError, "dimensions: expected an int.*bool"),
    "text": ({"max_tokens": "secret"}, TypeError, "max_tokens: expected an int.*str"),
    "numpy float": ({"max_tokens": np.float32(5)}, TypeError, "max_tokens: expected an int.*float32"),
    "priority": ({"priority": 2.5}, TypeError, "priority: expected an int from -3 to 3.*float"),
    "no bool": ({"normalize": "secret"}, TypeError, "normalize: expected True or False.*str"),
    "int": ({"tokens": 1}, TypeError, "tokens: expected True or False.*int"),
    "no name": ({"pooling": True}, TypeError, "pooling: expected one of none, cls, .*bool"),
    "unknown name": ({"pooling": "secret text"}, ValueError, "pooling: expected one of none, cls, mean"),
    "dtype": ({"embedding_type": np.dtype("float16")}, TypeError, "embedding_type: .*float32, float16"),
    "type": ({"embedding_type": np.float16}, TypeError, "embedding_type: .*float32, float16.*type"),
    "truncation": ({"truncation": False}, TypeError, "truncation: expected one of error, right.*bool"),
    "on_error": ({"on_error": 1}, TypeError, "on_error: expected one of fail_call, per_input.*int"),
    "attention": ({"attention": "secret"}, TypeError, "attention: expected True.*layers, heads.*str"),
    "list": ({"attention": [0]}, TypeError, "attention: expected True.*layers, heads.*list of int"),
    "key": ({"attention": {"layer": [0]}}, TypeError, "attention.*'layer'.*layers, heads, reduction, type"),
    "layers": ({"attention": {"layers": 0}}, TypeError, "attention layers: expected a list of ints.*int"),
    "heads": ({"attention": {"heads": [0.0]}}, TypeError, r"attention heads\[0\]: expected an int.*float"),
    "layer": ({"attention": {"layers": [2**40]}}, ValueError, r"attention layers\[0\]=1099511627776"),
    "no layer": ({"attention": {"layers": [None]}}, TypeError, r"attention layers\[0\].*NoneType"),
    "reduction": ({"attention": {"reduction": 1}}, TypeError, "attention reduction.*mean_heads.*int"),
    "keyword": ({"poolng": "mean"}, TypeError, "keyword 'poolng': expected one of pooling, normalize"),
    "timedelta": ({"deadline_s": timedelta(1)}, TypeError, "deadline_s: .*seconds.*timedelta.*total_seconds"),
    "NaN": ({"deadline_s": math.nan}, ValueError, "deadline_s=nan: expected a number of seconds over 0"),
    "infinity": ({"deadline_s": math.inf}, ValueError, "deadline_s=inf: .*None"),
    "centuries": ({"deadline_s": 1e12}, ValueError, "deadline_s=.*1e9"),
    "negative": ({"deadline_s": -1}, ValueError, "deadline_s=-1.0: expected"),
    "zero": ({"deadline_s": 0}, ValueError, "deadline_s=0.0: expected"),
    "seconds": ({"deadline_s": "secret"}, TypeError, "deadline_s: expected a number of seconds.*str"),
    "prompt": ({"prompt": SURROGATE}, ValueError, "prompt: character 7 is half of a surrogate pair"),
    "prompt_name": ({"prompt_name": SURROGATE}, ValueError, "prompt_name: .*surrogate"),
    "request_id": ({"request_id": SURROGATE}, ValueError, "request_id: .*surrogate"),
    "no text": ({"prompt": b"secret"}, TypeError, "prompt: expected a str, not bytes"),
    "a number": ({"request_id": 7}, TypeError, "request_id: expected a str, not int"),
}


@pytest.mark.parametrize("method", ["encode", "encode_stream", "tokenize"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_wrong_option_is_named_with_what_is_allowed(kind: Any, method: str, name: str) -> None:
    options, error, words = OPTIONS[name]
    of_tokenize = {"max_tokens", "truncation", "prompt", "prompt_name", "on_error", "deadline_s"}
    if method == "tokenize" and not options.keys() <= of_tokenize:
        error, words = TypeError, f"keyword '{next(iter(options))}'"
    with pytest.raises(error, match=words) as caught:
        call(kind, NOWHERE, method, ["a"], **options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batch_size": 0}, ValueError, "batch_size=0: expected an int of at least 1"),
        ({"batch_size": 2.5}, TypeError, "batch_size: expected an int of at least 1, not float"),
        ({"batch_size": True}, TypeError, "batch_size: .*bool"),
        ({"progress": 1}, TypeError, "progress: expected a function.*int"),
    ],
)
def test_so_are_those_of_a_stream(kind: Any, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(kind, NOWHERE, "encode_stream", ["a"], **options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"model": SURROGATE}, ValueError, "model: .*surrogate"),
        ({"model": 3}, TypeError, "model: expected a str, not int"),
        ({"expected_revision": b"r"}, TypeError, "expected_revision: expected a str, not bytes"),
        ({"token": "secret\n"}, ValueError, "token: expected printable ASCII.*line break"),
        ({"token": "sécret"}, ValueError, "token: expected printable ASCII"),
        ({"token": b"secret"}, TypeError, "token: expected a str, not bytes"),
        ({"tls": 1}, TypeError, "tls: expected True, False, the path of a CA file or Tls, not int"),
        ({"tls": {"ca": "x"}}, TypeError, "tls: expected.* not dict"),
        ({"tls": Tls(certificate="x")}, ValueError, "tls: certificate and key go together"),
        ({"tls": Tls(ca=b"x")}, TypeError, "tls ca: expected the path of a PEM file, not bytes"),  # type: ignore[arg-type]
        ({"tls": __file__}, ValueError, "tls ca .* is not PEM"),
        ({"tls": "/nowhere/ca.pem"}, OSError, "/nowhere/ca.pem"),
        ({"deadline_s": "secret"}, TypeError, "deadline_s: expected a number of seconds"),
        ({"deadline_s": 0}, ValueError, "deadline_s=0.0"),
        ({"max_concurrent_calls": 0}, ValueError, "max_concurrent_calls=0: expected an int of at least 1"),
        ({"max_concurrent_calls": 2.5}, TypeError, "max_concurrent_calls: .*float"),
        ({"retry": 3}, TypeError, "retry: expected a RetryPolicy, not int"),
        ({"address": "localhost"}, ValueError, "address 'localhost': expected host:port"),
        ({"address": "http://localhost:50051"}, ValueError, "address: .*without http://"),
        ({"address": "localhost:http"}, ValueError, "expected host:port"),
        ({"address": "localhost:0"}, ValueError, "expected host:port"),
        ({"address": "localhost:70000"}, ValueError, "expected host:port"),
        ({"address": "::1:50051"}, ValueError, r"\[host\]:port"),
        ({"address": "dns:///localhost"}, ValueError, "expected host:port"),
        ({"address": ["localhost:1", "localhost"]}, ValueError, "address 'localhost': expected host:port"),
        ({"address": []}, ValueError, "address: expected host:port"),
        ({"address": ["localhost:1", 1]}, TypeError, "address: expected host:port.*list of str and int"),
        ({"address": b"localhost:1"}, TypeError, "address: expected host:port.*bytes"),
        ({"address": 50051}, TypeError, "address: expected host:port.*int"),
    ],
)
def test_so_are_those_of_a_client(
    kind: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        kind(**{"address": NOWHERE, **options})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "a:1",
        "a:1, b:2",
        "[::1]:1",
        "dns:///a:1",
        "dns://8.8.8.8/a:1",
        "unix:/a",
        "ipv4:127.0.0.1:1,127.0.0.2:2",
    ],
)
def test_every_form_of_address_is_taken(address: str) -> None:
    Client(address).close()


def test_so_are_those_of_a_retry_policy() -> None:
    with pytest.raises(ValueError, match="max_attempts=0: expected an int of at least 1"):
        RetryPolicy(max_attempts=0)
    with pytest.raises(TypeError, match="first_delay_s: expected a number of seconds"):
        RetryPolicy(first_delay_s="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_delay_s=inf"):
        RetryPolicy(max_delay_s=math.inf)


def test_values_of_numpy_are_taken(kind: Any, address: str) -> None:
    result = call(
        kind,
        address,
        "encode",
        ["a"],
        dimensions=np.int64(8),
        normalize=np.True_,
        max_tokens=np.int32(16),
        priority=np.int8(-1),
        attention={"layers": range(2), "heads": np.array([-1])},
        deadline_s=np.float64(30),
    )
    assert result.embeddings.shape == (1, 8)
    assert result.results[0].attention.shape[:2] == (2, 1)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--address", "http://localhost:1"], "address: expected host:port without http://"),
        (["--address", "localhost"], "address 'localhost': expected host:port"),
        (["--deadline-s", "inf"], "deadline_s=inf: expected a number of seconds"),
        (["--deadline-s", "nan"], "--deadline-s"),
        (["--priority", "2.5"], "--priority"),
    ],
)
def test_on_the_command_line_they_are_wrong_usage(capsys: Any, flags: list[str], words: str) -> None:
    assert cli.main(["encode", *flags, "secret"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "secret" not in error


def test_a_token_file_that_is_not_text_is_named(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xff\xfesecret")
    assert cli.main(["health", "--token-file", str(file)]) == 2
    assert f"--token-file {file} is not text" in capsys.readouterr().err


async def use(client: AsyncClient) -> list[int]:
    result = await client.encode(["a", "b"])
    streamed = [encoding async for encoding in client.encode_stream(["a", "b", "c"])]
    return [len(result.results), len(streamed), len(await client.tokenize("a"))]


def test_an_asyncio_client_goes_on_in_the_next_event_loop(address: str) -> None:
    client = AsyncClient(address)
    assert [asyncio.run(use(client)) for _ in range(3)] == [[2, 3, 1]] * 3
    asyncio.run(client.close())
    with pytest.raises(ValueError, match="this client is closed"):
        asyncio.run(use(client))


def test_in_two_loops_at_once_it_is_refused(address: str) -> None:
    async def run() -> list[int]:
        async with AsyncClient(address) as client:
            await use(client)
            for action in (use, AsyncClient.close):
                with pytest.raises(RuntimeError, match="another event loop: make one for each loop"):
                    await asyncio.to_thread(lambda action=action: asyncio.run(action(client)))
            return await use(client)

    assert asyncio.run(run()) == [2, 3, 1]


def test_a_client_works_within_a_running_loop(address: str) -> None:
    async def run() -> int:
        with Client(address) as client:
            return len(client.encode(["a", "b"]).results)

    assert asyncio.run(run()) == 2


def test_a_closed_client_stays_closed(address: str) -> None:
    client = Client(address)
    for _ in range(2):
        client.close()
    with pytest.raises(ValueError, match="this client is closed: make another"):
        client.encode("a")
    with pytest.raises(ValueError, match="this client is closed: make another"):
        client.__enter__()


async def test_so_does_one_of_asyncio(address: str) -> None:
    client = AsyncClient(address)
    await client.encode("a")
    for _ in range(2):
        await client.close()
    with pytest.raises(ValueError, match="this client is closed: make another"):
        await client.encode("a")
    with pytest.raises(ValueError, match="this client is closed: make another"):
        await client.__aenter__()


def test_closing_a_client_ends_its_calls(kind: Any) -> None:
    """With a server that takes the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        if kind is Client:
            client = Client(address)
            with ThreadPoolExecutor(1) as pool:
                call = pool.submit(client.encode, "a")
                connection, _ = silent.accept()
                client.close()
                with connection, pytest.raises(CallCancelledError):
                    call.result(timeout=60)
            return

        async def run() -> None:
            client = AsyncClient(address)
            task = asyncio.create_task(client.encode("a"))
            connection, _ = await asyncio.to_thread(silent.accept)
            await client.close()
            with connection, pytest.raises(CallCancelledError):
                await task

        asyncio.run(run())


def test_a_client_is_not_pickled(kind: Any) -> None:
    with pytest.raises(TypeError, match="cannot be pickled or copied: make one in each process"):
        pickle.dumps(kind(NOWHERE))


FORK = """
import asyncio, os, sys
from seqenc import AsyncClient, Client

address = sys.argv[1]
client, other = Client(address), AsyncClient(address)
print(len(client.encode(["a", "b"]).results), len(asyncio.run(other.encode(["a", "b"])).results), flush=True)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for each in (other, AsyncClient(address)):
    try:
        asyncio.run(each.encode("a"))
    except RuntimeError as error:
        print(error, flush=True)
os._exit(0)
"""


def test_after_a_fork_the_asyncio_client_refuses_instead_of_waiting_for_ever(address: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FORK, address], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    first, *errors = run.stdout.splitlines()
    assert first == "2 2"
    assert len(errors) == 2
    assert all("forked" in error and "spawn" in error for error in errors)

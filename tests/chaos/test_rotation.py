"""Certificates, their authority and tokens change under load: no call fails that came with what was valid.

What a call came with is what was valid when it began, so nothing becomes invalid before it has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import trustme

from api.certificates import SERVER_NAME, CertificateFiles
from api.files import replace
from chaos.callers import TEXTS, Vectors
from chaos.chaos_server import ChaosServer, start_chaos_server
from chaos.tally import Tally
from seqenc import AsyncClient, SeqencError, Tls
from seqenc.retry import RetryPolicy

CALLERS = 4
NO_RETRY = RetryPolicy(max_attempts=1)
NOTICED_S = 30.0


@dataclass
class Secured:
    """A server whose certificate, authority and tokens change, and the calls to it that are under way."""

    server: ChaosServer
    files: CertificateFiles
    tally: Tally
    roots: list[trustme.CA]
    token: str
    expected: Vectors
    under_way: set[asyncio.Event] = field(default_factory=set)

    @property
    def tokens_file(self) -> Path:
        return self.files.folder / "tokens"

    @property
    def roots_file(self) -> Path:
        return self.files.folder / "roots.pem"

    async def issue(self, authority: trustme.CA) -> None:
        """Every caller trusts it first."""
        self.roots.append(authority)
        replace(self.roots_file, b"".join(root.cert_pem.bytes() for root in self.roots))
        await self.earlier_calls_end()
        self.files.issue(authority)

    async def earlier_calls_end(self) -> None:
        for ended in tuple(self.under_way):
            await ended.wait()

    def permit(self, *tokens: str) -> None:
        replace(self.tokens_file, "".join(f"{token[:5]}:{token}\n" for token in tokens).encode())

    def client(self, token: str) -> AsyncClient:
        """Over a connection of its own."""
        tls = Tls(self.roots_file, server_name=SERVER_NAME)
        return AsyncClient(self.server.grpc_address, tls=tls, token=token, retry=NO_RETRY)

    async def code(self, token: str) -> str:
        self.under_way.add(ended := asyncio.Event())
        code = "OK"
        try:
            async with self.client(token) as client:
                vectors = await encode(client, TEXTS[:4])
            self.tally.wrong += not np.allclose(vectors, self.expected, atol=1e-4)
        except SeqencError as error:
            code = error.code.name
        finally:
            self.under_way.remove(ended)
            ended.set()
        self.tally.count(code)
        return code


async def encode(client: AsyncClient, texts: list[str]) -> Vectors:
    embeddings = (await client.encode(texts, truncation="right", deadline_s=60)).embeddings
    assert embeddings is not None
    return embeddings


TOKENS = [f"token{number}-0123456789abcdef" for number in range(6)]


@pytest.fixture
def secured(tiny_artifact: Path, tally: Tally, tmp_path: Path) -> Iterator[Secured]:
    files = CertificateFiles(tmp_path)
    authority = trustme.CA()
    files.issue(authority)
    (tmp_path / "tokens").write_text(f"token:{TOKENS[0]}\n")
    authority.cert_pem.write_to_path(tmp_path / "roots.pem")
    flags = ("--tls-certificate", files.certificate, "--tls-key", files.key)
    with start_chaos_server(tiny_artifact, tally, *flags, "--tokens-file", tmp_path / "tokens") as server:
        yield Secured(server, files, tally, [authority], TOKENS[0], np.zeros(0, np.float32))


async def test_rotation_under_load(secured: Secured, tally: Tally) -> None:
    async with secured.client(TOKENS[0]) as client:
        secured.expected = np.concatenate([await encode(client, [text]) for text in TEXTS[:4]])
    codes: list[str] = []
    rotated = asyncio.Event()

    async def call_on() -> None:
        while not rotated.is_set():
            codes.append(await secured.code(secured.token))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CALLERS):
            tasks.create_task(call_on())
        for old, new in pairwise(TOKENS):
            await rotate(secured, old, new)
        rotated.set()
    assert set(codes) == {"OK"}


async def rotate(secured: Secured, old: str, new: str) -> None:
    """As an operator does: both tokens are valid until every caller has the second."""
    await secured.issue(trustme.CA())
    secured.permit(old, new)
    await until(secured, new, "OK")
    secured.token = new
    await secured.earlier_calls_end()
    secured.permit(new)
    await until(secured, old, "UNAUTHENTICATED")
    secured.tally.faults += 2


async def until(secured: Secured, token: str, code: str) -> None:
    end = time.perf_counter() + NOTICED_S
    while await secured.code(token) != code:
        assert time.perf_counter() < end

"""Resident memory of the server: when ready, and over batches of hundreds of shapes."""

from __future__ import annotations

import random

from bench.context import BATCH_TOKENS, Context
from bench.report import Check, Plot, Section, Table
from seqenc.v1 import encoder_pb2 as pb

_MIB = 1 << 20
SHAPES, EVERY = 500, 50


def measure(context: Context) -> Section:
    graphs = _graph_bytes(context) / _MIB
    draw = random.Random(0)
    with context.server_and_load() as (server, load):
        resident = {0: server.resident_mib}
        for number in range(1, SHAPES + 1):
            load.call(_random_request(draw, context.artifact.max_tokens))
            if number % EVERY == 0:
                resident[number] = server.resident_mib
    found = list(resident.values())
    half = len(found) // 2
    table = Table(
        f"Resident memory ({context.setting})",
        ("shapes seen", "MiB"),
        [[str(number), mib] for number, mib in resident.items()],
        (f"Graphs loaded, with their weights: {graphs:.0f} MiB.",),
        Plot("line", "shapes seen", ("MiB",)),
    )
    limit = 2.5 * graphs + 200 * 1e6 / _MIB
    return Section(
        "memory",
        [table],
        [
            Check("highest resident memory", max(found), limit, "at most", " MiB"),
            Check(
                "growth over the second half of the shapes", found[-1] / found[half], 1.02, "at most", " ×"
            ),
        ],
    )


def _graph_bytes(context: Context) -> int:
    """Of the graphs of the encoder and of the maps; weights that both use count once."""
    artifact = context.artifact
    graphs = [context.encoder_graph, artifact.graph("attention", "fp32")]
    files = {name for graph in graphs for name in (graph.path.name, *graph.external_data)}
    return sum((artifact.directory / name).stat().st_size for name in files)


def _random_request(draw: random.Random, max_tokens: int) -> bytes:
    tokens = draw.randint(1, max_tokens)
    count = draw.randint(1, max(1, BATCH_TOKENS // tokens))
    ids = pb.TokenIds(ids=[draw.randint(1000, 20_000) for _ in range(tokens)])
    return pb.EncodeRequest(inputs=[pb.Sequence(token_ids=ids)] * count).SerializeToString()

"""`python -m bench.soak --minutes 30`: memory of the server under a mixed load that never rests.

Good calls of every size, streams, maps and token embeddings, bad, expired and cancelled ones, side by side;
every vector of a text is compared with the one that the text had alone before.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import Sequence

import grpc.aio

from bench.context import BATCH_TOKENS, Context
from bench.report import Check, Plot, Section, Table
from bench.run import add_setting, run_alone
from chaos.callers import GOOD, Call, Load, calling, vectors_alone
from chaos.tally import Tally
from e2e.server_process import ServerProcess
from seqenc.v1 import encoder_pb2 as pb

CALLERS_OF_A_KIND = 2
_SAMPLES = 60
_UNLIMITED = (("grpc.max_receive_message_length", -1),)


async def any_shape(load: Load) -> str:
    """Ids of a random length, with token embeddings."""
    tokens = load.draw.randint(1, 256)
    ids = pb.TokenIds(ids=load.draw.choices(range(1000, 20_000), k=tokens))
    inputs = [pb.Sequence(token_ids=ids)] * load.draw.randint(1, max(1, BATCH_TOKENS // tokens))
    options = pb.EncodeOptions(token_embeddings=True)
    return (await load.outcome(load.stub.Encode(pb.EncodeRequest(inputs=inputs, options=options))))[1]


async def maps(load: Load) -> str:
    ids = pb.TokenIds(ids=load.draw.choices(range(1000, 20_000), k=load.draw.randint(1, 128)))
    options = pb.EncodeOptions(attention=pb.AttentionOptions(layers=[-1]), tokens=True)
    request = pb.EncodeRequest(inputs=[pb.Sequence(token_ids=ids)], options=options)
    return (await load.outcome(load.stub.Encode(request)))[1]


async def many_texts(load: Load) -> str:
    return await load.encode(256)


KINDS: tuple[Call, ...] = (
    *(*GOOD, any_shape, maps, many_texts, Load.stream),
    *(Load.send_nothing, Load.cancel, Load.expire),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    add_setting(parser)
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    run_alone("soak", options, lambda context: [measure(context, options.minutes)])


def measure(context: Context, minutes: float) -> Section:
    tally = Tally()
    with context.server() as server:
        resident = asyncio.run(_load_and_watch(server, tally, 60 * minutes))
    quarter = len(resident) // 4
    early, late = resident[quarter : 2 * quarter], resident[-quarter:]
    rows = [[f"{minutes * place / len(resident):.1f}", mib] for place, mib in enumerate(resident)]
    table = Table(
        f"Resident memory, {CALLERS_OF_A_KIND} callers of each of {len(KINDS)} kinds ({context.setting})",
        ("minutes", "MiB"),
        rows,
        (str(tally),),
        Plot("line", "minutes", ("MiB",)),
    )
    growth = statistics.median(late) / statistics.median(early)
    return Section(
        "soak",
        [table],
        [
            Check("memory, last quarter over the second", growth, 1.03, "at most", " ×"),
            Check("wrong answers", tally.wrong, 0, "at most"),
            Check("lost calls", tally.lost, 0, "at most"),
        ],
    )


async def _load_and_watch(server: ServerProcess, tally: Tally, seconds: float) -> Sequence[float]:
    expected = await vectors_alone(server.grpc_address)
    resident = []
    async with grpc.aio.insecure_channel(server.grpc_address, _UNLIMITED) as channel:
        load = Load(channel, expected, tally, random.Random(0))
        async with calling(load, KINDS, CALLERS_OF_A_KIND * len(KINDS)):
            for _ in range(_SAMPLES):
                await asyncio.sleep(seconds / _SAMPLES)
                resident.append(server.resident_mib)
    return resident


if __name__ == "__main__":
    main()

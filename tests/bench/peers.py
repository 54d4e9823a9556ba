"""`make bench-peers`: what a user would pick instead, on the same texts, cores and rounds.

Each peer has its own virtual environment and its best documented settings; one that cannot be installed or
whose vectors are not ours is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.context import Context
from bench.infinity import start_infinity
from bench.load import LoadGenerator, build_requests
from bench.machine import describe_machine
from bench.measure import Contender, Sample, interleave
from bench.peer_setup import FOLDER, SetupError, prepare
from bench.report import Cell, Report, Section, Table, section_markdown
from bench.run import add_setting, context_of
from bench.sections.throughput import BULK_TEXTS
from bench.worker import Worker, WorkerError
from bench.workload import texts_of
from model.source import resolve_source
from service.core.artifact import Artifact
from service.types import Floats

CHECKED_TEXTS = 50
CALLERS = 32
_OURS_BULK, _OURS_SINGLE = "seqenc, gRPC, calls of 64 texts", "seqenc, gRPC, one text a call, 32 callers"


@dataclass(frozen=True)
class Peer:
    """`precision`: what it computes in, which bounds how far its vectors may be from ours in fp32."""

    name: str
    environment: str
    precision: str
    kind: str
    settings: dict[str, str] = field(default_factory=dict)


_ST = "sentence_transformers"
_INFINITY = "Infinity, torch, HTTP, one text a call, 32 callers"
PEERS = (
    Peer("sentence-transformers, torch", "sentence-transformers", "fp32", _ST, {"backend": "torch"}),
    Peer("sentence-transformers, torch", "sentence-transformers", "bf16", _ST, {"backend": "torch"}),
    Peer(
        "sentence-transformers, ONNX O3",
        "st-onnx",
        "fp32",
        _ST,
        {"backend": "onnx", "optimization": "O3"},
    ),
    Peer("sentence-transformers, OpenVINO", "st-openvino", "fp32", _ST, {"backend": "openvino"}),
    Peer("sentence-transformers, OpenVINO", "st-openvino", "bf16", _ST, {"backend": "openvino"}),
    Peer(
        "fastembed",
        "fastembed",
        "fp32",
        "fastembed",
        {"file_name": "encoder.fp32.onnx", "output_name": "token_embeddings"},
    ),
    Peer(_INFINITY, "infinity", "fp32", "infinity"),
    Peer(_INFINITY, "infinity", "bf16", "infinity", {"--dtype": "bfloat16"}),
)
_MIN_COSINE = {"fp32": 0.9999, "bf16": 0.995}


@dataclass
class Started:
    """A peer that runs and whose vectors are ours; `note` says what was chosen for it."""

    run: Contender
    note: str


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-peers", description=__doc__)
    add_setting(parser)
    parser.add_argument(
        "--also", action="append", default=[], help="another precision of our own; may be repeated"
    )
    parser.add_argument("--only", action="append", help="only peers with this in their name; may be repeated")
    options = parser.parse_args()
    peers = [peer for peer in PEERS if _wanted(peer, options.only)]
    machine, context = describe_machine(), context_of(options)
    ours = [context, *(replace(context, precision=precision) for precision in options.also)]
    section = measure(ours, peers)
    print(section_markdown(section))
    Report(machine, [section]).write(options.out, "peers")


def _wanted(peer: Peer, only: Sequence[str] | None) -> bool:
    return not only or any(part.lower() in f"{peer.name} {peer.precision}".lower() for part in only)


def measure(ours: Sequence[Context], peers: Sequence[Peer]) -> Section:
    """The first of ours is what the peers' vectors and speeds are compared with."""
    context = ours[0]
    texts = texts_of(context.text_count)
    contenders: dict[tuple[str, str], Contender] = {}
    notes = []
    with ExitStack() as stack:
        loads = [stack.enter_context(setting.server_and_load())[1] for setting in ours]
        for setting, load in zip(ours, loads, strict=True):
            bulk, single = build_requests(texts, BULK_TEXTS), build_requests(texts, 1)
            contenders[_OURS_BULK, setting.precision] = partial(load.closed, bulk, 4)
            contenders[_OURS_SINGLE, setting.precision] = partial(load.closed, single, CALLERS)
        for peer in peers:
            title = f"{peer.name}, {peer.precision}"
            try:
                started = stack.enter_context(_start(context, peer, texts, loads[0]))
            except (SetupError, WorkerError, RuntimeError, OSError) as error:
                notes.append(f"Left out: {title}: {error}.")
            else:
                contenders[peer.name, peer.precision] = started.run
                notes.append(f"{title}: {started.note}.")
        found = interleave(contenders, context.rounds)
    return Section("peers", [_table(context, found, len(texts), notes)])


def _table(context: Context, found: dict[tuple[str, str], Sample], count: int, notes: Sequence[str]) -> Table:
    bulk, single = found[_OURS_BULK, context.precision], found[_OURS_SINGLE, context.precision]
    rows: list[list[Cell]] = [
        [
            name,
            precision,
            Sample(tuple(count / value for value in seconds.values)),
            seconds.over(bulk),
            seconds.over(single),
        ]
        for (name, precision), seconds in found.items()
    ]
    columns = (
        "what",
        "computes in",
        "texts/s",
        "seqenc in bulk is faster by",
        "seqenc one by one is faster by",
    )
    return Table("What a user would pick instead", columns, rows, tuple(notes))


@contextmanager
def _start(context: Context, peer: Peer, texts: Sequence[str], load: LoadGenerator) -> Iterator[Started]:
    """Raises RuntimeError where the vectors are not ours."""
    folder = prepare(peer.environment)
    model = _model_for(peer, context.artifact)
    with (FOLDER / f"{peer.environment}.log").open("w") as log:
        if peer.kind == "infinity":
            flags = [part for pair in peer.settings.items() for part in pair]
            with start_infinity(folder, model, log, *flags) as server:
                cosine = _check(peer, server.vectors(texts[:CHECKED_TEXTS]), load, texts)
                yield Started(partial(server.run, texts, CALLERS), f"worst cosine {cosine:.5f}")
            return
        settings = json.dumps({"model": str(model), "precision": peer.precision} | peer.settings)
        offline = {"HF_HUB_OFFLINE": "1"}
        python = folder / "python"
        with Worker(
            "bench.peer_worker", peer.kind, settings, python=python, environment=offline, log=log
        ) as worker:
            cosine = _check(peer, worker.ask("vectors", texts=texts[:CHECKED_TEXTS]), load, texts)
            best = worker.ask("load", texts=texts)
            yield Started(partial(worker.ask, "run"), f"worst cosine {cosine:.5f}, best batch size {best}")


def _check(peer: Peer, vectors: Any, load: LoadGenerator, texts: Sequence[str]) -> float:
    """The worst cosine of the peer's vectors to ours."""
    theirs = np.array(vectors, np.float32)
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    worst = float((theirs * _our_vectors(load, texts[:CHECKED_TEXTS])).sum(axis=1).min())
    if worst < _MIN_COSINE[peer.precision]:
        raise RuntimeError(f"its vectors are not ours, worst cosine {worst:.4f}")
    return worst


def _our_vectors(load: LoadGenerator, texts: Sequence[str]) -> Floats:
    embeddings = load.call(build_requests(texts, len(texts))[0]).embeddings
    return np.frombuffer(embeddings.data, np.float32).reshape(tuple(embeddings.shape))


def _model_for(peer: Peer, artifact: Artifact) -> Path:
    """The default model in a folder of the environment's own, for a peer to write its formats beside."""
    folder = FOLDER / f"model-{peer.environment}"
    if not folder.exists():
        shutil.copytree(resolve_source("default"), folder)
    if peer.kind == "fastembed":
        graph = artifact.graph("plain", "fp32")
        for name in (graph.path.name, *graph.external_data):
            shutil.copy2(artifact.directory / name, folder)
        _set_limit(folder / "tokenizer_config.json", artifact.max_tokens)
    return folder


def _set_limit(path: Path, max_tokens: int) -> None:
    """Where fastembed reads how long a text may be."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": max_tokens}))


if __name__ == "__main__":
    main()

"""`seqenc tune`: measures on this machine which settings of `seqenc serve` are best for an artifact."""

from __future__ import annotations

import itertools
import os
import pydoc_data.topics
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import get_args

import numpy as np

from service.config import TuneSettings
from service.core.artifact import Artifact, load_artifact
from service.core.collation import BatchArrays, Collector, Row, collate
from service.core.cores import count_usable_cores
from service.core.engine import Engine, EngineConfig
from service.core.planner import Entry, Flow, Planner
from service.core.sessions import Precision, Provider, why_not
from service.core.tokenizer import Tokenizer, TokenizeRule
from service.core.warmup import COMPILED_MULTIPLE
from service.display import build_console, print_tuning
from service.errors import StartError
from service.tuning import Choice, Tuning, read_cpu_model
from service.types import Floats, Outputs, Pooling, Text, TokenizedSequence, Truncation

_TEXTS = 400
_MIN_CHARACTERS = 40
_LATENCY_TOKENS = 16
_LATENCY_RUNS = 9
_ROUNDS = 3
_BUDGETS: dict[Provider, tuple[int, ...]] = {
    "cpu": (256, 512, 1024),
    "openvino": (256, 512, 1024),
    "cuda": (4096, 16384, 65536),
}
_VECTORS = Outputs(Pooling.MEAN)


@dataclass(frozen=True, slots=True)
class Candidate:
    """`batches` with the real tokens of each; `worst_cosine` of its vectors to fp32."""

    choice: Choice
    engine: Engine
    batches: Sequence[tuple[BatchArrays, int]]
    worst_cosine: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """`tokens_per_s` at full load; `latency_s` of one text of 16 tokens alone; cosines to fp32."""

    choice: Choice
    tokens_per_s: float
    latency_s: float
    worst_cosine: float


def run_tune(settings: TuneSettings) -> int:
    _check_folder(settings.out)
    artifact = load_artifact(settings.artifact)
    cores = count_usable_cores()
    sequences = load_sequences(artifact)
    fp32 = Engine(artifact, EngineConfig("cpu", "fp32", cores, attention_maps=False))
    reference = encode_all(fp32, sequences)
    candidates = [
        candidate
        for config in _engines(artifact, cores)
        for candidate in build_candidates(artifact, config, sequences, reference)
    ]
    measurements = measure(candidates, settings.seconds)
    best = choose(measurements, settings.min_cosine)
    rows = [asdict(measurement) for measurement in measurements]
    print_tuning(build_console(sys.stdout), rows, asdict(best), settings.min_cosine)
    tuning = Tuning(artifact.revision, read_cpu_model(), cores, best.choice)
    try:
        tuning.save(settings.out, rows)
    except OSError as error:
        raise StartError(f"--out {settings.out} cannot be written ({error.strerror})") from error
    return 0


def _check_folder(out: Path) -> None:
    """Before the minute that measuring takes."""
    if not os.path.isdir(out.parent):
        raise StartError(f"--out {out} cannot be written: {out.parent} is not a folder; make it first")


def measure(candidates: Sequence[Candidate], seconds: float) -> list[Measurement]:
    """Interleaved rounds, so that a machine whose speed drifts does so for all; medians of them."""
    share = seconds / (_ROUNDS * len(candidates))
    rounds = [[_throughput(candidate, share) for candidate in candidates] for _ in range(_ROUNDS)]
    return [
        Measurement(candidate.choice, median(rates), _latency(candidate.engine), candidate.worst_cosine)
        for candidate, rates in zip(candidates, zip(*rounds, strict=True), strict=True)
    ]


def choose(measurements: Sequence[Measurement], min_cosine: float) -> Measurement:
    """The highest throughput among those faithful enough; raises StartError if none is."""
    faithful = [measured for measured in measurements if measured.worst_cosine >= min_cosine]
    if not faithful:
        best = max(measured.worst_cosine for measured in measurements)
        raise StartError(f"no setting reaches --min-cosine {min_cosine}; the best has {best:.6f}: lower it")
    return max(faithful, key=lambda measured: measured.tokens_per_s)


def load_sequences(artifact: Artifact) -> list[TokenizedSequence]:
    """Paragraphs of Python's own documentation, which every Python has, as the model sees them."""
    text = "\n\n".join(pydoc_data.topics.topics.values())
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    texts = [Text(part) for part in dict.fromkeys(paragraphs) if len(part) >= _MIN_CHARACTERS]
    step = max(1, len(texts) // _TEXTS)
    rule = TokenizeRule(artifact.max_tokens, Truncation.RIGHT)
    tokenized = Tokenizer(artifact.tokenizer_path).tokenize_texts(texts[::step][:_TEXTS], rule)
    sequences = [sequence for sequence in tokenized if isinstance(sequence, TokenizedSequence)]
    if not sequences:
        raise StartError(
            f"the tokenizer of {artifact.directory} fails on every English text, so that there is nothing to "
            "measure with; export the model with a tokenizer that has an unknown token"
        )
    return sequences


def _engines(artifact: Artifact, cores: int) -> Iterator[EngineConfig]:
    """Every provider and precision that can run here, with each way to share the cores among lanes."""
    exported = {graph.precision for graph in artifact.graphs}
    for provider, precision in itertools.product(get_args(Provider), get_args(Precision)):
        runs = why_not(provider, precision) is None
        if runs and (precision in exported or precision == "bf16"):
            for lanes, threads in _shares(provider, cores):
                yield EngineConfig(provider, precision, lanes, threads, attention_maps=False)


def _shares(provider: Provider, cores: int) -> list[tuple[int, int]]:
    if provider == "cuda":
        return [(1, 1), (2, 1), (4, 1)]
    return sorted({(cores, 1), (max(1, cores // 2), min(2, cores)), (1, cores)}, reverse=True)


def build_candidates(
    artifact: Artifact, config: EngineConfig, sequences: Sequence[TokenizedSequence], reference: Floats
) -> Iterator[Candidate]:
    """One for each token budget of the provider; `reference` are the fp32 vectors of `sequences`."""
    engine = Engine(artifact, config)
    worst = float(_cosines(encode_all(engine, sequences), reference).min())
    for budget in _BUDGETS[config.provider]:
        choice = Choice(config.provider, config.precision, config.lanes, config.threads_per_lane, budget)
        batches = [(_collate(engine, rows), _tokens(rows)) for rows in _plan(engine, sequences, budget)]
        yield Candidate(choice, engine, batches, worst)


def _throughput(candidate: Candidate, seconds: float) -> float:
    """Real tokens a second with every lane busy, batches as the server would cut them."""
    engine = candidate.engine
    turns = itertools.cycle(np.random.default_rng(0).permutation(len(candidate.batches)).tolist())
    _run_lane(candidate, turns, until=0)  # what only a first run costs is not counted
    started = time.perf_counter()

    def lane(_: int) -> int:
        return _run_lane(candidate, turns, until=started + seconds)

    with ThreadPoolExecutor(engine.lanes) as lanes:
        tokens = sum(lanes.map(lane, range(engine.lanes)))
    return tokens / (time.perf_counter() - started)


def _run_lane(candidate: Candidate, turns: Iterator[int], *, until: float) -> int:
    """Runs batches, at least one, until a time of `perf_counter`; returns their real tokens."""
    tokens = 0
    while True:
        arrays, count = candidate.batches[next(turns)]
        candidate.engine.run("encoder", arrays, ["pooled_mean"])
        tokens += count
        if time.perf_counter() >= until:
            return tokens


def _plan(engine: Engine, sequences: Sequence[TokenizedSequence], budget: int) -> Iterator[list[Row]]:
    planner: Planner[Row] = Planner(
        max_batch_tokens=budget,
        max_batch_cells=1,
        length_multiple=COMPILED_MULTIPLE if engine.compiles_shapes else 1,
        powers_of_two=engine.compiles_shapes,
    )
    collector = Collector(sequences, _VECTORS, 1)
    planner.add(
        Flow(), [Entry(len(sequences[index]), Row(collector, index)) for index in range(len(sequences))]
    )
    while batch := planner.next_batch(1):
        yield [entry.payload for entry in batch]


def _collate(engine: Engine, rows: Sequence[Row]) -> BatchArrays:
    return collate(rows, pad_id=0, length_multiple=COMPILED_MULTIPLE if engine.compiles_shapes else 1)


def _tokens(rows: Sequence[Row]) -> int:
    return sum(row.sequence.token_count for row in rows)


def encode_all(engine: Engine, sequences: Sequence[TokenizedSequence]) -> Floats:
    """The mean-pooled vectors (N, D) of all sequences."""
    vectors: list[Floats] = [np.zeros(0, np.float32)] * len(sequences)
    for rows in _plan(engine, sequences, _BUDGETS["cpu"][1]):
        pooled = engine.run("encoder", _collate(engine, rows), ["pooled_mean"])["pooled_mean"]
        for row, vector in zip(rows, pooled, strict=True):
            vectors[row.index] = vector
    return np.stack(vectors)


def _latency(engine: Engine) -> float:
    ids = np.ones((1, _LATENCY_TOKENS), np.int64)
    arrays = BatchArrays(ids, np.ones_like(ids), np.zeros_like(ids))
    times = []
    for _ in range(_LATENCY_RUNS):
        started = time.perf_counter()
        engine.run("encoder", arrays, ["pooled_mean"])
        times.append(time.perf_counter() - started)
    return median(times)


def _cosines(a: Floats, b: Floats) -> Floats:
    cosines: Floats = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return cosines

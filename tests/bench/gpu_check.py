"""What a machine with a CUDA GPU must show: `make gpu-check`. Parity first, then speed; exit status 1 if off.

Every vector of real text on CUDA against the CPU in fp32, masks of every kind, attention maps, the server
itself, and then the throughput of each precision.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from e2e.server_process import start_server
from seqenc import Client
from service.core.artifact import Artifact, load_artifact
from service.core.collation import BatchArrays
from service.core.cores import count_usable_cores
from service.core.engine import Engine, EngineConfig
from service.core.sessions import Precision, why_not
from service.display import build_console, print_tuning
from service.tune import build_candidates, encode_all, load_sequences, measure
from service.types import Floats, TokenizedSequence

# Lowest cosine to fp32 on the CPU, and largest difference of an attention map.
LIMITS: dict[Precision, float] = {"fp32": 0.99999, "fp16": 0.999}
MAP_TOLERANCE = 1e-3
TEXTS = ["The bank of the river was muddy.", "She opened an account at the bank."]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="time to measure speed for")
    parser.add_argument("--out", type=Path, default=Path("build/bench/gpu.json"))
    arguments = parser.parse_args()
    for precision in LIMITS:
        if reason := why_not("cuda", precision):
            print(f"CUDA cannot run here: {reason}", file=sys.stderr)
            return 1
    artifact = load_artifact(arguments.artifact)
    sequences = load_sequences(artifact)
    cpu = Engine(artifact, EngineConfig("cpu", "fp32", count_usable_cores()))
    reference = encode_all(cpu, sequences)
    parity = {precision: check_parity(artifact, precision, cpu, sequences, reference) for precision in LIMITS}
    served = check_server(arguments.artifact, cpu, artifact)
    speed = measure_speed(artifact, sequences, reference, arguments.seconds)
    print_tuning(build_console(sys.stdout), speed, max(speed, key=lambda row: row["tokens_per_s"]), 0.999)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"parity": parity, "served": served, "speed": speed}, indent=2))
    failed = [name for checks in (*parity.values(), served) for name, good in checks.items() if good is False]
    print("off: " + ", ".join(failed) if failed else "parity holds", file=sys.stderr)
    return 1 if failed else 0


def check_parity(
    artifact: Artifact,
    precision: Precision,
    cpu: Engine,
    sequences: list[TokenizedSequence],
    reference: Floats,
) -> dict[str, Any]:
    gpu = Engine(artifact, EngineConfig("cuda", precision, 1))
    worst = float(cosines(encode_all(gpu, sequences), reference).min())
    arrays = masked_arrays(artifact)
    outputs = ["pooled_cls", "pooled_mean", "pooled_max", "pooled_last"]
    found, expected = gpu.run("encoder", arrays, outputs), cpu.run("encoder", arrays, outputs)
    empty = arrays.attention_mask.sum(axis=1) == 0
    masked = min(float(cosines(found[name][~empty], expected[name][~empty]).min()) for name in outputs)
    zeros = all(not found[name][empty].any() for name in outputs)
    maps = [f"attentions_{layer}" for layer in range(artifact.layer_count)]
    found, expected = gpu.run("attention", arrays, maps), cpu.run("attention", arrays, maps)
    difference = max(float(np.abs(found[name] - expected[name]).max()) for name in maps)
    return {
        "worst_cosine": worst,
        f"{precision} text": worst >= LIMITS[precision],
        f"{precision} masks": masked >= LIMITS[precision],
        f"{precision} masked row is zero": zeros,
        f"{precision} maps": difference <= MAP_TOLERANCE,
    }


def check_server(folder: Path, cpu: Engine, artifact: Artifact) -> dict[str, Any]:
    with (
        start_server(folder, "--provider", "cuda", "--precision", "fp16") as server,
        Client(server.grpc_address) as client,
    ):
        result, model = client.encode(TEXTS, normalize=False, pooling="mean"), client.model()
        tokens = client.encode(TEXTS, tokens=True, pooling="none")
    rows = [[token.id for token in encoding.tokens or ()] for encoding in tokens.results]
    expected = np.concatenate([cpu.run("encoder", full(row), ["pooled_mean"])["pooled_mean"] for row in rows])
    return {
        "server vectors": bool(cosines(np.asarray(result.embeddings), expected).min() >= LIMITS["fp16"]),
        "server says fp16": (result.precision, model.precision) == ("fp16", "fp16"),
        "server says CUDA": model.provider == "CUDAExecutionProvider",
    }


def measure_speed(
    artifact: Artifact, sequences: list[TokenizedSequence], reference: Floats, seconds: float
) -> list[dict[str, Any]]:
    candidates = [
        candidate
        for precision in LIMITS
        for lanes in (1, 2)
        for candidate in build_candidates(
            artifact, EngineConfig("cuda", precision, lanes, attention_maps=False), sequences, reference
        )
    ]
    return [asdict(measurement) for measurement in measure(candidates, seconds)]


def masked_arrays(artifact: Artifact) -> BatchArrays:
    """A full row, padding on either side, holes, and a row that is masked whole."""
    rng = np.random.default_rng(0)
    ids = rng.integers(artifact.vocabulary_size, size=(5, 24))
    mask = np.ones_like(ids)
    mask[1, 16:] = 0
    mask[2, :9] = 0
    mask[3, 1::3] = 0
    mask[4] = 0
    return BatchArrays(ids, mask, np.zeros_like(ids))


def full(ids: list[int]) -> BatchArrays:
    row = np.array([ids])
    return BatchArrays(row, np.ones_like(row), np.zeros_like(row))


def cosines(a: Floats, b: Floats) -> Floats:
    result: Floats = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return result


if __name__ == "__main__":
    sys.exit(main())

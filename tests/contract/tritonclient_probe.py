"""Calls a server with tritonclient, sync and aio, and saves what came back; for a venv of its own.

Arguments: the server's address, a .npz to write.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton  # type: ignore[import-not-found]
import tritonclient.grpc.aio as triton_aio  # type: ignore[import-not-found]

MODEL = "tiny-bert"
TEXTS = ["The bank of the river was muddy.", "", "Grüße aus Köln 😀"]
PAIRS = ["Where is it?", "Over there.", ""]
IDS = np.arange(5, 23).reshape(2, 9)
MASK = np.array([[1, 1, 1, 0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1, 1, 1]])
OUTPUTS = ("embedding", "token_embeddings", "attention_mask", "attentions")


def texts(name: str, values: list[str]) -> triton.InferInput:
    tensor = triton.InferInput(name, [len(values)], "BYTES")
    return tensor.set_data_from_numpy(np.array([value.encode() for value in values], dtype=object))


def integers(name: str, values: np.ndarray[Any, Any]) -> triton.InferInput:
    datatype = values.dtype.name.upper()
    return triton.InferInput(name, list(values.shape), datatype).set_data_from_numpy(values)


def calls() -> dict[str, dict[str, Any]]:
    """What to pass to `infer`, by a name for the call."""
    every = [triton.InferRequestedOutput(name) for name in OUTPUTS]
    return {
        "texts": {"inputs": [texts("text", TEXTS)]},
        "zipped": {"inputs": [texts("text", TEXTS)], "compression_algorithm": "gzip"},
        "pairs": {"inputs": [texts("text", TEXTS), texts("text_pair", PAIRS)], "outputs": every},
        "ids": {
            "inputs": [integers("input_ids", IDS), integers("attention_mask", MASK)],
            "outputs": every,
        },
        "ids of 32 bits": {
            "inputs": [integers("input_ids", IDS.astype(np.int32)), integers("attention_mask", MASK)],
            "outputs": every,
        },
        "parameters": {
            "inputs": [texts("text", TEXTS)],
            "parameters": {"pooling": "max", "normalize": True, "dimensions": 7},
        },
    }


def arrays(call: str, result: triton.InferResult) -> dict[str, np.ndarray[Any, Any]]:
    names = [output.name for output in result.get_response().outputs]
    return {f"{call}/{name}": result.as_numpy(name) for name in names}


def use_sync(address: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found: dict[str, Any] = {}
    with triton.InferenceServerClient(address) as client:
        facts = {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "model ready": client.is_model_ready(MODEL),
            "server": client.get_server_metadata(as_json=True),
            "model": client.get_model_metadata(MODEL, as_json=True),
        }
        for name, arguments in calls().items():
            found |= arrays(name, client.infer(MODEL, request_id=name, **arguments))
        try:
            client.infer(MODEL, [integers("input_ids", -IDS)])
        except triton.InferenceServerException as error:
            facts["refused"] = [error.status(), error.message()]
    return facts, found


async def use_aio(address: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found: dict[str, Any] = {}
    async with triton_aio.InferenceServerClient(address) as client:
        facts = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model ready": await client.is_model_ready(MODEL),
            "server": await client.get_server_metadata(as_json=True),
            "model": await client.get_model_metadata(MODEL, as_json=True),
        }
        for name, arguments in calls().items():
            found |= arrays(name, await client.infer(MODEL, request_id=name, **arguments))
        try:
            await client.infer(MODEL, [integers("input_ids", -IDS)])
        except triton.InferenceServerException as error:
            facts["refused"] = [error.status(), error.message()]
    return facts, found


def main(address: str, target: str) -> None:
    facts, found = use_sync(address)
    aio_facts, aio_found = asyncio.run(use_aio(address))
    found = {f"sync/{name}": array for name, array in found.items()}
    found |= {f"aio/{name}": array for name, array in aio_found.items()}
    np.savez(target, **found)
    print(json.dumps({"sync": facts, "aio": aio_facts}))


if __name__ == "__main__":
    main(*sys.argv[1:])

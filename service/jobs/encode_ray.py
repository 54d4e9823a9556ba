"""Encodes blocks on a Ray cluster: read tasks -> a pool of actors with an engine each -> results in order.

A lost worker's blocks are read and encoded again by Ray. Blocks and results travel as Arrow IPC bytes, one to
a row of a Ray data set, so that Ray neither splits nor joins them.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from service.job_settings import JobSettings
from service.jobs.build_encoder import build_local_encoder
from service.jobs.encode_block import Result, encode_block
from service.jobs.encoded import Model, Tally
from service.jobs.errors import JobError
from service.jobs.input import Input
from service.jobs.shards import Block, ShardChoice, ShardPlan, cut_blocks, plan_shards
from service.jobs.table import Layout

# Small, so that many actors have work and little is lost with one.
_BLOCK_ROWS = 1024
_MAX_READERS = 16
_SAID = re.compile(r"(?:JobError|StartError): (.+)")


class RayPool:
    """Ray is imported where it is used: it is an extra of its own."""

    def __init__(self, settings: JobSettings) -> None:
        import ray.data

        self._settings = settings
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        for name in ("ray", "ray.data"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # Ray's own log files have it all
        try:
            ray.init(
                settings.ray_address or None,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                include_dashboard=None if settings.ray_address else False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise JobError(f"Ray cannot be reached or started: {error}; check --ray-address") from error
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        context.target_max_block_size = 1  # each of our blocks is one of Ray's

    def encode(self, source: Input, layout: Layout, model: Model, choice: ShardChoice) -> Iterator[Result]:
        """Raises JobError with what a worker said."""
        import ray.data

        settings = self._settings
        plan = plan_shards(settings.rows_per_shard, model, layout.shape, _BLOCK_ROWS)
        shares = _split(choice, source, plan)
        numbers = ray.data.from_items([{"share": number} for number in range(len(shares))])
        blocks = numbers.map_batches(
            _read,
            fn_args=(source, plan, shares),
            batch_size=1,
            num_cpus=0,  # engines may hold every core
        )
        results = blocks.map_batches(
            _Actor,
            fn_constructor_args=(settings, layout),
            batch_size=1,
            batch_format="pyarrow",
            compute=_actor_pool(settings),
            num_cpus=settings.ray_actor_cores,
            num_gpus=1 if settings.provider == "cuda" else None,
        )
        try:
            for row in results.iter_rows():
                yield _unpack_result(row)
        except ray.exceptions.RayError as error:
            raise JobError(f"a worker of the Ray cluster failed: {_reason(error)}") from error

    def close(self) -> None:
        import ray

        ray.shutdown()


class _Actor:
    def __init__(self, settings: JobSettings, layout: Layout) -> None:
        lanes = max(1, settings.ray_actor_cores // settings.threads_per_lane)
        own = settings if settings.lanes != "auto" else settings.model_copy(update={"lanes": lanes})
        os.environ["RAYON_NUM_THREADS"] = "1"
        self._encoder = build_local_encoder(own)
        self._layout = layout

    def __call__(self, batch: pa.Table) -> pa.Table:
        results = [encode_block(self._encoder, self._layout, _unpack_block(row)) for row in batch.to_pylist()]
        return pa.Table.from_pylist([_pack_result(result) for result in results])


def _actor_pool(settings: JobSettings) -> Any:
    import ray.data

    most = None if settings.ray_max_actors == "auto" else settings.ray_max_actors
    return ray.data.ActorPoolStrategy(min_size=settings.ray_min_actors, max_size=most)


def _split(choice: ShardChoice, source: Input, plan: ShardPlan) -> list[ShardChoice]:
    """Consecutive shards for each reader; one reader where the number of rows is not known."""
    if source.row_count is None:
        return [choice]
    shards = max(1, -(-source.row_count // plan.rows_per_shard))
    readers = min(_MAX_READERS, shards)
    bounds = [shards * reader // readers for reader in range(readers + 1)]
    return [choice.within(*bounds[reader : reader + 2]) for reader in range(readers)]


def _read(
    batch: dict[str, Any], source: Input, plan: ShardPlan, shares: list[ShardChoice]
) -> Iterator[pa.Table]:
    (choice,) = (shares[number] for number in batch["share"])
    for block in cut_blocks(source.read(choice.wants), source.schema, plan, choice):
        yield pa.Table.from_pylist([_pack_block(block)])


def _pack_block(block: Block) -> dict[str, Any]:
    return {
        "shard": block.shard,
        "first_row": block.first_row,
        "position": block.position,
        "rows": _to_bytes(block.rows),
    }


def _unpack_block(row: dict[str, Any]) -> Block:
    return Block(row["shard"], row["first_row"], _from_bytes(row["rows"]), row["position"])


def _pack_result(result: Result) -> dict[str, Any]:
    return {
        "shard": result.shard,
        "first_row": result.first_row,
        "position": result.position,
        "rows": _to_bytes(result.table),
        "tally": json.dumps(asdict(result.tally)),
    }


def _unpack_result(row: dict[str, Any]) -> Result:
    return Result(
        row["shard"],
        row["first_row"],
        row["position"],
        _from_bytes(row["rows"]),
        Tally(**json.loads(row["tally"])),
    )


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _from_bytes(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as stream:
        return stream.read_all()


def _reason(error: Exception) -> str:
    """What our code said, if it was our code, from among what Ray says around it."""
    text = str(error).strip()
    return (_SAID.findall(text) or text.splitlines() or [type(error).__name__])[-1]

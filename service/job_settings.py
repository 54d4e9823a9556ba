"""Settings of `seqenc job`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from service.client_settings import ConnectionSettings, Dimensions, Normalize, PoolingMode
from service.config import (
    Auto,
    BatchTokens,
    DeviceId,
    LaneCount,
    LogFormat,
    LogLevel,
    Positional,
    PrecisionName,
    ProviderName,
    Words,
)

InputFormat = Literal["parquet", "jsonl", "csv", "tsv", "text"]
Quoting = Literal["auto", "on", "off"]
OutputFormat = Literal["parquet", "npy", "jsonl"]


class JobSettings(ConnectionSettings):
    inputs: Annotated[
        Words,
        Field(min_length=1, description="files, folders, patterns such as 'data/*.csv', or fsspec URLs"),
        Positional(),
    ]
    out: Annotated[Path, Field(description="folder for the vectors and the job's state")]
    artifact: Annotated[
        Path | None, Field(description="folder written by `seqenc-model export`, to encode in this process")
    ] = None
    address: Annotated[
        str, Field(description="host:port of servers to encode with instead, several with commas")
    ] = ""
    answer_timeout_s: Annotated[
        PositiveFloat, Field(description="time without any answer from the servers after which the job ends")
    ] = 300.0
    engine: Annotated[
        Literal["local", "ray"], Field(description="this machine, or a Ray cluster with --artifact")
    ] = "local"
    ray_address: Annotated[
        str, Field(description="address of a running Ray cluster; none given: one on this machine")
    ] = ""
    ray_min_actors: Annotated[PositiveInt, Field(description="engines that Ray keeps at least")] = 1
    ray_max_actors: Annotated[
        PositiveInt | Auto,
        Field(description="engines that Ray may start; auto: as many as the cluster takes"),
    ] = "auto"
    ray_actor_cores: Annotated[PositiveInt, Field(description="cores of one engine, its lanes in all")] = 1
    input_format: Annotated[
        InputFormat | None, Field(description="parquet, jsonl, csv, tsv or text; none given: by file name")
    ] = None
    quoting: Annotated[
        Quoting,
        Field(description='whether "..." encloses fields of CSV and TSV; auto: in CSV, not in TSV'),
    ] = "auto"
    text_column: Annotated[str, Field(description="column to encode; doc.body is a field of a struct")] = (
        "text"
    )
    text_template: Annotated[
        str | None, Field(description="text made from columns instead, as in '{title}\\n{body}'")
    ] = None
    id_column: Annotated[
        str | None, Field(description="column that identifies a row; none given: its number from 0")
    ] = None
    keep_columns: Annotated[
        str, Field(description="columns to carry into the output, separated by commas")
    ] = ""
    prompt_name: Annotated[str | None, Field(description="one of the model's prompts to put first")] = None
    prompt: Annotated[str | None, Field(description="literal prompt to put first")] = None
    truncation: Annotated[
        Literal["error", "right", "left"],
        Field(description="what happens to a text that is too long: its row is marked, or it is cut"),
    ] = "error"
    max_tokens: Annotated[
        PositiveInt | None, Field(description="limit of a text, special tokens included")
    ] = None
    pooling: PoolingMode = None
    normalize: Normalize = None
    dimensions: Dimensions = None
    type: Annotated[
        Literal["float32", "float16", "int8", "ubinary"], Field(description="type of the vectors written")
    ] = "float32"
    token_embeddings: Annotated[bool, Field(description="also write a vector for each token")] = False
    output_format: Annotated[
        OutputFormat, Field(description="parquet; npy with a JSON lines file of ids; or jsonl")
    ] = "parquet"
    rows_per_shard: Annotated[
        PositiveInt, Field(description="rows of one output file; also what a killed job may lose")
    ] = 16_384
    fingerprint: Annotated[
        Literal["stat", "content"],
        Field(description="how a changed input is noticed: path, size, time and schema, or also a hash"),
    ] = "stat"
    max_errors: Annotated[
        NonNegativeInt | None, Field(description="marked rows at which the job stops; none given: never")
    ] = None
    dry_run: Annotated[bool, Field(description="read the head, print the plan and stop")] = False
    metrics_textfile: Annotated[
        Path | None, Field(description="file kept up to date for node_exporter's textfile collector")
    ] = None
    shard_index: Annotated[
        NonNegativeInt, Field(description="which share of the shards is done here, from 0")
    ] = 0
    shard_count: Annotated[PositiveInt, Field(description="into how many shares the shards are dealt")] = 1
    expected_revision: Annotated[str, Field(description="refuse a model of another revision")] = ""
    provider: ProviderName = "auto"
    precision: PrecisionName = "fp32"
    device_id: DeviceId = 0
    lanes: LaneCount = "auto"
    threads_per_lane: Annotated[PositiveInt, Field(description="threads of one batch")] = 1
    max_batch_tokens: BatchTokens = "auto"
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"

    @field_validator("out", mode="before")
    @classmethod
    def _check_out(cls, value: Any) -> Any:
        if isinstance(value, str) and "://" in value:
            raise ValueError("is a URL: vectors are written to a folder of this machine, or to a mounted one")
        return value

    @model_validator(mode="after")
    def _check_choice(self) -> JobSettings:
        if "" in self.inputs:
            raise ValueError("an input is empty; give files, folders, patterns or URLs")
        if (self.artifact is None) == (not self.address):
            raise ValueError("give one of --artifact (encode here) and --address (encode on servers)")
        if self.engine == "ray" and self.artifact is None:
            raise ValueError("--engine ray runs engines of its own: give --artifact, not --address")
        if self.shard_index >= self.shard_count:
            raise ValueError(
                f"--shard-index {self.shard_index} must be below --shard-count {self.shard_count}"
            )
        if self.output_format == "npy" and (self.token_embeddings or self.pooling == "none"):
            raise ValueError("--output-format npy holds one vector a row: choose parquet or jsonl")
        return self

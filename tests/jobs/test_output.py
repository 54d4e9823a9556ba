"""What is written, in every format and type, as the tools that people have read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus import sentences
from jobs.job_files import Jobs, content, parts, vectors, write_jsonl, write_parquet
from service.jobs.encode_local import LocalEncoder

TEXTS: list[str | None] = [*sentences(7), None, ""]
KEYS = [f"key {row}" for row in range(len(TEXTS))]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "in.parquet", {"key": KEYS, "text": TEXTS, "n": list(range(9))})


@pytest.fixture
def expected(encoder: LocalEncoder) -> np.ndarray[Any, np.dtype[Any]]:
    """(9, 32), zero for the null text."""
    encoded = encoder.encode([text or "" for text in TEXTS]).vectors
    assert encoded is not None
    encoded.data[7] = 0
    return np.asarray(encoded.data)


def test_parquet_has_the_schema_that_is_promised(jobs: Jobs, file: Path) -> None:
    jobs.run(file, id_column="key", keep_columns="n,text")
    schema = pq.read_schema(parts(jobs.out, ".parquet")[0])
    assert [(field.name, field.type) for field in schema] == [
        ("key", pa.string()),
        ("embedding", pa.list_(pa.float32(), 32)),
        ("token_count", pa.int32()),
        ("truncated", pa.bool_()),
        ("error", pa.string()),
        ("n", pa.int64()),
        ("text", pa.string()),
    ]
    assert schema.metadata[b"seqenc.precision"] == b"fp32"
    assert len(schema.metadata[b"seqenc.revision"]) == 64


def test_rows_and_vectors_are_those_of_the_input(
    jobs: Jobs, file: Path, expected: np.ndarray[Any, np.dtype[Any]]
) -> None:
    assert jobs.run(file, id_column="key", keep_columns="n,text", rows_per_shard=4).status == 3
    table = jobs.read()
    assert table.column("key").to_pylist() == KEYS
    assert table.column("n").to_pylist() == list(range(9))
    assert table.column("text").to_pylist() == TEXTS
    np.testing.assert_allclose(vectors(table), expected, atol=1e-5)
    assert table.column("error").to_pylist() == [None] * 7 + ["null: the text is null", None]
    assert table.column("embedding").null_count == 1
    assert table.column("token_count").to_pylist()[7:] == [0, 2]


def test_without_an_id_column_rows_have_their_numbers(jobs: Jobs, file: Path) -> None:
    jobs.run(file, rows_per_shard=4)
    assert jobs.read().column("id").to_pylist() == list(range(9))
    assert len(parts(jobs.out, ".parquet")) == 3


@pytest.mark.parametrize("kind", ["float16", "int8", "ubinary"])
def test_narrow_types(jobs: Jobs, file: Path, expected: np.ndarray[Any, np.dtype[Any]], kind: str) -> None:
    jobs.run(file, type=kind, rows_per_shard=4)
    table = jobs.read()
    column = table.column("embedding").combine_chunks()
    assert column.is_null().to_pylist() == [False] * 7 + [True, False]
    if kind == "ubinary":
        assert column.type == pa.binary(4)
        bits = [np.unpackbits(np.frombuffer(value or bytes(4), np.uint8)) for value in column.to_pylist()]
        np.testing.assert_array_equal(np.array(bits), expected > 0)
        return
    values = vectors(table)
    if kind == "int8":
        assert column.type == pa.list_(pa.int8(), 32)
        scales = np.array(table.column("embedding_scale").fill_null(0).to_pylist())
        values = values * scales[:, None]
    np.testing.assert_allclose(values, expected, atol=1e-2 if kind == "int8" else 1e-3)


def test_token_embeddings_have_a_vector_for_each_token(jobs: Jobs, file: Path, encoder: LocalEncoder) -> None:
    jobs.run(file, token_embeddings=True, pooling="mean", normalize=False, rows_per_shard=4)
    table = jobs.read()
    column = table.column("token_embeddings").combine_chunks()
    assert column.type == pa.list_(pa.list_(pa.float32(), 32))
    counts = table.column("token_count").to_pylist()
    assert [None if row is None else len(row) for row in column.to_pylist()] == [
        None if row == 7 else count for row, count in enumerate(counts)
    ]
    means = [np.zeros(32) if row is None else np.mean(row, axis=0) for row in column.to_pylist()]
    np.testing.assert_allclose(np.array(means), vectors(table), atol=1e-5)


def test_only_token_embeddings(jobs: Jobs, file: Path) -> None:
    jobs.run(file, token_embeddings=True, pooling="none")
    assert "embedding" not in jobs.read().column_names


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "ubinary"])
def test_npy_holds_the_vectors_of_parquet_beside_a_file_of_ids(
    jobs: Jobs, file: Path, tmp_path: Path, kind: str
) -> None:
    jobs.run(file, id_column="key", rows_per_shard=4, type=kind)
    reference = jobs.read()
    out = tmp_path / "npy"
    jobs.run(
        file, id_column="key", keep_columns="n", rows_per_shard=4, type=kind, output_format="npy", out=out
    )
    arrays = [np.load(path) for path in parts(out, ".npy")]
    records = [
        json.loads(line) for path in parts(out, ".ids.jsonl") for line in path.read_text().splitlines()
    ]
    assert [len(array) for array in arrays] == [4, 4, 1]
    whole = np.concatenate(arrays)
    assert whole.dtype == np.dtype("uint8" if kind == "ubinary" else kind)
    if kind == "ubinary":
        packed = [list(value or bytes(4)) for value in reference.column("embedding").to_pylist()]
        np.testing.assert_array_equal(whole, packed)
    else:
        np.testing.assert_array_equal(whole.astype(np.float32), vectors(reference))
    assert [record["key"] for record in records] == KEYS
    assert [record["n"] for record in records] == list(range(9))
    assert records[7]["error"] == "null: the text is null"


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "ubinary"])
def test_json_lines_hold_the_vectors_of_parquet(jobs: Jobs, file: Path, tmp_path: Path, kind: str) -> None:
    settings = {"id_column": "key", "rows_per_shard": 4, "type": kind, "token_embeddings": True}
    jobs.run(file, **settings)
    reference = jobs.read().to_pylist()
    out = tmp_path / "jsonl"
    jobs.run(file, **settings, output_format="jsonl", out=out)
    records = [json.loads(line) for path in parts(out, ".jsonl") for line in path.read_text().splitlines()]
    if kind == "ubinary":
        reference = [{**row, "embedding": row["embedding"] and list(row["embedding"])} for row in reference]
    for record, row in zip(records, reference, strict=True):
        assert _rounded(record) == _rounded(row)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Floats as float32, which JSON's digits must give back exactly."""
    return {
        name: np.array(value, np.float32).tolist() if isinstance(value, list | float) else value
        for name, value in row.items()
    }


def test_values_that_json_has_no_type_for_are_written_as_text(jobs: Jobs, tmp_path: Path) -> None:
    columns = {"text": ["a"], "raw": [b"bytes"], "day": pa.array([0], pa.date32()), "tags": [["x", "y"]]}
    file = write_parquet(tmp_path / "in.parquet", columns)
    jobs.run(file, keep_columns="raw,day,tags", output_format="jsonl")
    record = json.loads(parts(jobs.out, ".jsonl")[0].read_text())
    assert (record["raw"], record["day"], record["tags"]) == (b"bytes".hex(), "1970-01-01", ["x", "y"])


@pytest.mark.parametrize("form", ["parquet", "npy", "jsonl"])
def test_an_empty_input_gives_an_empty_shard(jobs: Jobs, tmp_path: Path, form: str) -> None:
    file = write_parquet(tmp_path / "in.parquet", {"text": pa.array([], pa.string())})
    assert jobs.run(file, output_format=form).status == 0
    if form == "parquet":
        assert jobs.read().num_rows == 0
        assert jobs.read().schema.field("embedding").type == pa.list_(pa.float32(), 32)
    elif form == "npy":
        assert np.load(jobs.out / "part-00000.npy").shape == (0, 32)
    else:
        assert content(jobs.out) == {"part-00000.jsonl": b""}


def test_no_row_group_is_larger_than_a_block(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.jobs.engines.plan_shards", _small_blocks)
    jobs.run(write_jsonl(tmp_path / "in.jsonl", [{"text": str(row)} for row in range(25)]), rows_per_shard=20)
    groups = [pq.ParquetFile(path).metadata for path in parts(jobs.out, ".parquet")]
    sizes = [[group.row_group(index).num_rows for index in range(group.num_row_groups)] for group in groups]
    assert sizes == [[8, 8, 4], [5]]


def _small_blocks(rows_per_shard: int, *_args: object) -> Any:
    from service.jobs.shards import ShardPlan

    return ShardPlan(rows_per_shard, block_rows=8)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "ubinary"])
def test_pandas_polars_duckdb_and_pyarrow_read_the_same(jobs: Jobs, file: Path, kind: str) -> None:
    jobs.run(file, id_column="key", rows_per_shard=4, type=kind)
    table = jobs.read()
    files = str(jobs.out / "*.parquet")
    by_pandas = pd.concat(map(pd.read_parquet, parts(jobs.out, ".parquet")))
    by_polars = pl.read_parquet(files)
    by_duckdb = duckdb.execute(f"from read_parquet('{files}')").fetchall()
    rows = table.to_pylist()
    assert by_pandas["key"].tolist() == by_polars["key"].to_list() == [row[0] for row in by_duckdb] == KEYS
    for read in (by_pandas["embedding"], by_polars["embedding"], [row[1] for row in by_duckdb]):
        assert [_plain(value) for value in read] == [_plain(row["embedding"]) for row in rows]


def _plain(vector: Any) -> list[float] | bytes | None:
    if vector is None or isinstance(vector, bytes | float):
        return vector if isinstance(vector, bytes) else None
    return [float(value) for value in vector]


def test_a_folder_reads_as_one_data_set(jobs: Jobs, file: Path) -> None:
    """The job's own files do not disturb it."""
    jobs.run(file, id_column="key", rows_per_shard=4)
    assert pq.read_table(jobs.out).num_rows == 9
    assert len(pd.read_parquet(jobs.out)) == 9


def test_nearest_neighbours_with_duckdb(jobs: Jobs, tmp_path: Path) -> None:
    texts = sentences(50)
    file = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    jobs.run(file, keep_columns="text", normalize=True)
    found = duckdb.execute(
        f"""
        with rows as (from '{jobs.out}/*.parquet')
        select text, array_cosine_similarity(
            embedding::float[32], (select embedding::float[32] from rows where id = 7)
        ) as cosine
        from rows order by cosine desc limit 3
        """  # noqa: S608
    ).fetchall()
    embeddings = vectors(jobs.read())
    cosines = embeddings @ embeddings[7]
    assert [text for text, _ in found] == [texts[index] for index in np.argsort(-cosines)[:3]]
    assert found[0] == (texts[7], pytest.approx(1.0, abs=1e-5))


@pytest.mark.parametrize("name", ["embedding", "token_count", "error"])
def test_a_column_named_like_one_of_the_outputs_is_refused(jobs: Jobs, tmp_path: Path, name: str) -> None:
    file = write_parquet(tmp_path / "in.parquet", {"text": ["a"], name: [1]})
    outcome = jobs.run(file, keep_columns=name)
    assert outcome.status == 1
    assert f"the output has a column {name} of its own" in outcome.err

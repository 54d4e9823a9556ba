"""Collation and distribution against NumPy, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_runner import HEAD_COUNT, HIDDEN_SIZE, outputs_of
from service.core.collation import Collector, Row, collate, distribute, output_names
from service.types import (
    Array,
    AttentionPlan,
    AttentionReduction,
    DataType,
    Ids,
    Outputs,
    Pooling,
    TokenizedSequence,
)

PAD = 9
EVERYTHING = Outputs(
    Pooling.MEAN,
    token_embeddings=True,
    attention=AttentionPlan((2, 0), (0, 1), AttentionReduction.NONE, DataType.FLOAT32),
)


def sequence_of(
    ids: Sequence[int], mask: Sequence[int] | None = None, type_ids: Sequence[int] | None = None
) -> TokenizedSequence:
    def array(values: Sequence[int] | None) -> Ids | None:
        return None if values is None else np.array(values, np.int64)

    return TokenizedSequence(
        np.array(ids, np.int64), array(mask), array(type_ids), sum(mask) if mask else len(ids)
    )


def rows_of(sequences: Sequence[TokenizedSequence], outputs: Outputs = EVERYTHING) -> list[Row]:
    collector = Collector(sequences, outputs, HIDDEN_SIZE)
    return [Row(collector, index) for index in range(len(sequences))]


def run(rows: Sequence[Row], layers: Sequence[int] = (0, 2), length_multiple: int = 1) -> None:
    arrays = collate(rows, pad_id=PAD, length_multiple=length_multiple)
    distribute(rows, outputs_of(arrays, output_names(rows, layers)))


def real_ids(sequence: TokenizedSequence) -> Ids:
    return sequence.ids if sequence.mask is None else sequence.ids[sequence.mask == 1]


def assert_own_results(collector: Collector, index: int) -> None:
    """Each output of the fake graph is a function of the row's own ids, positions and types."""
    sequence = collector.sequences[index]
    ids = real_ids(sequence)
    positions = np.arange(len(sequence)) if sequence.mask is None else np.flatnonzero(sequence.mask)
    types = np.zeros(len(sequence)) if sequence.type_ids is None else sequence.type_ids
    assert collector.vectors is not None
    assert collector.vectors[index].tolist() == [ids.sum(), len(ids), ids[0], ids[-1]]
    embeddings = collector.token_embeddings[index]
    assert embeddings is not None
    expected = np.stack([ids, positions, types[positions], np.ones(len(ids))], axis=1)
    np.testing.assert_array_equal(embeddings, expected)
    maps = collector.attention[index]
    assert maps is not None
    for place, layer in enumerate((2, 0)):
        for head in range(HEAD_COUNT):
            expected_map = np.repeat((layer * 10 + head + ids / 100)[:, None], len(ids), axis=1)
            np.testing.assert_allclose(maps[place, head], expected_map, rtol=1e-6)


class TestCollate:
    def test_shorter_rows_are_padded_on_the_right(self) -> None:
        arrays = collate(rows_of([sequence_of([1, 2, 3]), sequence_of([4])]), pad_id=PAD)
        assert arrays.input_ids.tolist() == [[1, 2, 3], [4, PAD, PAD]]
        assert arrays.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
        assert arrays.token_type_ids.tolist() == [[0, 0, 0], [0, 0, 0]]
        assert arrays.padded_tokens == 6

    def test_masks_and_types_are_kept_as_they_are(self) -> None:
        left_padded = sequence_of([0, 0, 5, 6], mask=[0, 0, 1, 1], type_ids=[0, 0, 1, 1])
        with_hole = sequence_of([5, 0, 6], mask=[1, 0, 1])
        arrays = collate(rows_of([left_padded, with_hole]), pad_id=PAD)
        assert arrays.input_ids.tolist() == [[0, 0, 5, 6], [5, 0, 6, PAD]]
        assert arrays.attention_mask.tolist() == [[0, 0, 1, 1], [1, 0, 1, 0]]
        assert arrays.token_type_ids.tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]

    @pytest.mark.parametrize(("length", "multiple", "width"), [(1, 8, 8), (8, 8, 8), (9, 8, 16), (9, 1, 9)])
    def test_width_is_rounded_up(self, length: int, multiple: int, width: int) -> None:
        arrays = collate(rows_of([sequence_of([1] * length)]), pad_id=PAD, length_multiple=multiple)
        assert arrays.input_ids.shape == (1, width)
        assert arrays.attention_mask.sum() == length

    def test_arrays_are_what_the_graph_takes(self) -> None:
        arrays = collate(rows_of([sequence_of([1])]), pad_id=PAD)
        for array in (arrays.input_ids, arrays.attention_mask, arrays.token_type_ids):
            assert array.dtype == np.int64
            assert array.flags.c_contiguous


class TestOutputNames:
    @pytest.mark.parametrize(
        ("wanted", "layers", "names"),
        [
            ([Outputs(Pooling.MEAN)], (), ["pooled_mean"]),
            ([Outputs(Pooling.MEAN), Outputs(Pooling.MEAN)], (), ["pooled_mean"]),
            ([Outputs(Pooling.MEAN), Outputs(Pooling.LAST)], (), ["pooled_last", "pooled_mean"]),
            ([Outputs(Pooling.NONE, token_embeddings=True)], (), ["token_embeddings"]),
            ([Outputs(Pooling.CLS), Outputs(Pooling.MAX)], (), ["pooled_cls", "pooled_max"]),
            ([Outputs(Pooling.CLS, True), Outputs(Pooling.CLS)], (), ["pooled_cls", "token_embeddings"]),
            ([Outputs(Pooling.NONE)], (1, 3), ["attentions_1", "attentions_3"]),
        ],
    )
    def test_only_what_some_row_needs(
        self, wanted: list[Outputs], layers: tuple[int, ...], names: list[str]
    ) -> None:
        rows = [row for outputs in wanted for row in rows_of([sequence_of([1])], outputs)]
        assert output_names(rows, layers) == names

    def test_a_call_that_wants_only_tokens_still_runs_something(self) -> None:
        rows = rows_of([sequence_of([1])], Outputs(Pooling.NONE))
        assert output_names(rows, ()) == ["pooled_cls"]
        run(rows, ())
        collector = rows[0].collector
        assert (collector.vectors, collector.token_embeddings, collector.attention) == (None, [None], [None])


class TestDistribute:
    def test_each_row_gets_its_own(self) -> None:
        sequences = [
            sequence_of([1, 2, 3, 4]),
            sequence_of([0, 0, 5, 6], mask=[0, 0, 1, 1]),
            sequence_of([7, 0, 8], mask=[1, 0, 1], type_ids=[0, 0, 1]),
            sequence_of([3]),
        ]
        rows = rows_of(sequences)
        run(rows)
        for row in rows:
            assert_own_results(row.collector, row.index)

    def test_rows_of_several_calls_in_any_order_over_several_batches(self) -> None:
        first = rows_of([sequence_of([n, n + 1]) for n in range(1, 6)])
        second = rows_of([sequence_of([n] * n) for n in range(1, 5)])
        run([second[3], first[4], first[0], second[0]])
        run([first[1]])
        run([second[1], first[3], second[2], first[2]], length_multiple=8)
        for row in first + second:
            assert_own_results(row.collector, row.index)

    def test_calls_of_one_batch_get_what_each_asked_for(self) -> None:
        mean = rows_of([sequence_of([1, 2])], Outputs(Pooling.MEAN))
        tokens = rows_of([sequence_of([3, 4])], Outputs(Pooling.NONE, token_embeddings=True))
        run([*mean, *tokens], layers=())
        assert mean[0].collector.token_embeddings == [None]
        assert mean[0].collector.vectors is not None
        assert tokens[0].collector.vectors is None
        assert tokens[0].collector.token_embeddings[0] is not None

    def test_pooling_is_the_calls_own(self) -> None:
        cls, last = (rows_of([sequence_of([1])], Outputs(pooling)) for pooling in (Pooling.CLS, Pooling.LAST))
        ones = np.ones((2, HIDDEN_SIZE), np.float32)
        distribute([*cls, *last], {"pooled_cls": ones, "pooled_last": 2 * ones})
        for rows, value in ((cls, 1), (last, 2)):
            assert rows[0].collector.vectors is not None
            assert rows[0].collector.vectors.tolist() == [[value] * HIDDEN_SIZE]

    def test_results_do_not_hold_the_batch(self) -> None:
        """A small call must not keep the outputs of the large batch that it ran in."""
        rows = rows_of([sequence_of([1, 2])])
        arrays = collate(rows, pad_id=PAD)
        outputs = outputs_of(arrays, output_names(rows, (0, 2)))
        distribute(rows, outputs)
        collector = rows[0].collector
        for result in (collector.token_embeddings[0], collector.attention[0], collector.vectors):
            assert result is not None
            assert not any(np.shares_memory(result, output) for output in outputs.values())

    def test_half_precision_outputs_become_float32(self) -> None:
        rows = rows_of([sequence_of([1, 2])], Outputs(Pooling.MEAN, token_embeddings=True))
        outputs = outputs_of(collate(rows, pad_id=PAD), output_names(rows, ()))
        distribute(rows, {name: output.astype(np.float16) for name, output in outputs.items()})
        collector = rows[0].collector
        assert collector.vectors is not None
        assert collector.token_embeddings[0] is not None
        assert collector.vectors.dtype == collector.token_embeddings[0].dtype == np.float32

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_a_wrong_number_of_rows_is_an_error_and_nothing_is_filled(self, count: int) -> None:
        rows = rows_of([sequence_of([1]), sequence_of([2])], Outputs(Pooling.MEAN))
        with pytest.raises(ValueError, match=f"pooled_mean has shape .{count}, {HIDDEN_SIZE}. for 2 rows"):
            distribute(rows, {"pooled_mean": np.ones((count, HIDDEN_SIZE), np.float32)})
        assert rows[0].collector.vectors is not None
        assert not rows[0].collector.vectors.any()


class TestOutputsOfAWrongShape:
    """NumPy would stretch or cut them into wrong answers."""

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("pooled_mean", (1, 1)),
            ("pooled_mean", (1, HIDDEN_SIZE + 1)),
            ("pooled_mean", (HIDDEN_SIZE,)),
            ("token_embeddings", (1, 1, HIDDEN_SIZE)),
            ("token_embeddings", (1, 2, HIDDEN_SIZE - 1)),
            ("token_embeddings", (1, HIDDEN_SIZE)),
            ("attentions_0", (1, HEAD_COUNT, 2, 1)),
            ("attentions_0", (1, 2, 2)),
        ],
    )
    def test_is_refused(self, name: str, shape: tuple[int, ...]) -> None:
        plan = AttentionPlan((0,), (0, 1), AttentionReduction.NONE, DataType.FLOAT32)
        rows = rows_of([sequence_of([1, 2])], Outputs(Pooling.MEAN, token_embeddings=True, attention=plan))
        good: dict[str, tuple[int, ...]] = {
            "pooled_mean": (1, HIDDEN_SIZE),
            "token_embeddings": (1, 2, HIDDEN_SIZE),
            "attentions_0": (1, HEAD_COUNT, 2, 2),
        }
        distribute(rows, {name: np.ones(shape, np.float32) for name, shape in good.items()})
        with pytest.raises(ValueError, match=f"graph output {name} has shape"):
            distribute(rows, {name: np.ones(bad, np.float32) for name, bad in (good | {name: shape}).items()})


@st.composite
def sequences(draw: st.DrawFn) -> TokenizedSequence:
    length = draw(st.integers(1, 9))
    ids = draw(st.lists(st.integers(0, 50), min_size=length, max_size=length))
    mask = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length).filter(any))
    types = draw(st.none() | st.lists(st.integers(0, 1), min_size=length, max_size=length))
    return sequence_of(ids, None if all(mask) else mask, types)


class TestProperties:
    @settings(max_examples=50)
    @given(
        calls=st.lists(st.lists(sequences(), min_size=1, max_size=4), min_size=1, max_size=4),
        batch_size=st.integers(1, 6),
        length_multiple=st.sampled_from([1, 8]),
        data=st.data(),
    )
    def test_however_calls_are_split_and_mixed_each_row_gets_its_own(
        self,
        calls: list[list[TokenizedSequence]],
        batch_size: int,
        length_multiple: int,
        data: st.DataObject,
    ) -> None:
        rows = data.draw(st.permutations([row for call in calls for row in rows_of(call)]))
        for start in range(0, len(rows), batch_size):
            run(rows[start : start + batch_size], length_multiple=length_multiple)
        for row in rows:
            assert_own_results(row.collector, row.index)


def test_maps_are_reduced_over_the_real_tokens_only() -> None:
    plan = AttentionPlan((0,), (0, 1), AttentionReduction.ROLLOUT, DataType.FLOAT32)
    rows = rows_of([sequence_of([1, 0, 2], mask=[1, 0, 1])], Outputs(Pooling.NONE, attention=plan))
    weights: Array = np.full((1, HEAD_COUNT, 3, 3), 7.0, np.float32)
    weights[0, :, [[0], [2]], [0, 2]] = 0.5
    distribute(rows, {"attentions_0": weights})
    maps = rows[0].collector.attention[0]
    assert maps is not None
    np.testing.assert_allclose(maps, [[[[0.75, 0.25], [0.25, 0.75]]]])

"""Texts in batches give what they give alone, whatever goes wrong beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import sentences
from service.core.collation import BatchArrays
from service.core.engine import Engine
from service.jobs.encode_local import LocalEncoder, Packing, plan_batches

lengths = st.lists(st.integers(1, 70), max_size=80)


@given(lengths, st.sampled_from([Packing(64), Packing(64, 8, powers_of_two=True)]))
def test_batches_hold_every_text_once_within_the_tokens(lengths: list[int], packing: Packing) -> None:
    batches = plan_batches(lengths, packing)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        width = -(-longest // packing.length_multiple) * packing.length_multiple
        assert len(batch) == 1 or len(batch) * width <= packing.max_batch_tokens


@given(lengths)
def test_only_the_last_batch_has_room_for_more(lengths: list[int]) -> None:
    for batch in plan_batches(lengths, Packing(64))[:-1]:
        assert (len(batch) + 1) * max(lengths[index] for index in batch) > 64


@given(lengths)
def test_compiled_shapes_are_powers_of_two_but_for_the_last_batch(lengths: list[int]) -> None:
    for batch in plan_batches(lengths, Packing(64, 8, powers_of_two=True))[:-1]:
        assert len(batch).bit_count() == 1


def test_each_text_has_the_vector_that_it_has_alone(encoder: LocalEncoder) -> None:
    texts = [*sentences(40), "", " ", sentences(1)[0], "word " * 5000, "x" * 2_000_001]
    together = encoder.encode(texts)
    assert together.vectors is not None
    for index, text in enumerate(texts):
        alone = encoder.encode([text])
        assert alone.vectors is not None
        np.testing.assert_allclose(together.vectors.data[index], alone.vectors.data[0], atol=1e-5)
        assert together.token_counts[index] == alone.token_counts[0]
        assert together.truncated[index] == alone.truncated[0]
        assert together.errors[index] == alone.errors[0]
    assert together.truncated[-2]
    assert together.errors[-1] == "refused: the text has 2000001 characters, the limit is 2000000"


def test_the_same_texts_give_the_same_bytes(encoder: LocalEncoder) -> None:
    first, second = (encoder.encode(sentences(60)).vectors for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.data.tobytes() == second.data.tobytes()


def test_a_text_that_breaks_the_engine_is_marked_alone(
    encoder: LocalEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = sentences(30)
    poison = int(encoder.encode(texts).token_counts.argmax())
    expected = encoder.encode(texts).vectors
    run = Engine.run

    def break_on_the_longest(
        engine: Engine, graph: Any, arrays: BatchArrays, names: Sequence[str]
    ) -> dict[str, Any]:
        if arrays.input_ids.shape[1] == longest:
            raise RuntimeError("cannot allocate memory")
        return run(engine, graph, arrays, names)

    longest = int(encoder.encode([texts[poison]]).token_counts[0])
    monkeypatch.setattr(Engine, "run", break_on_the_longest)
    encoded = encoder.encode(texts)
    failed = [index for index, error in enumerate(encoded.errors) if error]
    assert poison in failed
    assert all(encoded.errors[index] == encoded.errors[poison] for index in failed)
    assert str(encoded.errors[poison]).startswith("failed: ")
    assert expected is not None
    assert encoded.vectors is not None
    assert not encoded.vectors.data[poison].any()
    good = [index for index in range(len(texts)) if index not in failed]
    assert good
    np.testing.assert_allclose(encoded.vectors.data[good], expected.data[good], atol=1e-5)


def test_no_texts_give_no_vectors(encoder: LocalEncoder) -> None:
    encoded = encoder.encode([])
    assert encoded.vectors is not None
    assert encoded.vectors.data.shape == (0, 32)

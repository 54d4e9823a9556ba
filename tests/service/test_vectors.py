"""Cutting, normalising and narrowing against NumPy and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from service.core.vectors import finish_vectors, vector_bytes
from service.types import DataType, Floats, Vectors


def random_vectors(count: int = 50, size: int = 32, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32)


def finish(
    pooled: Floats,
    *,
    dimensions: int = 32,
    normalize: bool = False,
    data_type: DataType = DataType.FLOAT32,
) -> Vectors:
    return finish_vectors(pooled, dimensions=dimensions, normalize=normalize, data_type=data_type)


def bfloat16_to_float(bits: np.ndarray[tuple[int, ...], np.dtype[np.uint16]]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


MAGNITUDES = st.floats(2.0**-90, 2.0**100, width=32)
FINITE = st_numpy.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.just(8)),
    elements=st.just(0.0) | MAGNITUDES | MAGNITUDES.map(lambda value: -value),
)


def cosines(a: Floats, b: Floats) -> Floats:
    return torch.nn.functional.cosine_similarity(torch.tensor(a), torch.tensor(b)).numpy()


class TestFloats:
    def test_as_they_are(self) -> None:
        pooled = random_vectors()
        result = finish(pooled)
        np.testing.assert_array_equal(result.data, pooled)
        assert (result.data_type, result.scales) == (DataType.FLOAT32, None)

    @pytest.mark.parametrize("dimensions", [1, 8, 31, 32])
    @pytest.mark.parametrize("normalize", [False, True])
    def test_cut_then_normalised(self, dimensions: int, normalize: bool) -> None:
        pooled = random_vectors()
        expected = torch.tensor(pooled[:, :dimensions])
        if normalize:
            expected = torch.nn.functional.normalize(expected, dim=1)
        result = finish(pooled, dimensions=dimensions, normalize=normalize).data
        assert result.shape == (50, dimensions)
        assert result.flags.c_contiguous
        np.testing.assert_allclose(result, expected.numpy(), atol=1e-6)

    def test_a_zero_vector_stays_zero(self) -> None:
        assert not finish(np.zeros((2, 32), np.float32), normalize=True).data.any()

    def test_no_vectors(self) -> None:
        for data_type in DataType:
            assert len(finish(np.zeros((0, 32), np.float32), normalize=True, data_type=data_type).data) == 0

    @settings(max_examples=60)
    @given(pooled=FINITE)
    def test_half_precision_types_round_to_the_nearest_and_stay_finite(self, pooled: Floats) -> None:
        half = finish(pooled, dimensions=8, data_type=DataType.FLOAT16).data
        limit = float(np.finfo(np.float16).max)
        np.testing.assert_array_equal(half, torch.tensor(pooled).clamp(-limit, limit).half().numpy())
        bfloat16 = finish(pooled, dimensions=8, data_type=DataType.BFLOAT16).data
        assert bfloat16.dtype == np.uint16
        np.testing.assert_array_equal(
            bfloat16_to_float(bfloat16), torch.tensor(pooled).bfloat16().float().numpy()
        )


class TestInt8:
    def test_cosine_to_the_float_vector(self) -> None:
        pooled = random_vectors(200, 384)
        result = finish(pooled, dimensions=384, normalize=True, data_type=DataType.INT8)
        assert result.scales is not None
        assert result.data.dtype == np.int8
        assert result.scales.dtype == np.float32
        assert result.scales.shape == (200,)
        assert cosines(result.data * result.scales[:, None], pooled).min() >= 0.9999

    @settings(max_examples=60)
    @given(pooled=FINITE)
    def test_each_value_is_within_half_a_step(self, pooled: Floats) -> None:
        result = finish(pooled, dimensions=8, data_type=DataType.INT8)
        assert result.scales is not None
        assert np.abs(result.data.astype(int)).max() <= 127
        restored = result.data * result.scales[:, None].astype(np.float64)
        assert (np.abs(restored - pooled) <= result.scales[:, None] * 0.5001).all()

    def test_a_zero_vector_has_scale_zero(self) -> None:
        result = finish(np.zeros((1, 32), np.float32), data_type=DataType.INT8)
        assert result.scales is not None
        assert not result.data.any()
        assert result.scales.tolist() == [0]


class TestUbinary:
    def test_signs_are_packed_most_significant_bit_first(self) -> None:
        pooled = np.array([[1, -1, 0, 2, -0.5, -1, -1, 3, *[-1] * 7, 1e-20]], np.float32)
        result = finish(pooled, dimensions=16, data_type=DataType.UBINARY)
        assert result.data.tolist() == [[0b10010001, 0b00000001]]

    def test_equal_to_numpy(self) -> None:
        pooled = random_vectors()
        result = finish(pooled, dimensions=24, normalize=True, data_type=DataType.UBINARY)
        np.testing.assert_array_equal(result.data, np.packbits(pooled[:, :24] > 0, axis=1))


@pytest.mark.parametrize("data_type", list(DataType))
@pytest.mark.parametrize("dimensions", [8, 384])
def test_the_size_known_in_advance_is_the_size(data_type: DataType, dimensions: int) -> None:
    result = finish(random_vectors(3, 384), dimensions=dimensions, data_type=data_type)
    size = result.data.nbytes + (0 if result.scales is None else result.scales.nbytes)
    assert 3 * vector_bytes(dimensions, data_type) == size


@pytest.mark.parametrize("data_type", list(DataType))
def test_the_pooled_vectors_are_not_changed(data_type: DataType) -> None:
    pooled = random_vectors()
    finish(pooled, normalize=True, data_type=data_type)
    np.testing.assert_array_equal(pooled, random_vectors())

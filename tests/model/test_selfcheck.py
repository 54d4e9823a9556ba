"""What the self-check tries, and that it notices each way of being off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

import tiny_models
from model.selfcheck import (
    Case,
    NumericalError,
    Sizes,
    compare,
    cosine,
    fidelity_cases,
    measure_fidelity,
    shape_cases,
    stored_cases,
)

SIZES = Sizes(vocabulary=1000, types=2, positions=64)
CASE = next(case for case in shape_cases(SIZES) if case.shape == (3, 7) and case.mask == "holes")


def test_every_shape_meets_every_mask() -> None:
    cases = list(shape_cases(Sizes(vocabulary=1000, types=2, positions=512)))
    assert {case.shape for case in cases} == {(1, 1), (1, 3), (3, 7), (5, 64), (2, 512)}
    masks = {"full", "right padded", "left padded", "holes", "a fully masked row"}
    for shape in {case.shape for case in cases}:
        assert {case.mask for case in cases if case.shape == shape} == masks


def test_shapes_stay_within_the_positions() -> None:
    assert {case.shape for case in shape_cases(Sizes(10, 1, 5))} == {(1, 1), (1, 3), (3, 5), (5, 5), (2, 5)}


def test_masks_are_what_they_are_called() -> None:
    for case in shape_cases(SIZES):
        mask = case.inputs["attention_mask"]
        steps = np.diff(mask, axis=1)
        if case.mask == "a fully masked row":
            assert not mask[-1].any()
            assert mask[:-1].all()
        else:
            assert mask.any(axis=1).all()
        if case.mask == "right padded":
            assert (steps <= 0).all()
        if case.mask == "left padded":
            assert (steps >= 0).all()


def test_stored_cases_have_holes_left_padding_a_pair_and_one_token() -> None:
    cases = stored_cases(tiny_models.build_tokenizer(), SIZES)
    assert 4 <= len(cases) <= 6
    assert {case.mask for case in cases} == {"full", "left padded", "holes"}
    assert min(case.shape[1] for case in cases) == 1
    assert any(case.inputs["token_type_ids"].any() for case in cases)
    assert all(case.inputs["input_ids"].shape == case.inputs["attention_mask"].shape for case in cases)


def test_cases_fit_a_small_encoder() -> None:
    tokenizer = tiny_models.build_tokenizer()
    sizes = Sizes(vocabulary=1000, types=1, positions=6)
    for case in [*stored_cases(tokenizer, sizes), *fidelity_cases(tokenizer, sizes), *shape_cases(sizes)]:
        assert case.shape[1] <= 6
        assert case.inputs["token_type_ids"].max() == 0


@pytest.mark.parametrize("unknown", [True, False])
def test_a_tokenizer_without_english_is_no_obstacle(unknown: bool) -> None:
    alphabet = Tokenizer(models.WordLevel({"A": 0, "C": 1}, unk_token="?" if unknown else "C"))
    alphabet.pre_tokenizer = pre_tokenizers.Split("", "removed")
    if not unknown:
        alphabet.normalizer = normalizers.Replace(Regex("[^AC]"), "")
    sizes = Sizes(vocabulary=2, types=1, positions=8)
    for case in [*stored_cases(alphabet, sizes), *fidelity_cases(alphabet, sizes)]:
        assert 1 <= case.shape[1] <= 8
        assert case.inputs["input_ids"].max() < 2


def test_fidelity_is_measured_on_about_200_sequences() -> None:
    cases = fidelity_cases(tiny_models.build_tokenizer(), SIZES)
    assert sum(case.shape[0] for case in cases) == 200


def reference() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    mask = CASE.inputs["attention_mask"]
    weights = rng.random((3, 2, 7, 7)).astype(np.float32) * mask[:, None, None, :]
    return {
        "token_embeddings": rng.random((3, 7, 4)).astype(np.float32),
        "pooled_mean": rng.random((3, 4)).astype(np.float32),
        "attentions_0": weights.astype(np.float32),
    }


def masked_key() -> tuple[int, ...]:
    row, column = np.argwhere(CASE.inputs["attention_mask"] == 0)[0]
    return (row, 0, 0, column)


def test_what_is_within_tolerance_passes() -> None:
    shifted = {
        name: array + np.float32(9e-5) for name, array in reference().items() if "attentions" not in name
    }
    compare("a.onnx", CASE, shifted, reference())


@pytest.mark.parametrize(
    ("output", "change", "message"),
    [
        ("token_embeddings", lambda a: a.__setitem__((1, 2, 0), a[1, 2, 0] + 2e-4), "differs by 2.0.e-04"),
        ("pooled_mean", lambda a: a.__setitem__((0, 0), np.nan), "differs by nan"),
        ("pooled_mean", lambda a: a.__setitem__((0, 0), np.inf), "differs by inf"),
        ("attentions_0", lambda a: a.__setitem__((0, 0, 0, 0), a[0, 0, 0, 0] + 2e-5), "more than 1e-05"),
        ("attentions_0", lambda a: a.__setitem__(masked_key(), 1e-9), "attends to masked tokens"),
    ],
)
def test_what_is_off_is_named(output: str, change: Callable[[Any], None], message: str) -> None:
    actual = reference()
    change(actual[output])
    with pytest.raises(
        NumericalError,
        match=rf"a.onnx is off for shape \(3, 7\), mask holes: {output} .*{message}"
        if message != "attends to masked tokens"
        else rf"a.onnx is off for shape \(3, 7\), mask holes: {output} {message}",
    ):
        compare("a.onnx", CASE, actual, reference())


def test_another_shape_is_off() -> None:
    with pytest.raises(NumericalError, match="pooled_mean differs by inf"):
        compare("a.onnx", CASE, {"pooled_mean": np.zeros((3, 1), np.float32)}, reference())


def test_fidelity_equals_a_hand_calculation() -> None:
    mask = np.array([[1, 1], [1, 0]])
    case = Case("right padded", {"attention_mask": mask})
    expected = {
        "pooled_cls": np.array([[1.0, 0.0], [0.0, 2.0]]),
        "token_embeddings": np.zeros((2, 2, 2)),
    }
    actual = {
        "pooled_cls": np.array([[1.0, 1.0], [0.0, 1.0]]),
        "token_embeddings": np.array([[[0.0, 0.1], [0.0, 0.0]], [[0.2, 0.0], [9.0, 9.0]]]),
    }
    fidelity = measure_fidelity(lambda _: actual, [case], [expected], "pooled_cls")
    assert fidelity.worst_cosine == pytest.approx(np.sqrt(0.5))
    assert fidelity.mean_cosine == pytest.approx((np.sqrt(0.5) + 1) / 2)
    assert fidelity.max_abs_error == pytest.approx(0.2)


def test_cosine_of_a_zero_vector_is_zero() -> None:
    assert cosine(np.zeros((1, 3)), np.ones((1, 3))).tolist() == [0.0]

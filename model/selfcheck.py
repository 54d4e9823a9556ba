"""Inputs that try an encoder graph, and how far two runs may be apart. Knows neither PyTorch nor files.

A run is a function from named int64 arrays (B, S) to named float32 arrays.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Arrays], Arrays]

# Largest absolute difference to the reference, by output, in float32.
MAP_TOLERANCE = 1e-5
VECTOR_TOLERANCE = 1e-4
# Smallest cosine to the float32 vector that a server accepts at its start, by precision.
MIN_COSINE = {"fp32": 0.99999, "bf16": 0.999, "fp16": 0.999, "int8": 0.99}

# The same while exporting, for random ids and masks, which are harder than text.
MIN_RANDOM_COSINE = {"fp16": 0.999, "int8": 0.97}

_SENTENCES = (
    "The bank of the river was muddy.",
    "She opened an account at the bank on Friday.",
    "The animal didn't cross the street because it was too tired.",
    "How do I reset my password?",
    "Water boils at a lower temperature on a mountain.",
    "In 1969, two people walked on the Moon for the first time.",
    "A neural network is trained by gradient descent on its loss.",
    "Café prices rose by 3.5% in March!",
    "He said nothing.",
    "This contract ends thirty days after either side gives notice in writing.",
    "Preheat the oven, then mix flour, sugar and two eggs in a large bowl.",
    "Why is the sky blue, and why are sunsets red?",
)


class NumericalError(ValueError):
    """A graph whose numbers are off; the message names graph, shape, mask, output and difference."""


@dataclass(frozen=True)
class Sizes:
    vocabulary: int
    types: int
    positions: int


@dataclass(frozen=True)
class Case:
    """One batch. `mask` names the pattern of its attention_mask."""

    mask: str
    inputs: Arrays

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inputs["input_ids"].shape)


@dataclass(frozen=True)
class Fidelity:
    """How near a graph's vectors are to PyTorch's in float32."""

    worst_cosine: float
    mean_cosine: float
    max_abs_error: float


def shape_cases(sizes: Sizes, seed: int = 0) -> Iterator[Case]:
    """Every shape that tends to break an export with every kind of mask."""
    rng = np.random.default_rng(seed)
    shapes = [(1, 1), (1, 3), (3, 7), (5, 64), (2, sizes.positions)]
    fitting = dict.fromkeys((rows, min(length, sizes.positions)) for rows, length in shapes)
    for shape, (name, mask) in product(fitting, _MASKS.items()):
        yield Case(name, _random_inputs(rng, sizes, mask(rng, shape)))


def fidelity_cases(tokenizer: Tokenizer, sizes: Sizes, seed: int = 1) -> list[Case]:
    """About 200 sequences, English and random ids, of many lengths."""
    rng = np.random.default_rng(seed)
    texts = [_encode(tokenizer, sizes, f"{a} {b}")[0] for a, b in product(_SENTENCES, _SENTENCES)]
    random = [rng.integers(sizes.vocabulary, size=length).tolist() for length in range(1, 57)]
    rows = sorted((*texts, *(ids[: sizes.positions] for ids in random)), key=len)
    return [Case("right padded", _pad(rows[start : start + 16])) for start in range(0, len(rows), 16)]


def stored_cases(tokenizer: Tokenizer, sizes: Sizes) -> list[Case]:
    """The few inputs of selfcheck.json: single rows of English under several masks."""
    rows = [_encode(tokenizer, sizes, text)[0] for text in _SENTENCES[:4]]
    pair_ids, pair_types = _encode(tokenizer, sizes, *_SENTENCES[4:6])
    return [
        Case("full", _pad([rows[0][:1]])),
        Case("full", _pad([rows[0]])),
        Case("full", _pad([rows[1]])),
        Case("left padded", _masked(_pad([rows[2]]), slice(0, len(rows[2]) // 4))),
        Case("holes", _masked(_pad([rows[3]]), slice(1, None, 3))),
        Case("full", {**_pad([pair_ids]), "token_type_ids": np.array([pair_types])}),
    ]


def compare_all(case: Case, graphs: Mapping[str, Run], reference: Run) -> None:
    """Every graph, by name, against a reference that gives all their outputs."""
    expected = reference(case.inputs)
    for graph, run in graphs.items():
        compare(graph, case, run(case.inputs), expected)


def compare(graph: str, case: Case, actual: Arrays, expected: Arrays) -> None:
    """Raises NumericalError unless each output is within its tolerance and nothing attends to masked keys."""
    where = f"{graph} is off for shape {case.shape}, mask {case.mask}"
    for output, array in actual.items():
        difference = _difference(array, expected[output])
        limit = MAP_TOLERANCE if output.startswith("attentions_") else VECTOR_TOLERANCE
        if not difference <= limit:
            raise NumericalError(f"{where}: {output} differs by {difference:.2e}, more than {limit:.0e}")
        if output.startswith("attentions_") and _attends_to_masked(array, case):
            raise NumericalError(f"{where}: {output} attends to masked tokens")


def compare_directions(graph: str, case: Case, actual: Arrays, expected: Arrays, limit: float) -> None:
    """For precisions below fp32: raises NumericalError unless every vector has at least cosine `limit`.

    A row that attends to nothing must still be exactly 0, and everything finite.
    """
    where = f"{graph} is off for shape {case.shape}, mask {case.mask}"
    for output in ("pooled_mean", "pooled_cls", "pooled_last"):
        found, reference = actual[output], expected[output]
        empty = ~reference.any(axis=-1)
        if found[empty].any() or not np.isfinite(found).all():
            raise NumericalError(f"{where}: {output} is not 0 for a fully masked row, or not finite")
        worst = float(np.min(cosine(found[~empty], reference[~empty]), initial=1.0))
        if not worst >= limit:
            raise NumericalError(f"{where}: {output} has cosine {worst:.6f}, at least {limit} is needed")


def measure_fidelity(run: Run, cases: Sequence[Case], references: Sequence[Arrays], pooled: str) -> Fidelity:
    """Cosines are of the output `pooled`; the error is over the embeddings of real tokens."""
    cosines: list[float] = []
    worst = 0.0
    for case, reference in zip(cases, references, strict=True):
        actual = run(case.inputs)
        cosines += cosine(actual[pooled], reference[pooled]).tolist()
        real = case.inputs["attention_mask"] != 0
        worst = max(worst, _difference(actual["token_embeddings"][real], reference["token_embeddings"][real]))
    return Fidelity(min(cosines), float(np.mean(cosines)), worst)


def check_fidelity(graph: str, precision: str, fidelity: Fidelity) -> None:
    """Raises NumericalError for a graph that a server would refuse at its start."""
    limit = MIN_COSINE[precision]
    if not fidelity.worst_cosine >= limit:
        raise NumericalError(
            f"{graph} is off: a vector of the fidelity texts has cosine {fidelity.worst_cosine:.6f}, "
            f"at least {limit} is needed"
        )


def cosine(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """Row by row, in float64."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    product_of_norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    result: NDArray[np.float64] = (a * b).sum(axis=-1) / np.maximum(product_of_norms, 1e-12)
    return result


def _difference(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    difference = np.subtract(actual, expected)
    return float(np.max(np.abs(difference, out=difference), initial=0.0))


def _attends_to_masked(weights: NDArray[Any], case: Case) -> bool:
    masked = case.inputs["attention_mask"][:, None, None, :] == 0  # (B, 1, 1, S)
    return bool((np.broadcast_to(masked, weights.shape) & (weights != 0)).any())


def _random_inputs(rng: np.random.Generator, sizes: Sizes, mask: NDArray[np.int64]) -> Arrays:
    return {
        "input_ids": rng.integers(sizes.vocabulary, size=mask.shape),
        "attention_mask": mask,
        "token_type_ids": rng.integers(sizes.types, size=mask.shape),
    }


def _encode(
    tokenizer: Tokenizer, sizes: Sizes, text: str, pair: str | None = None
) -> tuple[list[int], list[int]]:
    """Ids and types within the encoder's sizes; a single id 0 where the tokenizer knows no English."""
    try:
        encoding = tokenizer.encode(text, pair)
    except Exception:  # tokenizers raises bare Exception when there is no unknown token
        return [0], [0]
    ids = encoding.ids[: sizes.positions]
    types = [min(type_id, sizes.types - 1) for type_id in encoding.type_ids[: sizes.positions]]
    return ids or [0], types or [0]


def _pad(rows: Sequence[Sequence[int]]) -> dict[str, NDArray[np.int64]]:
    shape = (len(rows), max(len(row) for row in rows))
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}


def _masked(inputs: Arrays, columns: slice) -> Arrays:
    mask = inputs["attention_mask"].copy()
    mask[:, columns] = 0
    return {**inputs, "attention_mask": mask}


def _full(_: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.int64]:
    return np.ones(shape, np.int64)


def _right_padded(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.int64]:
    lengths = rng.integers(1, shape[1] + 1, size=(shape[0], 1))
    return (np.arange(shape[1]) < lengths).astype(np.int64)


def _left_padded(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.int64]:
    return _right_padded(rng, shape)[:, ::-1].copy()


def _holes(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.int64]:
    mask = rng.integers(2, size=shape)
    mask[:, shape[1] // 2] = 1
    return mask


def _one_row_masked(_: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.int64]:
    mask = np.ones(shape, np.int64)
    mask[-1] = 0
    return mask


_MASKS: dict[str, Callable[[np.random.Generator, tuple[int, int]], NDArray[np.int64]]] = {
    "full": _full,
    "right padded": _right_padded,
    "left padded": _left_padded,
    "holes": _holes,
    "a fully masked row": _one_row_masked,
}

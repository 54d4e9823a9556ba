"""Which thread tokenises what, in which order, and that slices make no difference to the outcome."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from fake_artifact import build_artifact
from fake_runner import HEAD_COUNT, HIDDEN_SIZE, TIMEOUT_S
from service.core import tokenization
from service.core.tokenization import Tokenization, TokenizedCall
from service.core.tokenizer import Tokenizer, TokenizeRule
from service.errors import InvalidInputError
from service.metrics import Metrics
from service.types import InputSequence, NoContent, OnError, Text, TextPair, TokenIds, Truncation
from tiny_models import build_tokenizer


def token_ids(count: int) -> TokenIds:
    absent = np.array([], np.int32)
    return TokenIds(np.full(count, 7, np.int32), absent, absent)


SHORT = [Text("the cat")]
MIXED: list[InputSequence] = [
    Text("the cat and the dog " * 40),
    TextPair("the " * 300, "cat " * 300),
    token_ids(20),
    Text(""),
    Text("a dog"),
    NoContent(),
] * 4


@pytest.fixture
def stage(tmp_path: Any) -> Iterator[Tokenization]:
    path = tmp_path / "tokenizer.json"
    build_tokenizer().save(str(path))
    artifact = build_artifact(hidden_size=HIDDEN_SIZE, head_count=HEAD_COUNT, normalize=True)
    with closing(Tokenization(artifact, Tokenizer(path), Metrics(), max_text_characters=10_000)) as stage:
        yield stage


def rule(**changes: Any) -> TokenizeRule:
    given: dict[str, Any] = {"limit": 64, "truncation": Truncation.RIGHT, "prompt": "", "tokens": False}
    return TokenizeRule(**{**given, **changes})


async def run(
    stage: Tokenization, inputs: list[Any], on_error: OnError = OnError.PER_INPUT, **changes: Any
) -> TokenizedCall:
    async with asyncio.timeout(TIMEOUT_S):
        return await stage.run(inputs, rule(**changes), on_error)


def spy_on(
    stage: Tokenization, patch: pytest.MonkeyPatch, see: Callable[[dict[int, InputSequence]], None]
) -> None:
    tokenize = stage._tokenize

    def spy(inputs: Any, rule: TokenizeRule) -> Any:
        see(inputs)
        return tokenize(inputs, rule)

    patch.setattr(stage, "_tokenize", spy)


@pytest.mark.parametrize(
    ("inputs", "changes"),
    [
        ([Text("the cat and the dog " * 40)] * 4, {}),
        ([Text("the")] * 4, {"prompt": "x" * 2000}),
        ([TextPair("the " * 300, "cat " * 300)] * 2, {}),
        ([token_ids(64)] * 60, {"tokens": True}),
    ],
    ids=["texts", "prompt", "pairs", "ids"],
)
async def test_long_work_is_done_beside_the_event_loop(
    stage: Tokenization,
    monkeypatch: pytest.MonkeyPatch,
    inputs: list[InputSequence],
    changes: dict[str, Any],
) -> None:
    names: list[str] = []
    spy_on(stage, monkeypatch, lambda _: names.append(threading.current_thread().name))
    await run(stage, inputs, **changes)
    await run(stage, [*SHORT])
    assert [name.split("_")[0] for name in names] == ["tokenizer", threading.current_thread().name]


async def test_long_calls_take_turns_and_keep_no_other_call_waiting(
    stage: Tokenization, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on, sizes = threading.Event(), threading.Event(), []

    def see(inputs: dict[int, InputSequence]) -> None:
        if threading.current_thread().name.startswith("bulk"):
            sizes.append(len(inputs))
            entered.set()
            assert go_on.wait(TIMEOUT_S)

    spy_on(stage, monkeypatch, see)
    first = asyncio.ensure_future(run(stage, [Text("the cat " * 125)] * 40))
    assert await asyncio.to_thread(entered.wait, TIMEOUT_S)
    second = asyncio.ensure_future(run(stage, [Text("the dog " * 250)] * 10))
    assert len((await run(stage, [Text("the dog " * 300)])).sequences) == 1
    go_on.set()
    assert len((await first).sequences) == 40
    assert len((await second).sequences) == 10
    assert sizes == [10, 5, 10, 5, 10, 10]


@pytest.mark.parametrize("slice_length", [1, 500, 1_000_000])
async def test_slices_change_nothing(
    stage: Tokenization, monkeypatch: pytest.MonkeyPatch, slice_length: int
) -> None:
    alone = [await run(stage, [sequence], tokens=True) for sequence in MIXED]
    monkeypatch.setattr(tokenization, "_SLICE_LENGTH", slice_length)
    call = await run(stage, MIXED, tokens=True)
    assert sorted([*call.sequences, *call.errors]) == list(range(len(MIXED)))
    for index, single in enumerate(alone):
        if single.errors:
            assert str(call.errors[index]) == str(single.errors[0]).replace("inputs[0]", f"inputs[{index}]")
        else:
            sequence, expected = call.sequences[index], single.sequences[0]
            assert sequence.ids.tolist() == expected.ids.tolist()
            assert sequence.tokens == expected.tokens


async def test_every_violation_of_every_slice_is_told(
    stage: Tokenization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenization, "_SLICE_LENGTH", 500)
    with pytest.raises(InvalidInputError) as raised:
        await run(stage, MIXED, OnError.FAIL_CALL)
    paths = [violation.field for violation in raised.value.violations]
    assert paths == ["inputs[5]", "inputs[11]", "inputs[17]", "inputs[23]"]


@pytest.mark.skipif(sys.platform != "linux", reason="niceness counts by process there")
async def test_the_thread_of_long_calls_gives_way(
    stage: Tokenization, monkeypatch: pytest.MonkeyPatch
) -> None:
    niceness: list[int] = []
    spy_on(
        stage,
        monkeypatch,
        lambda _: niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())),
    )
    await run(stage, [*SHORT])
    await run(stage, MIXED * 4)
    assert set(niceness[1:]) == {min(19, niceness[0] + 10)}

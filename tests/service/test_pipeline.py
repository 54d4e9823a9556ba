"""Calls from their sequences to their vectors over a fake engine that computes from the ids it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fake_artifact import build_artifact
from fake_runner import HEAD_COUNT, HIDDEN_SIZE, TIMEOUT_S, FakeRunner
from service.core.batcher import Batcher, BatcherConfig
from service.core.pipeline import Pipeline, PipelineConfig
from service.core.planner import Planner
from service.core.tokenizer import Tokenizer
from service.errors import (
    DeadlineExceededError,
    DrainingError,
    InternalError,
    InvalidInputError,
    NoAttentionMapsError,
    QueueFullError,
    ReplyTooLargeError,
    RevisionMismatchError,
    ServiceError,
    UnknownModelError,
)
from service.metrics import Metrics
from service.types import (
    AttentionOptions,
    AttentionReduction,
    DataType,
    EncodeCall,
    EncodeOptions,
    EncodeResult,
    InputSequence,
    NoContent,
    OnError,
    Pooling,
    Text,
    TextPair,
    TokenIds,
    Truncation,
)
from tiny_models import build_tokenizer

PER_INPUT = EncodeOptions(on_error=OnError.PER_INPUT, normalize=False)
RAW = EncodeOptions(normalize=False)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    build_tokenizer().save(str(path))
    return Tokenizer(path)


class Bench:
    def __init__(self, tokenizer: Tokenizer, runner: FakeRunner, metrics: Metrics, **limits: Any) -> None:
        self.runner, self.metrics = runner, metrics
        settings = {
            "max_inputs": 64,
            "max_text_characters": 10_000,
            "max_message_bytes": 1 << 20,
            "attention_maps": True,
            **limits,
        }
        config = PipelineConfig(precision="int8", provider="CPUExecutionProvider", fidelity=0.99, **settings)
        planner: Planner[Any] = Planner(max_batch_tokens=256, max_batch_cells=1 << 20)
        batcher = Batcher(
            runner, planner, BatcherConfig(1000, 100_000, HIDDEN_SIZE, HEAD_COUNT, pad_id=0), metrics
        )
        model = build_artifact(hidden_size=HIDDEN_SIZE, head_count=HEAD_COUNT, normalize=True)
        self.pipeline = Pipeline(model, tokenizer, batcher, config, metrics)

    async def encode(self, *inputs: InputSequence, options: EncodeOptions = RAW, **call: Any) -> EncodeResult:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.pipeline.encode(EncodeCall(inputs, options, **call))

    async def refusal(self, *inputs: InputSequence, **call: Any) -> ServiceError:
        """The error of a call that must not reach the engine."""
        with pytest.raises(ServiceError) as error:
            await self.encode(*inputs, **call)
        assert self.runner.batches == []
        return error.value

    def outcomes(self, outcome: str) -> float | None:
        return self.metrics.registry.get_sample_value("seqenc_inputs_total", {"outcome": outcome})


@asynccontextmanager
async def open_bench(tokenizer: Tokenizer, *, gated: bool = False, **limits: Any) -> AsyncIterator[Bench]:
    runner = FakeRunner(gated=gated)
    bench = Bench(tokenizer, runner, Metrics(), **limits)
    try:
        yield bench
    finally:
        runner.open()
        bench.pipeline.close()


def ids_of(text: str, pair: str | None = None) -> list[int]:
    return list(build_tokenizer().encode(text, pair).ids)


def mean_of(ids: Sequence[int]) -> list[float]:
    """What the fake engine gives for these real ids."""
    return [float(sum(ids)), float(len(ids)), float(ids[0]), float(ids[-1])]


def token_ids(ids: Sequence[int], mask: Sequence[int] = (), type_ids: Sequence[int] = ()) -> TokenIds:
    return TokenIds(np.array(ids, np.int64), np.array(mask, np.int64), np.array(type_ids, np.int64))


def rows(result: EncodeResult) -> list[list[float]]:
    assert result.vectors is not None
    values: list[list[float]] = result.vectors.data.tolist()
    return values


def fields(error: ServiceError) -> list[str]:
    assert isinstance(error, InvalidInputError)
    return [violation.field for violation in error.violations]


class TestVectors:
    async def test_texts_pairs_and_ids_in_their_order(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            result = await bench.encode(
                TextPair("the cat", "a dog"), Text("the"), token_ids([2, 9, 3]), Text("the cat and the dog")
            )
            expected = [ids_of("the cat", "a dog"), ids_of("the"), [2, 9, 3], ids_of("the cat and the dog")]
            assert rows(result) == [mean_of(ids) for ids in expected]
            assert [encoding.token_count for encoding in result.encodings] == [len(ids) for ids in expected]

    async def test_masked_tokens_do_not_count(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            sequence = token_ids([9, 2, 9, 7, 3, 9], [0, 1, 0, 1, 1, 0])
            options = EncodeOptions(normalize=False, token_embeddings=True, tokens=True)
            result = await bench.encode(sequence, options=options)
            assert rows(result) == [mean_of([2, 7, 3])]
            (encoding,) = result.encodings
            assert encoding.token_count == 3
            assert encoding.token_embeddings is not None
            assert encoding.token_embeddings[:, 0].tolist() == [2, 7, 3]
            assert encoding.tokens is not None
            assert [token.id for token in encoding.tokens] == [2, 7, 3]

    async def test_normalised_cut_and_narrowed(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            options = EncodeOptions(dimensions=2, embedding_type=DataType.FLOAT16)
            result = await bench.encode(token_ids([6, 2]), options=options)
            assert result.vectors is not None
            assert result.vectors.data.dtype == np.float16
            assert result.vectors.data_type is DataType.FLOAT16
            np.testing.assert_allclose(result.vectors.data, [[8 / 68**0.5, 2 / 68**0.5]], atol=1e-3)

    async def test_types_of_masked_tokens_go_with_them(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            options = EncodeOptions(tokens=True, token_embeddings=True)
            sequence = token_ids([2, 9, 7, 3], [1, 0, 1, 1], [0, 0, 1, 1])
            (encoding,) = (await bench.encode(sequence, options=options)).encodings
            assert encoding.tokens is not None
            assert encoding.token_embeddings is not None
            assert [token.segment for token in encoding.tokens] == [0, 1, 1]
            assert encoding.token_embeddings[:, 2].tolist() == [0, 1, 1]

    async def test_unknown_tokens_and_truncation_are_told(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            options = EncodeOptions(truncation=Truncation.RIGHT, max_tokens=4)
            result = await bench.encode(
                Text("the " * 20), Text("x" * 101), token_ids([1, 1, 7]), options=options
            )
            told = [(e.truncated, e.unknown_token_count, e.token_count) for e in result.encodings]
            assert told == [(True, 0, 4), (False, 1, 3), (False, 2, 3)]
            registry = bench.metrics.registry
            assert registry.get_sample_value("seqenc_truncated_inputs_total") == 1
            assert registry.get_sample_value("seqenc_input_tokens_sum") == 10

    async def test_only_what_was_asked_for_is_there(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            (plain,) = (await bench.encode(Text("the cat"))).encodings
            assert (plain.tokens, plain.token_embeddings, plain.attention) == (None, None, None)
            options = EncodeOptions(pooling=Pooling.NONE, tokens=True)
            result = await bench.encode(Text("the cat"), options=options)
            assert result.vectors is None
            assert result.encodings[0].tokens is not None

    async def test_maps_are_of_the_fp32_graph_and_say_so(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            attention = AttentionOptions((-1,), (), AttentionReduction.MEAN_HEADS, DataType.FLOAT16)
            result = await bench.encode(Text("the cat"), options=EncodeOptions(attention=attention))
            assert (result.precision, result.attention_type) == ("fp32", DataType.FLOAT16)
            (encoding,) = result.encodings
            assert encoding.attention is not None
            assert encoding.attention.shape == (1, 1, 4, 4)
            assert encoding.attention.dtype == np.float16
            assert (await bench.encode(Text("the cat"))).precision == "int8"

    async def test_times_sum_to_at_most_the_total(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            timing = (await bench.encode(Text("the cat"))).timing
            assert min(timing.tokenize, timing.queue, timing.inference) >= 0
            assert timing.tokenize + timing.queue + timing.inference <= timing.total


class TestRefusals:
    async def test_another_model(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            assert isinstance(await bench.refusal(Text("a"), model="maxi"), UnknownModelError)
            assert rows(await bench.encode(Text("the"), model="mini"))

    async def test_another_revision(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            assert isinstance(await bench.refusal(Text("a"), expected_revision="54"), RevisionMismatchError)
            assert rows(await bench.encode(Text("the"), expected_revision="53aa"))

    @pytest.mark.parametrize(
        ("count", "message"),
        [
            (0, "has 0 sequences, must be 1 to 64; send at least one"),
            (65, "has 65 sequences, must be 1 to 64"),
        ],
    )
    async def test_too_few_or_too_many_inputs(self, tokenizer: Tokenizer, count: int, message: str) -> None:
        async with open_bench(tokenizer) as bench:
            error = await bench.refusal(*[Text("a")] * count)
            assert fields(error) == ["inputs"]
            assert message in str(error)

    async def test_as_many_inputs_as_allowed(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            assert len(rows(await bench.encode(*[Text("a")] * 64))) == 64

    @pytest.mark.parametrize(
        ("sequence", "field"),
        [
            (NoContent(), ""),
            (Text("the " * 100), ".text"),
            (Text("a" * 10_001), ".text"),
            (TextPair("the " * 100, ""), ".text_pair"),
            (TextPair("", "a" * 10_001), ".text_pair.second"),
            (token_ids([]), ".token_ids.ids"),
            (token_ids([2, -1]), ".token_ids.ids[1]"),
            (token_ids([2, 7], [0, 0]), ".token_ids.attention_mask"),
        ],
    )
    async def test_a_bad_input_refuses_the_call_by_its_place(
        self, tokenizer: Tokenizer, sequence: InputSequence, field: str
    ) -> None:
        async with open_bench(tokenizer) as bench:
            error = await bench.refusal(Text("the"), sequence, Text("cat"))
            assert fields(error) == [f"inputs[1]{field}"]
            assert bench.outcomes("invalid") == 3

    async def test_every_bad_input_is_named(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            error = await bench.refusal(NoContent(), Text("the"), token_ids([]), Text("the " * 100))
            assert fields(error) == ["inputs[0]", "inputs[2].token_ids.ids", "inputs[3].text"]

    @pytest.mark.parametrize(("sequence", "least"), [(Text("a"), 3), (TextPair("a", "b"), 4)])
    async def test_a_limit_that_holds_special_tokens_only(
        self, tokenizer: Tokenizer, sequence: InputSequence, least: int
    ) -> None:
        async with open_bench(tokenizer) as bench:
            for limit in range(1, least):
                options = EncodeOptions(max_tokens=limit, truncation=Truncation.RIGHT)
                error = await bench.refusal(sequence, options=options)
                assert f"options.max_tokens of at least {least}" in str(error)
            options = EncodeOptions(max_tokens=least, truncation=Truncation.RIGHT)
            assert rows(await bench.encode(sequence, options=options))

    async def test_maps_of_a_server_without_them(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer, attention_maps=False) as bench:
            options = EncodeOptions(attention=AttentionOptions())
            assert isinstance(await bench.refusal(Text("a"), options=options), NoAttentionMapsError)


class TestReplySize:
    @pytest.mark.parametrize(
        ("options", "size"),
        [
            (EncodeOptions(token_embeddings=True), 64 * HIDDEN_SIZE * 4),
            (EncodeOptions(attention=AttentionOptions()), 4 * HEAD_COUNT * 64 * 64 * 4),
            (EncodeOptions(attention=AttentionOptions((0,), (0,))), 64 * 64 * 4),
            (EncodeOptions(attention=AttentionOptions((0,), (0,), data_type=DataType.FLOAT16)), 64 * 64 * 2),
            (EncodeOptions(attention=AttentionOptions(reduction=AttentionReduction.ROLLOUT)), 64 * 64 * 4),
        ],
    )  # fmt: skip
    async def test_over_the_limit_it_is_refused_before_anything_runs(
        self, tokenizer: Tokenizer, options: EncodeOptions, size: int
    ) -> None:
        sequence = token_ids([7] * 64)
        async with open_bench(tokenizer, max_message_bytes=size) as bench:
            error = await bench.refusal(sequence, options=options)
            assert isinstance(error, ReplyTooLargeError)
            assert f"the limit is {size}" in str(error)
            assert bench.outcomes("rejected") == 1
        async with open_bench(tokenizer, max_message_bytes=size + 2000) as bench:
            assert rows(await bench.encode(sequence, options=options))

    async def test_padded_every_input_is_as_long_as_the_longest(self, tokenizer: Tokenizer) -> None:
        inputs = token_ids([7] * 64), *[token_ids([7])] * 9
        options = EncodeOptions(token_embeddings=True)
        size = 10 * 64 * HIDDEN_SIZE * 4
        async with open_bench(tokenizer, max_message_bytes=size) as bench:
            assert isinstance(
                await bench.refusal(*inputs, options=options, padded_reply=True), ReplyTooLargeError
            )
            assert rows(await bench.encode(*inputs, options=options))

    async def test_vectors_and_tokens_count_too(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer, max_message_bytes=5000) as bench:
            assert rows(await bench.encode(*[Text("a")] * 30))
            bench.runner.batches.clear()
            for options in (EncodeOptions(tokens=True), EncodeOptions(token_embeddings=True)):
                inputs = [Text("the cat and the dog")] * 30
                assert isinstance(await bench.refusal(*inputs, options=options), ReplyTooLargeError)


class TestPerInput:
    async def test_good_inputs_are_answered_and_bad_ones_carry_their_error(
        self, tokenizer: Tokenizer
    ) -> None:
        async with open_bench(tokenizer) as bench:
            inputs: list[InputSequence] = [
                NoContent(),
                Text("the"),
                token_ids([2, -1]),
                TextPair("a", "b"),
                Text("the " * 100),
            ]
            result = await bench.encode(*inputs, options=PER_INPUT)
            zeros = [0.0] * HIDDEN_SIZE
            assert rows(result) == [
                zeros,
                mean_of(ids_of("the")),
                zeros,
                mean_of(ids_of("a", "b")),
                zeros,
            ]
            errors = [encoding.error for encoding in result.encodings]
            assert [error and fields(error) for error in errors] == [
                ["inputs[0]"],
                None,
                ["inputs[2].token_ids.ids[1]"],
                None,
                ["inputs[4].text"],
            ]
            assert (bench.outcomes("ok"), bench.outcomes("invalid")) == (2, 3)

    async def test_all_of_them_bad(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            result = await bench.encode(NoContent(), NoContent(), options=PER_INPUT)
            assert rows(result) == [[0.0] * HIDDEN_SIZE] * 2
            assert all(encoding.error for encoding in result.encodings)
            assert bench.runner.batches == []

    async def test_an_input_that_the_engine_fails_on_is_the_only_one_that_fails(
        self, tokenizer: Tokenizer
    ) -> None:
        async with open_bench(tokenizer) as bench:
            bench.runner.failure = _fail_on_666
            inputs: list[InputSequence] = [NoContent(), token_ids([666]), token_ids([7])]
            result = await bench.encode(*inputs, options=PER_INPUT)
            assert rows(result) == [[0.0] * HIDDEN_SIZE, [0.0] * HIDDEN_SIZE, mean_of([7])]
            assert isinstance(result.encodings[1].error, InternalError)
            assert result.encodings[2].error is None
            assert (bench.outcomes("ok"), bench.outcomes("invalid"), bench.outcomes("failed")) == (1, 1, 1)

    async def test_else_it_fails_the_call(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            bench.runner.failure = _fail_on_666
            with pytest.raises(InternalError):
                await bench.encode(token_ids([666]), token_ids([7]))
            assert bench.outcomes("failed") == 2

    async def test_options_that_are_wrong_refuse_the_call(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            options = EncodeOptions(on_error=OnError.PER_INPUT, dimensions=0)
            assert fields(await bench.refusal(Text("a"), options=options)) == ["options.dimensions"]


def _fail_on_666(batch: Any, outputs: dict[str, Any]) -> dict[str, Any]:
    if 666 in batch.first_ids:
        raise RuntimeError("poison")
    return outputs


class TestLeaving:
    async def test_who_cancels_is_counted(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer, gated=True) as bench:
            call = asyncio.create_task(bench.encode(Text("the"), Text("cat")))
            await bench.runner.begun()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert bench.outcomes("cancelled") == 2

    async def test_who_is_too_late_is_counted(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            past = asyncio.get_running_loop().time() - 1
            with pytest.raises(DeadlineExceededError):
                await bench.pipeline.encode(EncodeCall((Text("the"),)), deadline=past)
            assert bench.outcomes("expired") == 1

    async def test_who_finds_the_queue_full_is_refused_or_waits(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer, gated=True, max_inputs=1000) as bench:
            running = asyncio.create_task(bench.encode(Text("the")))
            await bench.runner.begun()
            queued = asyncio.create_task(bench.encode(*[token_ids([7])] * 1000))  # tokenised in one step
            await asyncio.sleep(0)
            assert bench.metrics.registry.get_sample_value("seqenc_queued_inputs") == 1000
            with pytest.raises(QueueFullError):
                await bench.encode(token_ids([8]))
            assert bench.outcomes("rejected") == 1
            waiting = asyncio.create_task(
                bench.pipeline.encode(EncodeCall((token_ids([8]),), RAW), wait_for_room=True)
            )
            bench.runner.open()
            assert rows(await waiting) == [mean_of([8])]
            await asyncio.gather(running, queued)

    async def test_when_the_engine_is_given_up_every_call_is_told_to_go_elsewhere(
        self, tokenizer: Tokenizer
    ) -> None:
        async with open_bench(tokenizer, gated=True) as bench:
            calls = [asyncio.create_task(bench.encode(Text(text))) for text in ("the", "cat")]
            await bench.runner.begun()
            assert not bench.pipeline.lost.is_set()
            bench.pipeline.abandon()
            for call in calls:
                with pytest.raises(DrainingError):
                    await call


class TestTokenize:
    async def test_equal_to_what_encode_saw(self, tokenizer: Tokenizer) -> None:
        inputs = (Text("cat and dog"), TextPair("a", "b"), token_ids([2, 9, 0, 3], [1, 1, 0, 1]), NoContent())
        options = EncodeOptions(
            prompt="the ",
            truncation=Truncation.LEFT,
            max_tokens=5,
            on_error=OnError.PER_INPUT,
            tokens=True,
        )
        async with open_bench(tokenizer) as bench:
            tokenized = await bench.pipeline.tokenize(EncodeCall(inputs, replace(options, tokens=False)))
            assert bench.runner.batches == []
            seen = await bench.encode(*inputs, options=options)
            assert list(tokenized.sequences) == [0, 1, 2]
            assert list(tokenized.errors) == [3]
            for index, sequence in tokenized.sequences.items():
                assert sequence.tokens == seen.encodings[index].tokens
                assert sequence.truncated == seen.encodings[index].truncated

    async def test_options_of_encoding_are_not_looked_at(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            options = EncodeOptions(dimensions=-1, priority=9, pooling=Pooling.NONE)
            tokenized = await bench.pipeline.tokenize(EncodeCall((Text("the"),), options))
            assert tokenized.sequences[0].ids.tolist() == ids_of("the")

    async def test_a_reply_over_the_limit_is_refused(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer, max_message_bytes=5000) as bench:
            call = EncodeCall((Text("the cat and the dog"),) * 30)
            with pytest.raises(ReplyTooLargeError):
                await bench.pipeline.tokenize(call)
            assert await bench.pipeline.tokenize(replace(call, inputs=call.inputs[:3]))

    async def test_bad_calls_are_refused_as_by_encode(self, tokenizer: Tokenizer) -> None:
        async with open_bench(tokenizer) as bench:
            for call, error in (
                (EncodeCall(()), InvalidInputError),
                (EncodeCall((NoContent(),)), InvalidInputError),
                (EncodeCall((Text("a"),), EncodeOptions(max_tokens=0)), InvalidInputError),
                (EncodeCall((Text("a"),), model="maxi"), UnknownModelError),
            ):
                with pytest.raises(error):
                    await bench.pipeline.tokenize(call)

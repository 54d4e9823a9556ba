"""Each option and each kind of input that is refused, by field and limit, and the plan of what is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fake_artifact import build_artifact
from service.core.validation import (
    MAX_PROMPT_CHARACTERS,
    Plan,
    check_content,
    check_text,
    check_token_ids,
    plan_call,
    strip_padding,
)
from service.errors import InvalidInputError, NoAttentionMapsError, Violation
from service.types import (
    AttentionOptions,
    AttentionReduction,
    DataType,
    EncodeOptions,
    NoContent,
    Outputs,
    Pooling,
    Text,
    TextPair,
    TokenIds,
    Truncation,
)

MODEL = build_artifact()


def plan(options: EncodeOptions, *, attention_maps: bool = True, **changes: object) -> Plan:
    return plan_call(options, build_artifact(**changes), attention_maps=attention_maps)


def refusals(options: EncodeOptions) -> dict[str, str]:
    with pytest.raises(InvalidInputError) as error:
        plan(options)
    return {violation.field: violation.description for violation in error.value.violations}


def token_ids(ids: Sequence[int], mask: Sequence[int] = (), type_ids: Sequence[int] = ()) -> TokenIds:
    return TokenIds(np.array(ids, np.int64), np.array(mask, np.int64), np.array(type_ids, np.int64))


class TestPlan:
    def test_without_options_everything_is_the_models(self) -> None:
        result = plan(EncodeOptions())
        assert result.outputs == Outputs(Pooling.MEAN)
        assert (result.normalize, result.dimensions, result.embedding_type) == (True, 16, DataType.FLOAT32)
        assert (result.rule.limit, result.rule.truncation, result.rule.prompt) == (16, Truncation.ERROR, "")

    def test_what_the_caller_chose_goes_before_the_models(self) -> None:
        options = EncodeOptions(
            pooling=Pooling.CLS,
            normalize=False,
            dimensions=8,
            embedding_type=DataType.INT8,
            truncation=Truncation.LEFT,
            max_tokens=64,
            prompt_name="query",
            token_embeddings=True,
            tokens=True,
            priority=-3,
        )
        result = plan(options)
        assert result.outputs == Outputs(Pooling.CLS, token_embeddings=True)
        assert (result.normalize, result.dimensions, result.embedding_type) == (False, 8, DataType.INT8)
        rule = result.rule
        assert (rule.limit, rule.truncation, rule.prompt) == (64, Truncation.LEFT, "query: ")
        assert rule.tokens
        assert result.priority == -3

    @pytest.mark.parametrize(
        ("default", "options", "prompt"),
        [
            ("", EncodeOptions(), ""),
            ("passage", EncodeOptions(), "passage: "),
            ("passage", EncodeOptions(prompt_name="query"), "query: "),
            ("passage", EncodeOptions(prompt="find: "), "find: "),
        ],
    )
    def test_prompt(self, default: str, options: EncodeOptions, prompt: str) -> None:
        assert plan(options, default_prompt_name=default).rule.prompt == prompt


class TestAttention:
    def outputs(self, options: AttentionOptions) -> tuple[tuple[int, ...], tuple[int, ...]]:
        attention = plan(EncodeOptions(attention=options)).outputs.attention
        assert attention is not None
        return attention.layers, attention.heads

    @pytest.mark.parametrize(
        ("layers", "heads", "expected"),
        [
            ((), (), ((0, 1, 2, 3), (0, 1))),
            ((-1,), (0,), ((3,), (0,))),
            ((3, 0, -3), (-1, 0), ((3, 0, 1), (1, 0))),
        ],
    )
    def test_indices_are_resolved_in_their_order(
        self,
        layers: tuple[int, ...],
        heads: tuple[int, ...],
        expected: tuple[tuple[int, ...], tuple[int, ...]],
    ) -> None:
        assert self.outputs(AttentionOptions(layers, heads)) == expected

    def test_rollout_goes_up_the_layers(self) -> None:
        options = AttentionOptions((3, -4, 2), reduction=AttentionReduction.ROLLOUT)
        assert self.outputs(options) == ((0, 2, 3), (0, 1))

    @pytest.mark.parametrize(
        ("options", "field", "description"),
        [
            (AttentionOptions((4,)), "layers[0]", "is 4, must be -4 to 3"),
            (AttentionOptions((0, -5)), "layers[1]", "is -5, must be -4 to 3"),
            (AttentionOptions((), (2,)), "heads[0]", "is 2, must be -2 to 1"),
            (AttentionOptions((3, -1)), "layers[1]", "names layer 3 again; name each one once"),
            (AttentionOptions((), (0, 0)), "heads[1]", "names head 0 again; name each one once"),
            (
                AttentionOptions((0,) * 5),
                "layers",
                "has more indices than the 4 that the model has; name each one once",
            ),
            (
                AttentionOptions(data_type=DataType.INT8),
                "type",
                "is int8, must be float32 or float16",
            ),
        ],
    )
    def test_refused(self, options: AttentionOptions, field: str, description: str) -> None:
        assert refusals(EncodeOptions(attention=options)) == {f"options.attention.{field}": description}

    def test_of_a_server_without_maps(self) -> None:
        with pytest.raises(NoAttentionMapsError):
            plan(EncodeOptions(attention=AttentionOptions()), attention_maps=False)

    def test_wrong_indices_are_wrong_on_any_server(self) -> None:
        with pytest.raises(InvalidInputError):
            plan(EncodeOptions(attention=AttentionOptions((9,))), attention_maps=False)


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "field", "description"),
        [
            (EncodeOptions(dimensions=0), "dimensions", "is 0, must be 1 to 16"),
            (EncodeOptions(dimensions=17), "dimensions", "is 17, must be 1 to 16"),
            (EncodeOptions(dimensions=-1), "dimensions", "is -1, must be 1 to 16"),
            (
                EncodeOptions(dimensions=12, embedding_type=DataType.UBINARY),
                "dimensions",
                "12 dimensions cannot be packed as UBINARY; use a multiple of 8",
            ),
            (EncodeOptions(max_tokens=0), "max_tokens", "is 0, must be 1 to 64"),
            (EncodeOptions(max_tokens=65), "max_tokens", "is 65, must be 1 to 64"),
            (
                EncodeOptions(prompt_name="qery"),
                "prompt_name",
                "is not a prompt of this model; it has: passage, query",
            ),
            (
                EncodeOptions(prompt_name="query", prompt="q"),
                "prompt",
                "is set together with prompt_name; set one of them",
            ),
            (EncodeOptions(priority=4), "priority", "is 4, must be -3 to 3"),
            (EncodeOptions(priority=-4), "priority", "is -4, must be -3 to 3"),
        ],
    )
    def test_refused(self, options: EncodeOptions, field: str, description: str) -> None:
        assert refusals(options) == {f"options.{field}": description}

    def test_the_longest_prompt(self) -> None:
        assert plan(EncodeOptions(prompt="x" * MAX_PROMPT_CHARACTERS)).rule.prompt
        (description,) = refusals(EncodeOptions(prompt="x" * (MAX_PROMPT_CHARACTERS + 1))).values()
        assert "8193" in description
        assert "8192" in description

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            (EncodeOptions(pooling=Pooling.NONE, tokens=True, dimensions=8), "dimensions"),
            (EncodeOptions(pooling=Pooling.NONE, tokens=True, normalize=False), "normalize"),
            (
                EncodeOptions(pooling=Pooling.NONE, tokens=True, embedding_type=DataType.FLOAT16),
                "embedding_type",
            ),
            (EncodeOptions(pooling=Pooling.NONE), "pooling"),
        ],
    )
    def test_without_pooling_options_of_vectors_contradict(self, options: EncodeOptions, field: str) -> None:
        assert list(refusals(options)) == [f"options.{field}"]

    @pytest.mark.parametrize(
        "options",
        [
            EncodeOptions(pooling=Pooling.NONE, tokens=True),
            EncodeOptions(pooling=Pooling.NONE, token_embeddings=True),
            EncodeOptions(pooling=Pooling.NONE, attention=AttentionOptions()),
        ],
    )
    def test_without_pooling_something_else_is_wanted(self, options: EncodeOptions) -> None:
        assert plan(options).outputs.pooling is Pooling.NONE

    def test_everything_that_is_wrong_is_told_at_once(self) -> None:
        options = EncodeOptions(
            dimensions=99, max_tokens=99, priority=9, attention=AttentionOptions((9,), (9,))
        )
        assert len(refusals(options)) == 5

    def test_what_the_user_wrote_is_not_repeated(self) -> None:
        assert "secret" not in str(refusals(EncodeOptions(prompt_name="secret")))
        assert "it has: none" in str(_refusal_without_prompts())


def _refusal_without_prompts() -> Exception:
    with pytest.raises(InvalidInputError) as error:
        plan(EncodeOptions(prompt_name="query"), prompts={})
    return error.value


class TestText:
    def test_of_the_longest_length(self) -> None:
        assert list(check_text(Text("x" * 10), MODEL, 10)) == []
        assert list(check_text(TextPair("x" * 10, ""), MODEL, 10)) == []

    def test_one_character_more(self) -> None:
        (violation,) = check_text(Text("é" * 11), MODEL, 10)
        assert violation.field == "text"
        assert violation.description.startswith("has 11 characters, the limit is 10")

    def test_both_of_a_pair(self) -> None:
        fields = [violation.field for violation in check_text(TextPair("x" * 11, "x" * 12), MODEL, 10)]
        assert fields == ["text_pair.first", "text_pair.second"]

    def test_a_pair_for_a_model_of_one_segment(self) -> None:
        model = build_artifact(type_vocabulary_size=1)
        (violation,) = check_text(TextPair("a", "b"), model, 10)
        assert violation.field == "text_pair"
        assert list(check_text(Text("a"), model, 10)) == []

    def test_no_content(self) -> None:
        assert check_content(NoContent()) == Violation("", "has no content; set text, text_pair or token_ids")
        assert check_content(Text("")) is None


class TestTokenIds:
    @pytest.mark.parametrize(
        "sequence",
        [
            token_ids([2]),
            token_ids([0, 999]),
            token_ids([7] * 64),
            token_ids([7, 7], [0, 1], [1, 0]),
        ],
    )
    def test_good_ones(self, sequence: TokenIds) -> None:
        assert check_token_ids(sequence, MODEL) is None

    @pytest.mark.parametrize(
        ("sequence", "field", "description"),
        [
            (token_ids([]), "ids", "has no ids, must have 1 to 64"),
            (token_ids([7] * 65), "ids", "has more than 64 ids, must have 1 to 64"),
            (token_ids([2, 1000]), "ids[1]", "is 1000, must be 0 to 999"),
            (token_ids([2, 7, -1]), "ids[2]", "is -1, must be 0 to 999"),
            (token_ids([2, 7], [1]), "attention_mask", "has 1 values for 2 ids"),
            (token_ids([2, 7], [1, 1, 1]), "attention_mask", "has 3 values for 2 ids"),
            (token_ids([2, 7], [1, 2]), "attention_mask[1]", "is 2, must be 0 to 1"),
            (token_ids([2, 7], [-1, 1]), "attention_mask[0]", "is -1, must be 0 to 1"),
            (token_ids([2, 7], [0, 0]), "attention_mask", "has no 1; at least one token must be real"),
            (token_ids([2, 7], [], [0]), "type_ids", "has 1 values for 2 ids"),
            (token_ids([2, 7], [], [0, 2]), "type_ids[1]", "is 2, must be 0 to 1"),
        ],
    )
    def test_refused(self, sequence: TokenIds, field: str, description: str) -> None:
        violation = check_token_ids(sequence, MODEL)
        assert violation is not None
        assert violation.field == f"token_ids.{field}"
        assert violation.description.startswith(description)


class TestStripPadding:
    def test_all_real(self) -> None:
        for sequence in (token_ids([2, 7, 3]), token_ids([2, 7, 3], [1, 1, 1], [0, 0, 0])):
            stripped = strip_padding(sequence)
            assert stripped.ids.tolist() == [2, 7, 3]
            assert (stripped.mask, stripped.type_ids, stripped.token_count) == (None, None, 3)

    def test_padding_on_the_right_goes(self) -> None:
        stripped = strip_padding(token_ids([2, 7, 3, 0], [1, 1, 0, 0], [0, 1, 1, 1]))
        assert stripped.ids.tolist() == [2, 7]
        assert stripped.mask is None
        assert stripped.type_ids is not None
        assert (stripped.type_ids.tolist(), stripped.token_count) == ([0, 1], 2)

    @pytest.mark.parametrize(
        ("mask", "kept", "count"),
        [([0, 0, 1, 1], [0, 0, 1, 1], 2), ([1, 0, 1, 0], [1, 0, 1], 2), ([0, 1, 0, 0], [0, 1], 1)],
    )
    def test_other_padding_stays_as_a_mask(self, mask: list[int], kept: list[int], count: int) -> None:
        stripped = strip_padding(token_ids([4, 5, 6, 7], mask))
        assert stripped.mask is not None
        assert (stripped.mask.tolist(), stripped.token_count) == (kept, count)
        assert len(stripped) == len(kept)

"""Checks a call against the model before anything is tokenised or queued; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from service.core.artifact import Artifact
from service.core.tokenizer import TokenizeRule
from service.errors import InvalidInputError, NoAttentionMapsError, Violation
from service.types import (
    AttentionOptions,
    AttentionPlan,
    AttentionReduction,
    DataType,
    EncodeOptions,
    InputSequence,
    NoContent,
    OnError,
    Outputs,
    Pooling,
    Text,
    TextPair,
    TokenIds,
    TokenizedSequence,
)

# A prompt is put before every text of a call, so that a long one would cost its length times the texts.
MAX_PROMPT_CHARACTERS = 8_192
MIN_PRIORITY, MAX_PRIORITY = -3, 3


@dataclass(frozen=True, slots=True)
class Plan:
    """A call's options with every default filled in from the model."""

    outputs: Outputs
    normalize: bool
    dimensions: int
    embedding_type: DataType
    rule: TokenizeRule
    on_error: OnError
    priority: int


def plan_call(options: EncodeOptions, model: Artifact, *, attention_maps: bool) -> Plan:
    """Raises InvalidInputError with every option that is wrong, or NoAttentionMapsError."""
    violations = [*_check_options(options, model)]
    if options.attention:
        violations += _check_attention(options.attention, model)
    if violations:
        raise InvalidInputError(violations)
    if options.attention and not attention_maps:
        raise NoAttentionMapsError
    pooling = options.pooling or model.pooling
    plan = _plan_attention(options.attention, model) if options.attention else None
    return Plan(
        outputs=Outputs(pooling, options.token_embeddings, plan),
        normalize=model.normalize if options.normalize is None else options.normalize,
        dimensions=options.dimensions or model.hidden_size,
        embedding_type=options.embedding_type,
        rule=_rule(options, model),
        on_error=options.on_error,
        priority=options.priority,
    )


def check_text(sequence: Text | TextPair, model: Artifact, max_characters: int) -> Iterator[Violation]:
    """Violations with the field below the input."""
    if isinstance(sequence, Text):
        fields = {"text": sequence.text}
    else:
        fields = {"text_pair.first": sequence.first, "text_pair.second": sequence.second}
        if model.type_vocabulary_size < 2:
            yield Violation("text_pair", "this model has one segment; send the pair as one text")
    for field, text in fields.items():
        if len(text) > max_characters:
            yield Violation(
                field,
                f"has {len(text)} characters, the limit is {max_characters} (--max-text-characters); "
                "split the text",
            )


def check_content(sequence: InputSequence) -> Violation | None:
    if isinstance(sequence, NoContent):
        return Violation("", "has no content; set text, text_pair or token_ids")
    return None


def check_token_ids(sequence: TokenIds, model: Artifact) -> Violation | None:
    """The first thing wrong with token ids, if any."""
    ids, mask, types = sequence.ids, sequence.attention_mask, sequence.type_ids
    if not 1 <= len(ids) <= model.max_positions:
        found = f"more than {model.max_positions}" if len(ids) else "no"
        return Violation("token_ids.ids", f"has {found} ids, must have 1 to {model.max_positions}")
    if (at := _first_outside(ids, model.vocabulary_size)) is not None:
        return Violation(
            f"token_ids.ids[{at}]",
            f"is {ids[at]}, must be 0 to {model.vocabulary_size - 1}; use this model's ids",
        )
    for name, values, count in (("attention_mask", mask, 2), ("type_ids", types, model.type_vocabulary_size)):
        if len(values) not in (0, len(ids)):
            return Violation(
                f"token_ids.{name}",
                f"has {len(values)} values for {len(ids)} ids; send one for each id, or none",
            )
        if (at := _first_outside(values, count)) is not None:
            return Violation(f"token_ids.{name}[{at}]", f"is {values[at]}, must be 0 to {count - 1}")
    if len(mask) and not mask.any():
        return Violation("token_ids.attention_mask", "has no 1; at least one token must be real")
    return None


def strip_padding(sequence: TokenIds) -> TokenizedSequence:
    """Valid token ids without the masked columns at their right end, which nothing depends on."""
    mask = sequence.attention_mask
    length = len(sequence.ids) if not len(mask) else int(np.flatnonzero(mask)[-1]) + 1
    mask = mask[:length]
    holes = len(mask) > 0 and not mask.all()
    types = sequence.type_ids[:length]
    return TokenizedSequence(
        ids=sequence.ids[:length],
        mask=mask if holes else None,
        type_ids=types if types.any() else None,
        token_count=int(mask.sum()) if holes else length,
    )


def _check_options(options: EncodeOptions, model: Artifact) -> Iterator[Violation]:
    size = model.hidden_size
    if options.dimensions is not None and not 1 <= options.dimensions <= size:
        yield Violation("options.dimensions", f"is {options.dimensions}, must be 1 to {size}")
    elif options.embedding_type is DataType.UBINARY and (options.dimensions or size) % 8:
        yield Violation(
            "options.dimensions",
            f"{options.dimensions or size} dimensions cannot be packed as UBINARY; use a multiple of 8",
        )
    if options.pooling is Pooling.NONE:
        yield from _check_no_pooling(options)
    if options.max_tokens is not None and not 1 <= options.max_tokens <= model.max_positions:
        yield Violation("options.max_tokens", f"is {options.max_tokens}, must be 1 to {model.max_positions}")
    if len(options.prompt) > MAX_PROMPT_CHARACTERS:
        yield Violation(
            "options.prompt",
            f"has {len(options.prompt)} characters, the limit is {MAX_PROMPT_CHARACTERS}; shorten it",
        )
    if options.prompt and options.prompt_name:
        yield Violation("options.prompt", "is set together with prompt_name; set one of them")
    elif options.prompt_name and options.prompt_name not in model.prompts:
        known = ", ".join(sorted(model.prompts)) or "none"
        yield Violation("options.prompt_name", f"is not a prompt of this model; it has: {known}")
    if not MIN_PRIORITY <= options.priority <= MAX_PRIORITY:
        yield Violation(
            "options.priority", f"is {options.priority}, must be {MIN_PRIORITY} to {MAX_PRIORITY}"
        )


def _check_no_pooling(options: EncodeOptions) -> Iterator[Violation]:
    for name in ("dimensions", "normalize"):
        if getattr(options, name) is not None:
            yield Violation(f"options.{name}", "is set but pooling is NONE; unset it or choose a pooling")
    if options.embedding_type is not DataType.FLOAT32:
        yield Violation("options.embedding_type", "is set but pooling is NONE; unset it or choose a pooling")
    if not (options.token_embeddings or options.tokens or options.attention):
        yield Violation(
            "options.pooling", "NONE leaves nothing to return; ask for token_embeddings, tokens or attention"
        )


def _check_attention(attention: AttentionOptions, model: Artifact) -> Iterator[Violation]:
    yield from _check_indices("layers", attention.layers, model.layer_count)
    yield from _check_indices("heads", attention.heads, model.head_count)
    if attention.data_type not in (DataType.FLOAT32, DataType.FLOAT16):
        yield Violation("options.attention.type", f"is {attention.data_type}, must be float32 or float16")


def _check_indices(name: str, indices: tuple[int, ...], count: int) -> Iterator[Violation]:
    if len(indices) > count:
        yield Violation(
            f"options.attention.{name}",
            f"has more indices than the {count} that the model has; name each one once",
        )
        return
    seen: set[int] = set()
    for place, index in enumerate(indices):
        field = f"options.attention.{name}[{place}]"
        if not -count <= index < count:
            yield Violation(field, f"is {index}, must be {-count} to {count - 1}")
        elif index % count in seen:
            yield Violation(field, f"names {name[:-1]} {index % count} again; name each one once")
        else:
            seen.add(index % count)


def _plan_attention(attention: AttentionOptions, model: Artifact) -> AttentionPlan:
    layers = tuple(index % model.layer_count for index in attention.layers) or tuple(range(model.layer_count))
    heads = tuple(index % model.head_count for index in attention.heads) or tuple(range(model.head_count))
    if attention.reduction is AttentionReduction.ROLLOUT:
        layers = tuple(sorted(layers))
    return AttentionPlan(layers, heads, attention.reduction, attention.data_type)


def _rule(options: EncodeOptions, model: Artifact) -> TokenizeRule:
    name = options.prompt_name or ("" if options.prompt else model.default_prompt_name)
    return TokenizeRule(
        limit=options.max_tokens or model.max_tokens,
        truncation=options.truncation,
        prompt=options.prompt or model.prompts.get(name, ""),
        tokens=options.tokens,
    )


def _first_outside(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]], count: int) -> int | None:
    """Index of the first value that is not in [0, count)."""
    outside = (values < 0) | (values >= count)
    return int(outside.argmax()) if outside.any() else None

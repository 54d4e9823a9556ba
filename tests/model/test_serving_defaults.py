"""The files of a sentence-transformers folder: what is honoured, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from folders import Editable
from model.checkpoint import load_checkpoint
from model.serving_defaults import ServingDefaults

FLAGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def modules(*types: str, package: str = "sentence_transformers.models") -> list[dict[str, Any]]:
    return [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"{package}.{kind}",
        }
        for index, kind in enumerate(types)
    ]


def flags(*chosen: str) -> dict[str, Any]:
    return {"word_embedding_dimension": 32, **{f"pooling_mode_{flag}": flag in chosen for flag in FLAGS}}


@pytest.fixture
def sentence_model(tiny_bert: Path, editable: Editable) -> Any:
    """A tiny BERT as sentence-transformers 2 saved it: mean pooling, normalised, 40 tokens."""
    folder = editable(tiny_bert)
    folder.write_json("modules.json", modules("Transformer", "Pooling", "Normalize"))
    folder.write_json("1_Pooling/config.json", flags("mean_tokens"))
    folder.write_json("sentence_bert_config.json", {"max_seq_length": 40, "do_lower_case": False})
    return folder


def defaults_of(folder: Any) -> ServingDefaults:
    return load_checkpoint(folder.path).defaults


def test_old_style_files(sentence_model: Any) -> None:
    assert defaults_of(sentence_model) == ServingDefaults(pooling="mean", normalize=True, max_tokens=40)


def test_files_of_version_6(sentence_model: Any) -> None:
    """As sentence-transformers 6 writes them."""
    package = "sentence_transformers.base.modules.transformer"
    entries = modules("Transformer", "Pooling", "Normalize", package=package)
    entries[1]["type"] = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"
    sentence_model.write_json("modules.json", entries)
    sentence_model.write_json(
        "1_Pooling/config.json", {"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True}
    )
    sentence_model.write_json(
        "sentence_bert_config.json",
        {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
        },
    )
    sentence_model.write_json(
        "2_Normalize/config.json",
        {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"},
    )
    sentence_model.write_json(
        "config_sentence_transformers.json",
        {
            "model_type": "SentenceTransformer",
            "__version__": {"sentence_transformers": "6.2.0"},
            "prompts": {"query": "query: ", "document": ""},
            "default_prompt_name": "query",
            "similarity_fn_name": "cosine",
        },
    )
    assert defaults_of(sentence_model) == ServingDefaults(
        pooling="cls",
        normalize=True,
        max_tokens=64,
        prompts={"query": "query: ", "document": ""},
        default_prompt_name="query",
    )


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        (flags("cls_token"), "cls"),
        (flags("max_tokens"), "max"),
        (flags("lasttoken"), "last"),
        (flags(), "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["max"]}, "max"),
        ({}, "mean"),
    ],
)
def test_pooling_modes(config: dict[str, Any], pooling: str, sentence_model: Any) -> None:
    sentence_model.write_json("1_Pooling/config.json", config)
    assert defaults_of(sentence_model).pooling == pooling


def test_without_pooling_there_is_no_pooled_vector(sentence_model: Any) -> None:
    sentence_model.write_json("modules.json", modules("Transformer"))
    assert defaults_of(sentence_model).pooling == "none"


def test_encoder_in_a_folder_of_its_own(sentence_model: Any) -> None:
    entries = modules("Transformer", "Pooling")
    entries[0]["path"] = "0_Transformer"
    sentence_model.write_json("modules.json", entries)
    inner = sentence_model.path / "0_Transformer"
    inner.mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json"):
        (sentence_model.path / file).rename(inner / file)
    assert defaults_of(sentence_model) == ServingDefaults(pooling="mean", normalize=False, max_tokens=40)


@pytest.mark.parametrize(
    ("stated", "expected"), [(40, 40), (64, 64), (512, 64), (int(1e30), 64), (None, 64), (0, 64)]
)
def test_token_limit_of_a_plain_folder(
    stated: object, expected: int, tiny_bert: Path, editable: Editable
) -> None:
    folder = editable(tiny_bert)
    folder.write_json("tokenizer_config.json", {"model_max_length": stated})
    assert defaults_of(folder) == ServingDefaults(pooling="mean", normalize=False, max_tokens=expected)


@pytest.mark.parametrize(("stated", "expected"), [(40, 40), (512, 64), (None, 64)])
def test_max_seq_length_is_kept_within_the_positions(
    stated: object, expected: int, sentence_model: Any
) -> None:
    sentence_model.write_json("sentence_bert_config.json", {"max_seq_length": stated})
    assert defaults_of(sentence_model).max_tokens == expected


@pytest.mark.parametrize("lowercase", [True, False])
def test_do_lower_case(lowercase: bool, sentence_model: Any) -> None:
    (sentence_model.path / "added_tokens.json").unlink()
    sentence_model.edit_json("tokenizer_config.json", do_lower_case=False)
    sentence_model.write_json("sentence_bert_config.json", {"do_lower_case": lowercase})
    tokens = load_checkpoint(sentence_model.path).tokenizer.encode("The Cat").tokens
    assert (tokens == ["[CLS]", "the", "cat", "[SEP]"]) is lowercase


def test_the_transformer_file_may_have_the_name_of_another_model(sentence_model: Any) -> None:
    (sentence_model.path / "sentence_bert_config.json").unlink(missing_ok=True)
    sentence_model.write_json("sentence_xlm-roberta_config.json", {"max_seq_length": 7})
    assert defaults_of(sentence_model).max_tokens == 7


def test_own_fields(tiny_native: Path, editable: Editable) -> None:
    folder = editable(tiny_native)
    folder.edit_json("config.json", pooling="last", normalize=True, max_tokens=10, prompts={"a": "b"})
    assert defaults_of(folder) == ServingDefaults(
        pooling="last", normalize=True, max_tokens=10, prompts={"a": "b"}
    )


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "1_Pooling/config.json",
            flags("cls_token", "mean_tokens"),
            r"several poolings at once \(cls, mean\)",
        ),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}, "several poolings at once"),
        ("1_Pooling/config.json", flags("weightedmean_tokens"), "pooling 'weightedmean' is not supported"),
        ("1_Pooling/config.json", flags("mean_sqrt_len_tokens"), "pooling 'mean_sqrt_len_tokens'"),
        ("1_Pooling/config.json", {"pooling_mode_attention": True}, "pooling_mode_attention are not known"),
        (
            "1_Pooling/config.json",
            {**flags("mean_tokens"), "include_prompt": False},
            "include_prompt = False",
        ),
        ("1_Pooling/config.json", {"embedding_dimension": 48}, "embedding_dimension = 48"),
        ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "'token_embeddings'"),
        ("modules.json", modules("Transformer", "Pooling", "Dense"), "models.Dense' is not supported"),
        ("modules.json", modules("Transformer", "LSTM", "Pooling"), "models.LSTM' is not supported"),
        (
            "modules.json",
            modules("Transformer", package="custom_st"),
            "'custom_st.Transformer' is not supported",
        ),
        ("modules.json", modules("Pooling", "Transformer"), "modules.json lists Pooling, Transformer"),
        ("modules.json", modules("Transformer", "Normalize"), "lists Transformer, Normalize"),
        ("modules.json", [], "lists nothing"),
        ("modules.json", {"a": 1}, "must hold a JSON list of objects"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task = 'fill-mask'"),
        ("sentence_bert_config.json", {"query_length": 32}, "query_length = 32 is not supported"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"padding": 1}}}, "processing_kwargs"),
        ("sentence_bert_config.json", {"modality_config": {"image": {}}}, "modality_config for text is None"),
        ("sentence_bert_config.json", {"max_seq_length": "40"}, "the token limit is '40'"),
        (
            "config_sentence_transformers.json",
            {"model_type": "SparseEncoder"},
            "model_type = 'SparseEncoder'",
        ),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "q"},
            "default_prompt_name 'q' is none of",
        ),
        ("config_sentence_transformers.json", {"prompts": {"q": 1}}, "prompt 'q' is 1; it must be text"),
    ],
)
def test_what_would_change_the_vectors_is_refused(
    file: str, content: object, message: str, sentence_model: Any
) -> None:
    sentence_model.write_json(file, content)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(sentence_model.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling": "median"}, "pooling 'median' is not supported; supported: cls, mean, max, last, none"),
        ({"max_tokens": -1}, "the token limit is -1"),
        ({"normalize": "yes"}, "normalize is 'yes'; it must be true or false"),
        ({"prompts": ["query: "]}, "it must map names to texts"),
        ({"default_prompt_name": "q"}, "default_prompt_name 'q' is none of the prompts: there are none"),
    ],
)
def test_own_fields_that_cannot_be_served(
    change: dict[str, object], message: str, tiny_native: Path, editable: Editable
) -> None:
    folder = editable(tiny_native)
    folder.edit_json("config.json", **change)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(folder.path)

"""What stands in a checkpoint's folder, would change the vectors and is not read is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import tiny_models
from model.cli import main

Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_models.write_tiny_bert(folder)
    return folder


def write(name: str, content: Any = "") -> Spoil:
    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    return change


def edit(name: str, **changes: object) -> Spoil:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def edit_tokenizer(**changes: object) -> Spoil:
    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        tokenizer |= {"model": {**tokenizer["model"], **changes}, "added_tokens": [], "post_processor": None}
        path.write_text(json.dumps(tokenizer))
        for name in ("added_tokens.json", "special_tokens_map.json"):
            (folder / name).unlink(missing_ok=True)
        write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})(folder)

    return change


def replace_weights(name: str) -> Spoil:
    return lambda folder: (folder / "model.safetensors").rename(folder / name)


def copy_weights(name: str) -> Spoil:
    return lambda folder: shutil.copy(folder / "model.safetensors", folder / name)


def dangle(name: str) -> Spoil:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("../blobs/0123")

    return change


def modules(*types: str) -> Spoil:
    return write("modules.json", [{"path": "", "type": kind} for kind in types])


def shard(*stray: str) -> Spoil:
    """One weight in a shard of its own, and further files beside the shards."""

    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        first = dict([weights.popitem()])
        parts = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": weights}
        for name, part in parts.items():
            save_file(part, folder / name)
        for name in stray:
            save_file(first, folder / name)
        weight_map = {weight: name for name, part in parts.items() for weight in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return change


def only(*kept: str) -> Spoil:
    def change(folder: Path) -> None:
        for path in folder.iterdir():
            if path.name not in kept:
                path.unlink()
        (folder / "README.md").write_text("# A model")

    return change


UNK = "<unk>"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 90868376\n"
AUTO_MAP = {"AutoModel": "modeling_own.OwnModel"}
TRANSFORMER, POOLING = "sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"
UNIGRAM = {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]], "byte_fallback": False}
REFUSED: dict[str, tuple[Spoil, str]] = {
    "adapter": (write("adapter_config.json", {"peft_type": "LORA"}), "adapter (adapter_config.json)"),
    "adapter's weights": (
        copy_weights("adapter_model.safetensors"),
        "adapter (adapter_model.safetensors)",
    ),
    "adapter's pickled weights": (write("adapter_model.bin"), "adapter (adapter_model.bin)"),
    "adapter alone": (
        lambda folder: (only()(folder), write("adapter_config.json", {})(folder)),
        "Merge the adapter first: python -c",
    ),
    "own code": (edit("config.json", auto_map=AUTO_MAP), f"config.json: auto_map = {AUTO_MAP}"),
    "own tokenizer": (
        edit("tokenizer_config.json", auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]}),
        "tokenizer_config.json: auto_map",
    ),
    "quantized": (
        edit("config.json", quantization_config={"quant_method": "gptq"}),
        "quantization_config = {'quant_method': 'gptq'} is not supported; export the model that was",
    ),
    "compressed": (edit("config.json", compression_config={"format": "x"}), "compression_config"),
    "relative positions": (
        edit("config.json", position_embedding_type="relative_key"),
        "position_embedding_type 'relative_key' is not supported",
    ),
    "decoder": (edit("config.json", is_decoder=True), "is_decoder = True is not supported"),
    "cross attention": (edit("config.json", add_cross_attention=True), "add_cross_attention = True"),
    "pruned": (edit("config.json", pruned_heads={"0": [1]}), "pruned_heads = {'0': [1]} is not supported"),
    "activation": (edit("config.json", hidden_act="quick_gelu"), "hidden_act 'quick_gelu' is not supported"),
    "own module": (modules("custom_st.Transformer"), "module 'custom_st.Transformer' is not supported"),
    "router": (
        modules("sentence_transformers.models.Router"),
        "module 'sentence_transformers.models.Router' is not supported",
    ),
    "two towers": (
        modules("sentence_transformers.models.Asym", POOLING),
        "module 'sentence_transformers.models.Asym' is not supported",
    ),
    "dense": (
        modules(TRANSFORMER, POOLING, "sentence_transformers.models.Dense"),
        "module 'sentence_transformers.models.Dense' is not supported",
    ),
    "module of another package": (modules("pylate.models.Dense.Dense"), "'pylate.models.Dense.Dense'"),
    "pooling without modules": (
        write("1_Pooling/config.json", {"pooling_mode_cls_token": True}),
        "1_Pooling/config.json of sentence-transformers, but no modules.json",
    ),
    "limit without modules": (
        write("sentence_bert_config.json", {"max_seq_length": 8}),
        "sentence_bert_config.json of sentence-transformers, but no modules.json",
    ),
    "prompts without modules": (
        write("config_sentence_transformers.json", {"prompts": {"q": "q: "}}),
        "config_sentence_transformers.json of sentence-transformers, but no modules.json",
    ),
    "whole and sharded": (
        lambda folder: (shard()(folder), copy_shard(folder, "model.safetensors")),
        "has both model.safetensors and model.safetensors.index.json",
    ),
    "a shard too many": (
        shard("model-00003-of-00003.safetensors"),
        "has model-00003-of-00003.safetensors",
    ),
    "a shard too few": (
        lambda folder: (shard()(folder), (folder / "model-00002-of-00002.safetensors").unlink()),
        "names model-00002-of-00002.safetensors, which is missing",
    ),
    "further weights": (copy_weights("head.safetensors"), "has head.safetensors beside model.safetensors"),
    "weights of another name": (replace_weights("bert.safetensors"), "but bert.safetensors; rename the file"),
    "pickled": (replace_weights("pytorch_model.bin"), "has only pickled weights (pytorch_model.bin)"),
    "TensorFlow": (replace_weights("tf_model.h5"), "TensorFlow or Flax (tf_model.h5). Convert them"),
    "Flax": (replace_weights("flax_model.msgpack"), "TensorFlow or Flax (flax_model.msgpack). Convert them"),
    "GGUF": (replace_weights("model-q8_0.gguf"), "only model-q8_0.gguf; export the checkpoint"),
    "ONNX": (replace_weights("model.onnx"), "only model.onnx; export the checkpoint"),
    "training state alone": (
        lambda folder: (replace_weights("optimizer.pt")(folder), write("training_args.bin")(folder)),
        "has neither model.safetensors nor model.safetensors.index.json",
    ),
    "pointer for weights": (
        write("model.safetensors", POINTER),
        "model.safetensors is only a pointer",
    ),
    "pointer for the tokenizer": (
        write("tokenizer.json", POINTER),
        "tokenizer.json is only a pointer",
    ),
    "pointer for a shard": (
        lambda folder: (shard()(folder), write("model-00001-of-00002.safetensors", POINTER)(folder)),
        "model-00001-of-00002.safetensors is only a pointer of Git LFS; fetch the file with `git lfs pull`",
    ),
    "lost configuration": (
        dangle("config.json"),
        "config.json is a link to ../blobs/0123",
    ),
    "lost weights": (dangle("model.safetensors"), "model.safetensors is a link to ../blobs/0123"),
    "lost tokenizer": (dangle("tokenizer.json"), "tokenizer.json is a link to ../blobs/0123"),
    "lost modules": (dangle("modules.json"), "modules.json is a link to ../blobs/0123"),
    "lost settings": (dangle("tokenizer_config.json"), "tokenizer_config.json is a link to ../blobs/0123"),
    "README alone": (only(), "has no config.json; name the folder that a model's save_pretrained wrote"),
    "no unknown token": (
        edit_tokenizer(unk_token=UNK),
        "tokenizer.json: unk_token is '<unk>', which is not in the vocabulary",
    ),
    "no unknown token in WordLevel": (
        edit_tokenizer(type="WordLevel", vocab={"a": 0}, unk_token=UNK),
        "tokenizer.json: unk_token is '<unk>', which is not in the vocabulary",
    ),
    "no unknown token in BPE": (
        edit_tokenizer(type="BPE", vocab={"a": 0}, merges=[], unk_token=UNK),
        "tokenizer.json: unk_token is '<unk>', which is not in the vocabulary",
    ),
    "random merges": (
        edit_tokenizer(type="BPE", vocab={"a": 0}, merges=[], dropout=0.1, unk_token=None),
        "tokenizer.json: the model's dropout is 0.1, which gives other ids each time",
    ),
    "no unknown token in Unigram": (
        edit_tokenizer(**UNIGRAM),
        "tokenizer.json: unk_id is not set",
    ),
}


def copy_shard(folder: Path, name: str) -> None:
    shutil.copy(folder / "model-00001-of-00002.safetensors", folder / name)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(
    case: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, reason = REFUSED[case]
    folder = Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))
    spoil(folder)
    assert main(["export", str(folder), "--out", str(tmp_path / "artifact")]) == 1
    *stages, message = capsys.readouterr().err.splitlines()
    assert message.startswith("seqenc-model export: ")
    assert reason in message
    assert not any("tracing" in stage for stage in stages)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("place", ["checkpoint-500", "snapshots/0123abcd"])
def test_a_folder_around_the_checkpoint_names_it(
    place: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trainer's folder, a model in the Hub's cache."""
    shutil.copytree(checkpoint, tmp_path / "model" / place)
    assert main(["export", str(tmp_path / "model"), "--out", str(tmp_path / "artifact")]) == 1
    assert f"such as {tmp_path / 'model' / place}" in capsys.readouterr().err


def test_an_artifact_is_not_taken_for_a_checkpoint(
    tiny_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tiny_artifact), "--out", str(tmp_path / "artifact")]) == 1
    assert "is an artifact; name the checkpoint" in capsys.readouterr().err


def test_a_link_to_a_checkpoint_that_is_gone_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "current"
    source.symlink_to(tmp_path / "release-7")
    assert main(["export", str(source), "--out", str(tmp_path / "artifact")]) == 1
    assert f"{source} is a link to {tmp_path / 'release-7'}, which is not there" in capsys.readouterr().err

"""What may stand in a checkpoint's folder without harm, and links to files elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from folders import Editable
from model.checkpoint import load_checkpoint

IDS = torch.tensor([[2, 50, 60, 70, 3]])


def embed(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        hidden: torch.Tensor = load_checkpoint(folder).encoder(IDS).token_embeddings
    return hidden


def test_what_changes_nothing_is_left_alone(tiny_bert: Path, editable: Editable) -> None:
    copy = editable(tiny_bert)
    for name in ("README.md", "training_args.bin", "pytorch_model.bin", "tf_model.h5", "model.onnx"):
        (copy.path / name).write_text("version https://git-lfs.github.com/spec/v1\n")
    shutil.copy(copy.path / "model.safetensors", copy.path / "model.fp16.safetensors")
    copy.edit_json(
        "config.json",
        auto_map=None,
        chunk_size_feed_forward=8,
        id2label={"0": "LABEL_0"},
        is_decoder=False,
        pruned_heads={},
        quantization_config=None,
        torch_dtype="float16",
        use_cache=True,
    )
    copy.write_json("checkpoint-500/adapter_config.json", {})
    copy.write_json("generation_config.json", {})
    assert torch.equal(embed(copy.path), embed(tiny_bert))


@pytest.mark.parametrize("relative", [True, False])
def test_links_as_in_the_hubs_cache_are_followed(relative: bool, tiny_bert: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    for index, file in enumerate(sorted(tiny_bert.iterdir())):
        blob = tmp_path / "blobs" / f"{index:040x}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(Path("../../blobs", blob.name) if relative else blob)
    (tmp_path / "current").symlink_to(snapshot)
    assert torch.equal(embed(tmp_path / "current"), embed(tiny_bert))

"""Reading an artifact directory; each way of being broken ends in one clear line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.artifact import Artifact, load_artifact
from service.errors import StartError
from service.types import Pooling

Manifest = dict[str, Any]
FILES = {
    "tokenizer.json": b"{}",
    "selfcheck.json": json.dumps(
        {
            "min_cosine": {"fp32": 0.99999},
            "cases": [
                {
                    "input_ids": [1, 2, 0],
                    "attention_mask": [1, 1, 0],
                    "token_type_ids": [0, 0, 0],
                    "pooled_mean": [0.5, -0.5],
                    "pooled_cls": [1.0, 0.0],
                }
            ],
        }
    ).encode(),
    "weights.fp32.bin": b"weights",
    "encoder.fused.onnx": b"fused",
    "attention.fp32.onnx": b"maps",
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def manifest_of(**changes: Any) -> Manifest:
    graphs = [
        {
            "file": f"{name}.onnx",
            "precision": "fp32",
            "kind": kind,
            "sha256": sha256(FILES[f"{name}.onnx"]),
            "external_data": ["weights.fp32.bin"],
            "fidelity": {"worst_cosine": 0.9999998, "mean_cosine": 1.0, "max_abs_error": 1e-6},
        }
        for name, kind in (("encoder.fused", "fused"), ("attention.fp32", "attention"))
    ]
    manifest = {
        "schema_version": 1,
        "name": "mini",
        "revision": "53aa",
        "family": "bert",
        "hidden_size": 2,
        "layer_count": 1,
        "head_count": 1,
        "vocabulary_size": 10,
        "type_vocabulary_size": 2,
        "max_tokens": 8,
        "max_positions": 16,
        "pooling": "mean",
        "normalize": True,
        "prompts": {"query": "query: "},
        "default_prompt_name": None,
        "special_ids": {"pad": 0, "cls": 1},
        "files": [
            {"file": name, "sha256": sha256(content)}
            for name, content in FILES.items()
            if not name.endswith(".onnx")
        ],
        "graphs": graphs,
        "tool_versions": {"seqenc": "0.1.0"},
    }
    return {**manifest, **changes}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    write_manifest(tmp_path, manifest_of())
    return tmp_path


def write_manifest(folder: Path, manifest: object) -> None:
    (folder / "manifest.json").write_text(json.dumps(manifest))


def refusal(function: Callable[[], object]) -> str:
    with pytest.raises(StartError) as error:
        function()
    message = str(error.value)
    assert "\n" not in message
    return message


def check_all(artifact: Artifact) -> None:
    artifact.check_files(artifact.graphs)


class TestGoodArtifact:
    def test_every_field_is_the_manifests(self, folder: Path) -> None:
        artifact = load_artifact(folder)
        assert (artifact.name, artifact.revision, artifact.family) == ("mini", "53aa", "bert")
        assert (artifact.hidden_size, artifact.layer_count, artifact.head_count) == (2, 1, 1)
        assert (artifact.vocabulary_size, artifact.type_vocabulary_size) == (10, 2)
        assert (artifact.max_tokens, artifact.max_positions) == (8, 16)
        assert (artifact.pooling, artifact.normalize) == (Pooling.MEAN, True)
        assert artifact.prompts == {"query": "query: "}
        assert artifact.default_prompt_name == ""
        assert artifact.special_ids == {"pad": 0, "cls": 1}
        assert artifact.tokenizer_path == folder / "tokenizer.json"

    def test_graphs_are_found_by_kind_and_precision(self, folder: Path) -> None:
        graph = load_artifact(folder).graph("fused", "fp32")
        assert graph.path == folder / "encoder.fused.onnx"
        assert graph.fidelity == 0.9999998
        assert graph.external_data == ("weights.fp32.bin",)

    def test_its_files_are_whole(self, folder: Path) -> None:
        check_all(load_artifact(folder))

    def test_files_that_are_not_served_are_not_read(self, folder: Path) -> None:
        artifact = load_artifact(folder)
        (folder / "attention.fp32.onnx").unlink()
        artifact.check_files([artifact.graph("fused", "fp32")])

    def test_selfcheck(self, folder: Path) -> None:
        limits, (case,) = load_artifact(folder).load_selfcheck()
        assert limits == {"fp32": 0.99999}
        assert case.input_ids.tolist() == [1, 2, 0]
        assert case.attention_mask.tolist() == [1, 1, 0]
        assert case.token_type_ids.tolist() == [0, 0, 0]
        np.testing.assert_array_equal(case.pooled_mean, np.array([0.5, -0.5], np.float32))

    def test_a_default_prompt_is_one_of_its_prompts(self, folder: Path) -> None:
        write_manifest(folder, manifest_of(default_prompt_name="query"))
        assert load_artifact(folder).default_prompt_name == "query"


class TestBrokenFolder:
    def test_no_folder(self, tmp_path: Path) -> None:
        message = refusal(lambda: load_artifact(tmp_path / "nowhere"))
        assert message == (
            f"artifact {tmp_path / 'nowhere'} is not a folder; write one with `seqenc-model export`"
        )

    def test_a_file_in_its_place(self, folder: Path) -> None:
        assert "is not a folder" in refusal(lambda: load_artifact(folder / "manifest.json"))

    def test_no_manifest(self, tmp_path: Path) -> None:
        message = refusal(lambda: load_artifact(tmp_path))
        assert "manifest.json cannot be read (No such file or directory)" in message
        assert "`seqenc-model export`" in message


class TestBrokenManifest:
    @pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"schema_version": 1'])
    def test_not_json(self, folder: Path, content: bytes) -> None:
        (folder / "manifest.json").write_bytes(content)
        assert "manifest.json is not valid JSON" in refusal(lambda: load_artifact(folder))

    @pytest.mark.parametrize("content", [[], 1, "text", None])
    def test_not_an_object(self, folder: Path, content: object) -> None:
        write_manifest(folder, content)
        assert "manifest.json is not a JSON object" in refusal(lambda: load_artifact(folder))

    @pytest.mark.parametrize("version", [0, 2, "1", None])
    def test_another_schema(self, folder: Path, version: object) -> None:
        write_manifest(folder, manifest_of(schema_version=version))
        message = refusal(lambda: load_artifact(folder))
        assert f"has schema_version {version}, this server reads 1" in message

    @pytest.mark.parametrize("field", sorted(set(manifest_of()) - {"default_prompt_name", "tool_versions"}))
    def test_a_missing_field_is_named(self, folder: Path, field: str) -> None:
        manifest = manifest_of()
        del manifest[field]
        write_manifest(folder, manifest)
        assert field in refusal(lambda: load_artifact(folder))

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"pooling": "median"}, "median"),
            ({"hidden_size": "wide"}, "wide"),
            ({"hidden_size": None}, "NoneType"),
            ({"max_tokens": float("inf")}, "infinity"),
            ({"prompts": ["query"]}, "manifest.json is not a valid manifest"),
            ({"prompts": 3}, "manifest.json is not a valid manifest"),
            ({"special_ids": None}, "manifest.json is not a valid manifest"),
            ({"graphs": {"file": "x"}}, "manifest.json is not a valid manifest"),
            ({"graphs": [["x"]]}, "manifest.json is not a valid manifest"),
            ({"files": ["tokenizer.json"]}, "manifest.json is not a valid manifest"),
            ({"default_prompt_name": "passage"}, "default_prompt_name 'passage' is not one of its prompts"),
        ],
    )
    def test_a_field_that_cannot_be_used_is_refused(
        self, folder: Path, changes: Manifest, named: str
    ) -> None:
        write_manifest(folder, manifest_of(**changes))
        message = refusal(lambda: load_artifact(folder))
        assert named in message
        assert "`seqenc-model export`" in message

    @pytest.mark.parametrize("field", ["file", "precision", "kind", "fidelity", "sha256"])
    def test_a_missing_field_of_a_graph_is_named(self, folder: Path, field: str) -> None:
        manifest = manifest_of()
        del manifest["graphs"][0][field]
        write_manifest(folder, manifest)
        assert field in refusal(lambda: load_artifact(folder))

    @pytest.mark.parametrize("name", ["../encoder.onnx", "/etc/passwd", "folder/encoder.onnx"])
    def test_a_graph_outside_the_folder_is_refused(self, folder: Path, name: str) -> None:
        for change in ({"file": name}, {"external_data": [name]}):
            manifest = manifest_of()
            manifest["graphs"][0].update(change)
            write_manifest(folder, manifest)
            assert "leaves the artifact's folder" in refusal(lambda: load_artifact(folder))


class TestBrokenFiles:
    @pytest.mark.parametrize("name", sorted(FILES))
    def test_a_missing_file_is_named(self, folder: Path, name: str) -> None:
        (folder / name).unlink()
        message = refusal(lambda: check_all(load_artifact(folder)))
        assert f"{name} cannot be read (No such file or directory)" in message

    @pytest.mark.parametrize("name", sorted(FILES))
    def test_an_altered_file_is_named_with_both_checksums(self, folder: Path, name: str) -> None:
        (folder / name).write_bytes(b"altered")
        message = refusal(lambda: check_all(load_artifact(folder)))
        assert f"{name} has sha256 {sha256(b'altered')}" in message
        assert f"the manifest says {sha256(FILES[name])}" in message

    @pytest.mark.parametrize("name", ["tokenizer.json", "selfcheck.json", "weights.fp32.bin"])
    def test_a_file_without_a_checksum_is_named(self, folder: Path, name: str) -> None:
        manifest = manifest_of()
        manifest["files"] = [entry for entry in manifest["files"] if entry["file"] != name]
        write_manifest(folder, manifest)
        assert f"{name} is not in the manifest" in refusal(lambda: check_all(load_artifact(folder)))

    def test_a_folder_in_place_of_a_file(self, folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer.json").mkdir()
        assert "cannot be read (Is a directory)" in refusal(lambda: check_all(load_artifact(folder)))


class TestMissingGraph:
    def test_what_there_is_instead_is_listed(self, folder: Path) -> None:
        message = refusal(lambda: load_artifact(folder).graph("fused", "int8"))
        assert "has no fused int8 graph (it has fused fp32, attention fp32)" in message


class TestBrokenSelfcheck:
    @pytest.mark.parametrize(
        ("content", "named"),
        [
            ({}, "min_cosine"),
            ({"min_cosine": {"fp32": 1}}, "cases"),
            ({"min_cosine": [1], "cases": []}, "items"),
            ({"min_cosine": {"fp32": "high"}, "cases": []}, "high"),
            ({"min_cosine": {"fp32": 1}, "cases": []}, "no cases"),
            ({"min_cosine": {"fp32": 1}, "cases": [{"input_ids": [1]}]}, "attention_mask"),
            ({"min_cosine": {"fp32": 1}, "cases": [{"input_ids": ["a"]}]}, "'a'"),
        ],
    )
    def test_what_is_wrong_is_named(self, folder: Path, content: object, named: str) -> None:
        (folder / "selfcheck.json").write_text(json.dumps(content))
        message = refusal(lambda: load_artifact(folder).load_selfcheck())
        assert "selfcheck.json is not a valid self-check" in message
        assert named in message

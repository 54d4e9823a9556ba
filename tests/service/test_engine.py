"""The engine over graphs made by hand, and each thing that keeps it from starting."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from graph_artifact import TABLE, VOCABULARY_SIZE, pooled_mean, write_artifact
from service.core.artifact import Artifact, load_artifact
from service.core.collation import BatchArrays
from service.core.engine import Engine, EngineConfig, choose_graphs
from service.core.lanes import StopSignal
from service.core.selfcheck import check_engine
from service.core.sessions import Session, _check_computes_on_gpu, choose_provider, why_not
from service.core.warmup import warm_up
from service.errors import StartError
from service.types import Array


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return load_artifact(write_artifact(tmp_path_factory.mktemp("engine") / "table"))


@pytest.fixture(scope="module")
def engine(artifact: Artifact) -> Engine:
    return Engine(artifact, EngineConfig("cpu", "fp32", lanes=2))


def batch(size: int = 2, length: int = 5, seed: int = 0) -> BatchArrays:
    """Random ids, masks and types; the first token of each row is real."""
    random = np.random.default_rng(seed)
    ids, mask, types = (random.integers(0, top, (size, length)) for top in (VOCABULARY_SIZE, 2, 2))
    mask[:, 0] = 1
    return BatchArrays(ids, mask, types)


def expected(arrays: BatchArrays) -> Array:
    vectors: Array = pooled_mean(arrays.input_ids, arrays.attention_mask, arrays.token_type_ids)
    return vectors


def copy_of(artifact: Artifact, folder: Path) -> Artifact:
    return load_artifact(shutil.copytree(artifact.directory, folder / "copy"))


class TestRun:
    def test_outputs_are_those_asked_for(self, engine: Engine) -> None:
        arrays = batch(3, 7)
        outputs = engine.run("encoder", arrays, ["pooled_mean", "token_embeddings"])
        assert list(outputs) == ["pooled_mean", "token_embeddings"]
        np.testing.assert_allclose(outputs["pooled_mean"], expected(arrays), atol=1e-6)
        rows = TABLE[arrays.input_ids] + arrays.token_type_ids[..., None]
        np.testing.assert_allclose(outputs["token_embeddings"], rows, atol=1e-6)

    def test_maps_come_from_the_graph_that_has_them(self, engine: Engine) -> None:
        arrays = batch(2, 4)
        outputs = engine.run("attention", arrays, ["attentions_1", "pooled_mean"])
        np.testing.assert_allclose(outputs["pooled_mean"], expected(arrays), atol=1e-6)
        rows = np.broadcast_to(arrays.attention_mask[:, None, :], (2, 2, 4))
        np.testing.assert_allclose(outputs["attentions_1"].sum(-1), rows, atol=1e-6)

    @pytest.mark.parametrize("threads_per_lane", [1, 2])
    def test_lanes_side_by_side_give_what_each_gives_alone(
        self, artifact: Artifact, threads_per_lane: int
    ) -> None:
        engine = Engine(artifact, EngineConfig("cpu", "fp32", 2, threads_per_lane, attention_maps=False))
        batches = [batch(2, 3 + seed % 5, seed) for seed in range(40)]
        start = threading.Barrier(2)

        def run(place: int) -> list[dict[str, Array]]:
            start.wait()
            return [engine.run("encoder", arrays, ["pooled_mean"]) for arrays in batches[place::2]]

        with ThreadPoolExecutor(2) as lanes:
            both = list(lanes.map(run, range(2)))
        for place, results in enumerate(both):
            for arrays, result in zip(batches[place::2], results, strict=True):
                np.testing.assert_allclose(result["pooled_mean"], expected(arrays), atol=1e-6)

    def test_each_lane_has_a_session_of_its_own_when_it_has_several_threads(
        self, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One lane runs for long while the other runs many times: they never meet in one session."""
        engine = Engine(artifact, EngineConfig("cpu", "fp32", 2, threads_per_lane=2, attention_maps=False))
        started, end = threading.Event(), threading.Event()
        used: list[Session] = []
        run = Session.run

        def spy(session: Session, *arguments: Any) -> dict[str, Array]:
            used.append(session)
            if threading.current_thread() is not threading.main_thread():
                started.set()
                assert end.wait(60)
            return run(session, *arguments)

        monkeypatch.setattr(Session, "run", spy)
        with ThreadPoolExecutor(1) as lane:
            lane.submit(engine.run, "encoder", batch(), ["pooled_mean"])
            assert started.wait(60)
            for _ in range(3):
                engine.run("encoder", batch(), ["pooled_mean"])
            end.set()
        assert used[0] not in used[1:]

    def test_a_run_that_is_told_to_stop_ends_in_an_error(self, engine: Engine) -> None:
        stop = StopSignal()
        stop.give()
        with pytest.raises(Exception, match="terminate"):
            engine.run("encoder", batch(), ["pooled_mean"], stop)
        assert engine.run("encoder", batch(), ["pooled_mean"])

    def test_what_it_says_of_itself(self, engine: Engine) -> None:
        assert (engine.lanes, engine.precision, engine.provider) == (2, "fp32", "CPUExecutionProvider")
        assert (engine.compiles_shapes, engine.runs_on_gpu, engine.attention_maps) == (False, False, True)
        assert engine.encoder_graph.kind == "fused"

    def test_it_passes_its_self_check(self, engine: Engine, artifact: Artifact) -> None:
        assert check_engine(engine, artifact) >= 0.99999

    def test_warming_up_runs_every_shape(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        shapes = []
        run = engine.run

        def spy(graph: str, arrays: BatchArrays, output_names: list[str]) -> dict[str, Array]:
            shapes.append(arrays.input_ids.shape)
            return run("encoder", arrays, output_names)

        monkeypatch.setattr(engine, "run", spy)
        warm_up(engine, max_tokens=20, max_batch_tokens=32, multiple=8)
        assert sorted(shapes) == [(1, 8), (1, 16), (1, 24), (2, 8), (2, 16), (4, 8)]


class TestWithoutMaps:
    def test_the_graph_is_neither_chosen_nor_needed(self, artifact: Artifact, tmp_path: Path) -> None:
        copy = copy_of(artifact, tmp_path)
        (copy.directory / "attention.fp32.onnx").unlink()
        config = EngineConfig("cpu", "fp32", lanes=1, attention_maps=False)
        assert list(choose_graphs(copy, config)) == ["encoder"]
        assert not Engine(copy, config).attention_maps
        with pytest.raises(StartError, match=r"attention\.fp32\.onnx cannot be read"):
            Engine(copy, EngineConfig("cpu", "fp32", lanes=1))


class TestStart:
    def test_a_precision_that_was_not_exported_lists_what_was(
        self, artifact: Artifact, tmp_path: Path
    ) -> None:
        with pytest.raises(
            StartError, match=r"has no fused int8 graph \(it has fused fp32, attention fp32\)"
        ):
            Engine(artifact, EngineConfig("cpu", "int8", lanes=1))

    def test_missing_weights_are_named(self, artifact: Artifact, tmp_path: Path) -> None:
        copy = copy_of(artifact, tmp_path)
        (copy.directory / "weights.fp32.bin").unlink()
        with pytest.raises(StartError, match=r"weights\.fp32\.bin cannot be read"):
            Engine(copy, EngineConfig("cpu", "fp32", lanes=1))

    def test_a_graph_that_onnx_runtime_cannot_load_is_named(
        self, artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy = copy_of(artifact, tmp_path)
        copy.graph("fused", "fp32").path.write_bytes(b"not a graph")
        monkeypatch.setattr(Artifact, "check_files", lambda *_: None)
        with pytest.raises(StartError, match=r"CPUExecutionProvider cannot load .*fused.*\.onnx"):
            Engine(copy, EngineConfig("cpu", "fp32", lanes=1))


class TestProviders:
    @pytest.mark.parametrize("precision", ["fp32", "int8"])
    def test_the_cpu_computes_in_what_it_can(self, precision: str) -> None:
        assert why_not("cpu", precision) is None  # type: ignore[arg-type]
        assert choose_provider("cpu", precision) == "cpu"  # type: ignore[arg-type]

    def test_what_it_cannot_is_an_error_never_a_fall_back(self) -> None:
        with pytest.raises(StartError, match=r"--provider cpu with --precision fp16 .* fp32 or int8"):
            choose_provider("cpu", "fp16")

    def test_a_provider_that_is_not_installed_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
        with pytest.raises(StartError, match=r"--provider cuda .* has no CUDA"):
            choose_provider("cuda", "fp32")

    @pytest.mark.parametrize(
        ("installed", "devices", "flags", "reason"),
        [
            (None, [], [], "onnxruntime-ep-openvino is not installed"),
            (object(), [], [], "offers no device for this CPU"),
            (object(), ["CPU"], ["avx512f"], "this CPU has no AMX"),
            (object(), ["CPU"], ["amx_bf16"], None),
        ],
    )
    def test_what_openvino_needs_for_bf16(
        self,
        monkeypatch: pytest.MonkeyPatch,
        installed: object,
        devices: list[str],
        flags: list[str],
        reason: str | None,
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _: installed)
        monkeypatch.setattr("service.core.sessions._openvino_devices", lambda: devices)
        monkeypatch.setattr("service.core.sessions._cpu_flags", lambda: frozenset(flags))
        found = why_not("openvino", "bf16")
        assert found is reason or (found is not None and reason is not None and reason in found)

    def test_automatic_takes_the_fastest_that_is_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
        for installed, devices, chosen in ((both[1:], 1, "cpu"), (both, 1, "cuda"), (both, 0, "cpu")):
            monkeypatch.setattr("onnxruntime.get_available_providers", lambda found=installed: found)
            monkeypatch.setattr("service.core.sessions._count_cuda_devices", lambda count=devices: count)
            assert choose_provider("auto", "fp32") == chosen

    def test_cuda_without_a_device_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
        monkeypatch.setattr("service.core.sessions._count_cuda_devices", lambda: 0)
        with pytest.raises(StartError, match=r"--provider cuda .* no CUDA device"):
            choose_provider("cuda", "fp16")

    def test_what_computes_must_not_be_left_to_the_cpu(self, tmp_path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for node, refused in (("MatMul", True), ("Add", False)):
            model = onnx.parser.parse_model(
                f"""<ir_version: 10, opset_import: ["": 20]>
                graph (float[2, 2] x) => (float[2, 2] y) {{ y = {node}(x, x) }}"""
            )
            session = onnxruntime.InferenceSession(model.SerializeToString(), options)
            if refused:
                with pytest.raises(StartError, match=r"would run MatMul of .* on the CPU instead"):
                    _check_computes_on_gpu(session, tmp_path)
            else:
                _check_computes_on_gpu(session, tmp_path)

    def test_automatic_with_nothing_that_can_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
        with pytest.raises(StartError, match=r"no provider computes in fp16 here \(cuda: .*\)"):
            choose_provider("auto", "fp16")

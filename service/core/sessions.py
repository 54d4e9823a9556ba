"""ONNX Runtime sessions: which provider can run here, and its options. The only importer of onnxruntime.

A provider that was asked for and cannot run is a StartError, never a silent fall back.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from service.core.artifact import Artifact, Graph
from service.core.lanes import StopSignal
from service.errors import StartError
from service.types import Array

# ONNX Runtime would report to its makers, and keep an identifier of this machine in the home folder.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime as ort

Provider = Literal["cpu", "openvino", "cuda"]
Precision = Literal["fp32", "bf16", "int8", "fp16"]

# On the CPU these fused operators are slower than their parts: SkipLayerNormalization takes 5 times as long,
# BiasGelu a fifth longer.
_DISABLED_OPTIMIZERS = ["SkipLayerNormFusion", "BiasGeluFusion"]
_FATAL = 4
# Operators that must not be left to the CPU where CUDA was asked for.
_COMPUTING = {"MatMul", "FusedMatMul", "Gemm", "MultiHeadAttention", "Softmax", "LayerNormalization", "Gelu"}
_ORT_NAMES: dict[Provider, str] = {
    "cpu": "CPUExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cuda": "CUDAExecutionProvider",
}
# What each provider computes in, and the graph it runs for it: (kind, precision).
_GRAPHS: dict[Provider, dict[Precision, tuple[str, str]]] = {
    "cpu": {"fp32": ("fused", "fp32"), "int8": ("fused", "int8")},
    "openvino": {"fp32": ("plain", "fp32"), "bf16": ("plain", "fp32")},
    "cuda": {"fp32": ("plain", "fp32"), "fp16": ("fused", "fp16")},
}
# For `auto`, fastest first.
_PREFERENCE: dict[Precision, tuple[Provider, ...]] = {
    "fp32": ("cuda", "cpu"),
    "bf16": ("openvino",),
    "int8": ("cpu",),
    "fp16": ("cuda",),
}


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """`threads` of one batch on the CPU; `lanes` batches may run side by side; `device_id` of the GPU."""

    provider: Provider
    precision: Precision
    lanes: int
    threads: int
    device_id: int = 0


def choose_provider(provider: Provider | Literal["auto"], precision: Precision) -> Provider:
    """The provider asked for, or for `auto` the fastest that can compute in `precision` on this machine."""
    if provider != "auto":
        if reason := why_not(provider, precision):
            raise StartError(f"--provider {provider} with --precision {precision} cannot run here: {reason}")
        return provider
    reasons = {candidate: why_not(candidate, precision) for candidate in _PREFERENCE[precision]}
    for candidate, reason in reasons.items():
        if reason is None:
            return candidate
    listed = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items())
    raise StartError(f"no provider computes in {precision} here ({listed}); choose another --precision")


def why_not(provider: Provider, precision: Precision) -> str | None:
    """Why a provider cannot compute in a precision on this machine; None if it can."""
    if precision not in _GRAPHS[provider]:
        return f"it computes in {' or '.join(_GRAPHS[provider])}"
    if provider == "openvino":
        return _why_not_openvino(precision)
    if _ORT_NAMES[provider] not in ort.get_available_providers():
        return "this onnxruntime has no CUDA; install seqenc with the extra `gpu` in place of `cpu`"
    if provider == "cuda" and not _count_cuda_devices():
        return "the driver shows no CUDA device; check `nvidia-smi`"
    return None


def encoder_graph(artifact: Artifact, provider: Provider, precision: Precision) -> Graph:
    return artifact.graph(*_GRAPHS[provider][precision])


def ort_name(provider: Provider) -> str:
    return _ORT_NAMES[provider]


class Session:
    """One loaded graph; `run` may be called on several threads at once."""

    def __init__(self, graph: Graph, config: SessionConfig) -> None:
        self._cuda_device = config.device_id if config.provider == "cuda" else None
        # The session reads them in place for as long as it lives.
        self._scattered = _map_scattered(graph)
        try:
            self._session = _create(graph.path, config, self._scattered)
        except Exception as error:
            advice = "; copy the artifact's files into one folder" if self._scattered else ""
            raise StartError(
                f"{_ORT_NAMES[config.provider]} cannot load {graph.path}: {error}{advice}"
            ) from error
        if self._session.get_providers()[0] != _ORT_NAMES[config.provider]:
            raise StartError(
                f"ONNX Runtime would run {graph.path} on {self._session.get_providers()[0]} instead of "
                f"--provider {config.provider}; check its driver and libraries"
            )
        if config.provider == "cuda":
            _check_computes_on_gpu(self._session, graph.path)

    def run(
        self, output_names: Sequence[str], inputs: dict[str, Array], stop: StopSignal
    ) -> dict[str, Array]:
        options = ort.RunOptions()
        stop.on_stop(lambda: setattr(options, "terminate", True))
        if self._cuda_device is not None:
            return self._run_bound(output_names, inputs, self._cuda_device, options)
        outputs = self._session.run(list(output_names), inputs, options)
        return dict(zip(output_names, outputs, strict=True))

    def _run_bound(
        self,
        output_names: Sequence[str],
        inputs: dict[str, Array],
        device_id: int,
        options: ort.RunOptions,
    ) -> dict[str, Array]:
        """Outputs stay on the device until the run is over and leave it in one copy each."""
        binding = self._session.io_binding()
        for name, values in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(values, "cuda", device_id))
        for name in output_names:
            binding.bind_output(name, "cuda", device_id)
        self._session.run_with_iobinding(binding, options)
        arrays = (np.asarray(value, np.float32) for value in binding.copy_outputs_to_cpu())
        return dict(zip(output_names, arrays, strict=True))


def _map_scattered(graph: Graph) -> dict[str, mmap.mmap]:
    """Map the external data that a link keeps outside the folder of the graph's own file.

    ONNX Runtime maps what is inside that folder by itself and refuses the rest.
    """
    folder = graph.path.resolve().parent
    mapped = {}
    for name in graph.external_data:
        path = graph.path.with_name(name)
        if not path.resolve().is_relative_to(folder):
            with path.open("rb") as file:
                mapped[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return mapped


def _create(
    path: Path, config: SessionConfig, external_data: Mapping[str, mmap.mmap]
) -> ort.InferenceSession:
    """`external_data` by file name, where ONNX Runtime is not to look for it in the graph's folder."""
    options = ort.SessionOptions()
    if external_data:
        sizes = [len(content) for content in external_data.values()]
        options.add_external_initializers_from_files_in_memory(
            list(external_data), list(external_data.values()), sizes
        )
        # Versions before 1.32 do not know this and copy the weights for each session.
        options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")
    options.intra_op_num_threads = config.threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = _FATAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Exact int8 products: without VNNI the faster ones overflow 16 bits in silence. No effect where VNNI is.
    options.add_session_config_entry("session.x64quantprecision", "1")
    if config.provider == "cpu":
        return ort.InferenceSession(
            path,
            sess_options=options,
            providers=[_ORT_NAMES["cpu"]],
            disabled_optimizers=_DISABLED_OPTIMIZERS,
        )
    if config.provider == "openvino":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.add_provider_for_devices(_openvino_devices(), _openvino_options(config))
        return ort.InferenceSession(path, sess_options=options)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    cuda = {"device_id": config.device_id, "use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}
    return ort.InferenceSession(path, sess_options=options, providers=[(_ORT_NAMES["cuda"], cuda)])


def _check_computes_on_gpu(session: Any, path: Path) -> None:
    """Raises StartError when ONNX Runtime left a node that computes to the CPU.

    `session.disable_cpu_ep_fallback` is of no use here: it refuses the shape nodes that belong there.
    """
    on_cpu = {
        node.op_type
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
        if part.ep_name == _ORT_NAMES["cpu"] and node.op_type in _COMPUTING
    }
    if on_cpu:
        raise StartError(
            f"ONNX Runtime would run {', '.join(sorted(on_cpu))} of {path} on the CPU instead of CUDA"
        )


def _openvino_options(config: SessionConfig) -> dict[str, str]:
    """One stream for each lane, so that one session serves the lanes side by side."""
    hint = {"fp32": "f32", "bf16": "bf16"}[config.precision]
    properties = {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": str(config.lanes * config.threads),
        "NUM_STREAMS": str(config.lanes),
    }
    return {"load_config": json.dumps({"CPU": properties})}


def _why_not_openvino(precision: Precision) -> str | None:
    if importlib.util.find_spec("onnxruntime_ep_openvino") is None:
        return "onnxruntime-ep-openvino is not installed; install seqenc with the extra `openvino`"
    if not _openvino_devices():
        return "its plug-in offers no device for this CPU; it runs on Intel processors"
    if precision == "bf16" and "amx_bf16" not in _cpu_flags():
        return "this CPU has no AMX, which bf16 needs; choose --precision fp32"
    return None


@cache
def _openvino_devices() -> list[Any]:
    plugin = importlib.import_module("onnxruntime_ep_openvino")
    name = _ORT_NAMES["openvino"]
    ort.register_execution_provider_library(name, plugin.get_library_path())
    cpu = ort.OrtHardwareDeviceType.CPU
    return [device for device in ort.get_ep_devices() if device.ep_name == name and device.device.type == cpu]


@cache
def _count_cuda_devices() -> int:
    """As NVIDIA's driver counts them (cuInit, cuDeviceGetCount); 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


@cache
def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.split())

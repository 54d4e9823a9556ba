"""Settings -> how the engine is set up on this machine; the same for servers and jobs."""

from __future__ import annotations

from typing import Literal, Protocol

from service.core.cores import count_usable_cores
from service.core.engine import EngineConfig
from service.core.sessions import Precision, Provider, choose_provider

# More tokens in a batch gain nothing on a CPU core.
_CPU_BATCH_TOKENS = 512
_CUDA_BATCH_TOKENS = 16_384
# One batch computes while the next is made ready.
_CUDA_LANES = 2


class EngineSettings(Protocol):
    @property
    def provider(self) -> Provider | Literal["auto"]: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def device_id(self) -> int: ...
    @property
    def lanes(self) -> int | Literal["auto"]: ...
    @property
    def threads_per_lane(self) -> int: ...
    @property
    def max_batch_tokens(self) -> int | Literal["auto"]: ...


def choose_engine(settings: EngineSettings, *, attention_maps: bool) -> EngineConfig:
    """Raises StartError where what is asked for cannot run here."""
    provider = choose_provider(settings.provider, settings.precision)
    threads = settings.threads_per_lane
    if settings.lanes != "auto":
        lanes = settings.lanes
    elif provider == "cuda":
        lanes = _CUDA_LANES
    else:
        lanes = max(1, count_usable_cores() // threads)
    return EngineConfig(provider, settings.precision, lanes, threads, attention_maps, settings.device_id)


def choose_batch_tokens(settings: EngineSettings, config: EngineConfig) -> int:
    if settings.max_batch_tokens != "auto":
        return settings.max_batch_tokens
    return _CUDA_BATCH_TOKENS if config.provider == "cuda" else _CPU_BATCH_TOKENS

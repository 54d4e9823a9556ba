"""Settings -> a pipeline that is loaded, checked and warm."""

from __future__ import annotations

import logging

from service.config import ServeSettings
from service.core.artifact import Artifact, load_artifact
from service.core.batcher import Batcher, BatcherConfig
from service.core.cores import count_usable_cores
from service.core.engine import Engine, EngineConfig, choose_graphs
from service.core.memory import check_memory, plan_memory, read_memory_limit
from service.core.pipeline import Pipeline, PipelineConfig
from service.core.planner import Planner
from service.core.selfcheck import check_engine
from service.core.tokenizer import Tokenizer
from service.core.warmup import COMPILED_MULTIPLE, warm_up
from service.engine_setup import choose_batch_tokens, choose_engine
from service.logs import log_event
from service.metrics import Metrics
from service.tuning import load_tuning

logger = logging.getLogger(__name__)


def build_pipeline(settings: ServeSettings, metrics: Metrics) -> Pipeline:
    """Loads the artifact, checks that this machine computes its vectors right, and warms up."""
    artifact = load_artifact(settings.artifact)
    if settings.tuning:
        load_tuning(settings.tuning).check(
            settings.tuning, revision=artifact.revision, cores=count_usable_cores()
        )
    config = choose_engine(settings, attention_maps=settings.attention_maps)
    budget = choose_batch_tokens(settings, config)
    _check_memory(settings, artifact, config, budget)
    engine = Engine(artifact, config)
    tokenizer = Tokenizer(artifact.tokenizer_path)
    worst = check_engine(engine, artifact)
    log_event(logger, logging.INFO, "self-check passed", worst_cosine=round(worst, 7), lanes=engine.lanes)
    if engine.compiles_shapes:
        warm_up(engine, max_tokens=artifact.max_tokens, max_batch_tokens=budget, multiple=COMPILED_MULTIPLE)
    metrics.model_info.labels(artifact.name, artifact.revision, engine.provider, engine.precision).set(1)
    multiple = COMPILED_MULTIPLE if engine.compiles_shapes else 1
    batcher = Batcher(
        engine,
        Planner(
            max_batch_tokens=budget,
            max_batch_cells=settings.max_batch_map_cells,
            length_multiple=multiple,
            powers_of_two=engine.compiles_shapes,
        ),
        _batcher_config(settings, artifact, multiple),
        metrics,
    )
    return Pipeline(artifact, tokenizer, batcher, _pipeline_config(settings, engine), metrics)


def _check_memory(settings: ServeSettings, artifact: Artifact, config: EngineConfig, budget: int) -> None:
    """Logs the worst load, and refuses it when it does not fit."""
    limit = read_memory_limit() if settings.memory_limit_bytes == "auto" else settings.memory_limit_bytes
    plan = plan_memory(
        artifact,
        list(choose_graphs(artifact, config).values()),
        lanes=config.lanes,
        max_batch_tokens=budget,
        max_batch_cells=settings.max_batch_map_cells,
        max_queued_tokens=settings.max_queued_tokens,
        max_message_bytes=settings.max_message_bytes,
        on_gpu=config.provider == "cuda",
    )
    log_event(logger, logging.INFO, "memory planned", worst_bytes=plan.total, limit_bytes=limit)
    check_memory(plan, limit)


def _batcher_config(settings: ServeSettings, artifact: Artifact, multiple: int) -> BatcherConfig:
    return BatcherConfig(
        max_queued_inputs=settings.max_queued_inputs,
        max_queued_tokens=settings.max_queued_tokens,
        hidden_size=artifact.hidden_size,
        head_count=artifact.head_count,
        pad_id=artifact.special_ids.get("pad", 0),
        length_multiple=multiple,
        run_timeout_s=settings.run_timeout_s,
    )


def _pipeline_config(settings: ServeSettings, engine: Engine) -> PipelineConfig:
    return PipelineConfig(
        max_inputs=settings.max_inputs,
        max_text_characters=settings.max_text_characters,
        max_message_bytes=settings.max_message_bytes,
        precision=engine.precision,
        provider=engine.provider,
        fidelity=engine.encoder_graph.fidelity,
        attention_maps=engine.attention_maps,
    )

"""Settings -> the encoder they ask for."""

from __future__ import annotations

import logging

from service.core.artifact import Artifact, load_artifact
from service.core.engine import Engine, EngineConfig
from service.core.selfcheck import check_engine
from service.core.tokenizer import Tokenizer
from service.core.validation import Plan, plan_call
from service.core.warmup import COMPILED_MULTIPLE
from service.engine_setup import choose_batch_tokens, choose_engine
from service.errors import InvalidInputError
from service.job_settings import JobSettings
from service.jobs.encode_local import LocalEncoder, Packing, describe_model, describe_vectors
from service.jobs.encode_remote import RemoteEncoder
from service.jobs.encoded import Encoder, Model, VectorShape
from service.jobs.errors import JobError
from service.logs import log_event
from service.types import DataType, EncodeOptions, Pooling, Truncation

logger = logging.getLogger(__name__)


def build_encoder(settings: JobSettings) -> Encoder:
    if settings.artifact is None:
        return RemoteEncoder(settings)
    return build_local_encoder(settings)


def describe_artifact(settings: JobSettings) -> tuple[Model, VectorShape]:
    """What a LocalEncoder of these settings would be, without loading its engine."""
    artifact, plan = _load(settings)
    model = describe_model(artifact, plan, settings.precision, {"encoded by": settings.engine})
    return model, describe_vectors(artifact, plan)


def build_local_encoder(settings: JobSettings) -> LocalEncoder:
    """Checks that this machine computes the model's vectors right. Raises JobError or StartError."""
    artifact, plan = _load(settings)
    config = choose_engine(settings, attention_maps=False)
    engine = Engine(artifact, config)
    worst = check_engine(engine, artifact)
    log_event(logger, logging.INFO, "self-check passed", worst_cosine=round(worst, 7), lanes=engine.lanes)
    packing = _packing(settings, engine, config)
    details: dict[str, str | int] = {
        "provider": config.provider,
        "threads_per_lane": config.threads_per_lane,
        "max_batch_tokens": packing.max_batch_tokens,
    }
    tokenizer = Tokenizer(artifact.tokenizer_path)
    return LocalEncoder(artifact, tokenizer, engine, plan, packing=packing, details=details)


def _load(settings: JobSettings) -> tuple[Artifact, Plan]:
    assert settings.artifact is not None  # noqa: S101
    artifact = load_artifact(settings.artifact)
    if settings.expected_revision not in ("", artifact.revision):
        raise JobError(
            f"the model has revision {artifact.revision}, --expected-revision is "
            f"{settings.expected_revision}; use the model that the other vectors were made with"
        )
    try:
        return artifact, plan_call(_options(settings), artifact, attention_maps=False)
    except InvalidInputError as error:
        raise JobError(str(error)) from error


def _options(settings: JobSettings) -> EncodeOptions:
    return EncodeOptions(
        pooling=None if settings.pooling is None else Pooling(settings.pooling),
        normalize=settings.normalize,
        dimensions=settings.dimensions,
        embedding_type=DataType(settings.type),
        truncation=Truncation(settings.truncation),
        max_tokens=settings.max_tokens,
        prompt_name=settings.prompt_name or "",
        prompt=settings.prompt or "",
        token_embeddings=settings.token_embeddings,
    )


def _packing(settings: JobSettings, engine: Engine, config: EngineConfig) -> Packing:
    compiles = engine.compiles_shapes
    multiple = COMPILED_MULTIPLE if compiles else 1
    return Packing(choose_batch_tokens(settings, config), multiple, powers_of_two=compiles)

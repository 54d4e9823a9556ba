"""Wires a job: its input, its folder, and what encodes it."""

from __future__ import annotations

from contextlib import closing

from service.job_settings import JobSettings
from service.jobs.build_encoder import build_encoder, describe_artifact
from service.jobs.dry_run import print_plan
from service.jobs.encode_block import encode_blocks
from service.jobs.input import open_input
from service.jobs.run import DONE, open_folder, run_job
from service.jobs.shards import cut_blocks, plan_shards
from service.jobs.table import build_layout


def dry_run(settings: JobSettings) -> int:
    source = open_input(settings)
    with closing(build_encoder(settings)) as encoder:
        print_plan(settings, source, encoder)
    return DONE


def run_local(settings: JobSettings) -> int:
    """In this process, or on servers."""
    source = open_input(settings)
    folder = open_folder(settings)
    with folder.locked(), closing(build_encoder(settings)) as encoder:
        layout = build_layout(source.schema, source.selection, encoder.shape, encoder.model)
        plan = plan_shards(settings.rows_per_shard, encoder.model, encoder.shape)
        return run_job(
            settings,
            source,
            folder,
            encoder.model,
            layout,
            lambda choice: encode_blocks(
                encoder, layout, cut_blocks(source.read(choice.wants), source.schema, plan, choice)
            ),
        )


def run_ray(settings: JobSettings) -> int:
    """On a Ray cluster; this process reads the heads of the files and writes the output."""
    from service.jobs.encode_ray import RayPool

    source = open_input(settings)
    folder = open_folder(settings)
    model, shape = describe_artifact(settings)
    layout = build_layout(source.schema, source.selection, shape, model)
    with folder.locked(), closing(RayPool(settings)) as pool:
        return run_job(
            settings,
            source,
            folder,
            model,
            layout,
            lambda choice: pool.encode(source, layout, model, choice),
        )

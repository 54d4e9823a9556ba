"""From starting over serving to drained."""

from __future__ import annotations

from typing import cast

import pytest

from service.api.lifecycle import Lifecycle
from service.core.pipeline import Pipeline
from service.errors import DrainingError, NotReadyError


class FakePipeline:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pipeline() -> FakePipeline:
    return FakePipeline()


@pytest.fixture
def serving(pipeline: FakePipeline) -> Lifecycle:
    lifecycle = Lifecycle()
    lifecycle.serve(cast(Pipeline, pipeline))
    return lifecycle


def test_starting() -> None:
    lifecycle = Lifecycle()
    assert (lifecycle.is_serving, lifecycle.is_draining) == (False, False)
    with pytest.raises(NotReadyError):
        _ = lifecycle.pipeline
    lifecycle.close()


def test_serving(serving: Lifecycle, pipeline: FakePipeline) -> None:
    assert (serving.is_serving, serving.is_draining) == (True, False)
    assert cast(FakePipeline, serving.pipeline) is pipeline


def test_leaving_still_serves_who_comes(serving: Lifecycle, pipeline: FakePipeline) -> None:
    serving.leave()
    assert (serving.is_serving, serving.is_draining) == (False, True)
    assert cast(FakePipeline, serving.pipeline) is pipeline


def test_drained(serving: Lifecycle, pipeline: FakePipeline) -> None:
    serving.drain()
    assert (serving.is_serving, serving.is_draining) == (False, True)
    with pytest.raises(DrainingError):
        _ = serving.pipeline
    serving.close()
    assert pipeline.closed


def test_stopped_before_it_was_ready() -> None:
    lifecycle = Lifecycle()
    lifecycle.drain()
    with pytest.raises(DrainingError):
        _ = lifecycle.pipeline

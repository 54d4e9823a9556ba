"""Whether calls are served: starting, serving or draining, and the pipeline once there is one."""

from __future__ import annotations

import asyncio

from service.core.pipeline import Pipeline
from service.errors import DrainingError, NotReadyError


class Lifecycle:
    """`draining` is set when calls that have not begun are refused."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self._pipeline: Pipeline | None = None
        self._leaving = False

    @property
    def is_serving(self) -> bool:
        """Whether new callers should come."""
        return self._pipeline is not None and not self._leaving

    @property
    def is_draining(self) -> bool:
        return self._leaving

    @property
    def pipeline(self) -> Pipeline:
        """Raises NotReadyError or DrainingError unless calls are served."""
        if self.draining.is_set():
            raise DrainingError
        if self._pipeline is None:
            raise NotReadyError
        return self._pipeline

    def serve(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def leave(self) -> None:
        """From here on readiness sends callers elsewhere; those that come are still served."""
        self._leaving = True

    def drain(self) -> None:
        """From here on calls that have not begun are refused."""
        self._leaving = True
        self.draining.set()

    def abandon(self) -> None:
        """Answers every call in work with DrainingError."""
        if self._pipeline:
            self._pipeline.abandon()

    def close(self) -> None:
        """Lets go of the pipeline's threads, once no call is left."""
        if self._pipeline:
            self._pipeline.close()

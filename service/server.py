"""Wires a server from its settings and runs it from start to drained."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar

from service.api.grpc_server import GrpcServer
from service.api.http import HttpServer
from service.api.lifecycle import Lifecycle
from service.config import ServeSettings
from service.core.pipeline import Pipeline
from service.errors import StartError
from service.logs import configure_logging, log_event
from service.metrics import Metrics
from service.tuning import load_tuning
from service.wiring import build_pipeline

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_FORCED_EXIT_STATUS = 130
_LOST_EXIT_STATUS = 70
_LAST_ANSWERS_S = 1.0


def run_server(settings: ServeSettings) -> int:
    configure_logging(settings.log_format, settings.log_level)
    if settings.tuning:
        settings = load_tuning(settings.tuning).apply(settings)
    asyncio.run(serve(settings))
    return 0


async def serve(settings: ServeSettings) -> None:
    """Return once the server has drained after SIGTERM, SIGINT or SIGHUP; raise StartError.

    A thread that loads the model may still run then; `seqenc_process` ends the process under it.
    """
    log_event(logger, logging.INFO, "starting", **settings.model_dump(mode="json"))
    metrics, lifecycle = Metrics(), Lifecycle()
    stop = _stop_on_signals()
    grpc_server = GrpcServer(settings, lifecycle, metrics)
    http_server = HttpServer(settings.http_address, lifecycle, metrics)
    try:
        await grpc_server.start()
        await http_server.start()
        if pipeline := await _load(settings, metrics, stop):
            lifecycle.serve(pipeline)
            _spare_the_collector()
            grpc_server.set_serving(True)
            log_event(logger, logging.INFO, "ready", **_served(pipeline))
            await _first_of(_stop_and_drain(stop, settings, grpc_server, lifecycle), pipeline.lost.wait())
            if pipeline.lost.is_set():
                await _end_at_once(pipeline, grpc_server, lifecycle)
            await _end_if_stuck(pipeline)
        else:
            # It was never SERVING, so no client has to notice that it leaves.
            log_event(logger, logging.INFO, "stopped before it was ready")
    finally:
        await grpc_server.stop(0)
        await http_server.stop()


async def _load(settings: ServeSettings, metrics: Metrics, stop: asyncio.Event) -> Pipeline | None:
    """The pipeline, warmed up; None when the server was told to stop before it was ready."""
    loading = asyncio.ensure_future(_in_daemon_thread(lambda: build_pipeline(settings, metrics)))
    stopping = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait(
        {loading, stopping}, timeout=settings.warmup_timeout_s, return_when=asyncio.FIRST_COMPLETED
    )
    stopping.cancel()
    if not done:
        raise StartError(
            f"loading and warming up took longer than {settings.warmup_timeout_s} s; raise --warmup-timeout-s"
        )
    return loading.result() if loading in done else None


def _spare_the_collector() -> None:
    """What is loaded lives as long as the process: later collections, which stop all calls, pass it over."""
    gc.collect()
    gc.freeze()


def _served(pipeline: Pipeline) -> dict[str, str]:
    model, config = pipeline.model, pipeline.config
    return {
        "model": model.name,
        "revision": model.revision,
        "provider": config.provider,
        "precision": config.precision,
    }


async def _stop_and_drain(
    stop: asyncio.Event, settings: ServeSettings, grpc_server: GrpcServer, lifecycle: Lifecycle
) -> None:
    await stop.wait()
    await _drain(settings, grpc_server, lifecycle)


async def _drain(settings: ServeSettings, grpc_server: GrpcServer, lifecycle: Lifecycle) -> None:
    """NOT_SERVING, a delay in which clients notice, no new calls, and the admitted ones finish in time.

    Those that do not are answered UNAVAILABLE, which the caller of a call that gRPC cuts off may not see.
    """
    grpc_server.set_serving(False)
    lifecycle.leave()
    log_event(logger, logging.INFO, "draining", delay_s=settings.drain_delay_s)
    await asyncio.sleep(settings.drain_delay_s)
    lifecycle.drain()
    cut_off = asyncio.get_running_loop().call_later(settings.drain_timeout_s, lifecycle.abandon)
    await grpc_server.stop(settings.drain_timeout_s + _LAST_ANSWERS_S)
    cut_off.cancel()
    lifecycle.close()
    log_event(logger, logging.INFO, "stopped")


async def _end_if_stuck(pipeline: Pipeline) -> None:
    """A run that outlasts the drain would keep an ordinary exit waiting for its thread."""
    try:
        await asyncio.wait_for(pipeline.quiet.wait(), _LAST_ANSWERS_S)
    except TimeoutError:
        log_event(logger, logging.CRITICAL, "a batch outlasted the drain; ending without it")
        os._exit(_LOST_EXIT_STATUS)


async def _first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Ends with the first that ends, and raises what it raised; the others are cancelled."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for task in done:
        task.result()


async def _end_at_once(pipeline: Pipeline, grpc_server: GrpcServer, lifecycle: Lifecycle) -> NoReturn:
    """A lane is lost: what waits is answered UNAVAILABLE, and the process ends for its supervisor."""
    lifecycle.drain()
    grpc_server.set_serving(False)
    pipeline.abandon()
    await grpc_server.stop(_LAST_ANSWERS_S)
    log_event(logger, logging.CRITICAL, "a lane is lost; ending, to be restarted by the supervisor")
    # The lost lane's thread would keep an ordinary exit waiting.
    os._exit(_LOST_EXIT_STATUS)


def _stop_on_signals() -> asyncio.Event:
    """An event set by the first SIGTERM, SIGINT or SIGHUP; a second one ends the process at once.

    SIGHUP has nothing to reload, as certificates and tokens are re-read when they change.
    """
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(_FORCED_EXIT_STATUS)
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, on_signal)
    loop.add_signal_handler(signal.SIGINT, on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` asks
        loop.add_signal_handler(signal.SIGHUP, on_signal)
    return stop


async def _in_daemon_thread(function: Callable[[], Result]) -> Result:
    """Runs on a thread that does not keep the process from ending."""
    future: Future[Result] = Future()
    # The thread cannot be stopped, so its result must not be refused either.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="loader", daemon=True).start()
    return await asyncio.wrap_future(future)

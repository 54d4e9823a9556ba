"""The gRPC address: which services it has, its limits, and the health it reports, there and to probes."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service.api import encode, health, open_inference
from service.api.allowance import Allowance
from service.api.credentials import load_credentials
from service.api.handlers import RefuseUndecodable
from service.api.interceptors import LimitCalls, RequireToken
from service.api.lifecycle import Lifecycle
from service.api.observation import Observer, Tracing
from service.api.request_log import RequestLog
from service.api.tokens import load_tokens
from service.api.transport import transport_options
from service.config import ServeSettings
from service.errors import StartError
from service.logs import log_event
from service.metrics import Metrics

logger = logging.getLogger(__name__)
_LAST_STEPS_S = 1.0
_HEALTH_NAMES = ("", encode.SERVICE_NAME, open_inference.SERVICE_NAME)


class GrpcServer:
    """Health is NOT_SERVING until `set_serving(True)`; to probes it answers until all calls have ended.

    Once started, `address` and `health_address` have the ports that were taken for port 0.
    """

    def __init__(self, settings: ServeSettings, lifecycle: Lifecycle, metrics: Metrics) -> None:
        self.address = settings.grpc_address
        self.health_address = settings.health_address
        self._settings = settings
        self._credentials = load_credentials(settings)
        self._health = health.HealthServicer(_HEALTH_NAMES)
        self._observer = _build_observer(settings, metrics)
        self._calls = LimitCalls(settings.max_concurrent_calls, self._observer)
        gates = _gates(settings, self._observer)
        self._server = self._build_server([*gates, self._calls, RefuseUndecodable()])
        self._add_services(lifecycle, metrics)
        self._probes = self._build_server([RefuseUndecodable()]) if settings.health_address else None

    def _build_server(self, interceptors: list[Any]) -> grpc.aio.Server:
        """With health alone."""
        server = grpc.aio.server(interceptors=interceptors, options=transport_options(self._settings))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server

    def _add_services(self, lifecycle: Lifecycle, metrics: Metrics) -> None:
        allowance = Allowance(self._settings, metrics)
        inflight = self._settings.max_stream_inflight
        encoder = encode.EncoderService(lifecycle, self._observer, allowance, max_stream_inflight=inflight)
        encoder.register(self._server)
        open_inference.OpenInferenceService(lifecycle, self._observer, allowance).register(self._server)
        if self._settings.reflection:
            names = (*_HEALTH_NAMES[1:], health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)

    async def start(self) -> None:
        self.address = await _start(self._server, "--grpc-address", self.address, self._credentials)
        tls = self._credentials is not None
        log_event(logger, logging.INFO, "listening", grpc_address=self.address, tls=tls)
        if self._probes and self.health_address:
            self.health_address = await _start(self._probes, "--health-address", self.health_address)
            log_event(logger, logging.INFO, "listening", health_address=self.health_address)

    def set_serving(self, serving: bool) -> None:
        self._health.set_serving(serving)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls and gives those that run `grace_s` seconds to finish."""
        self._health.close()
        await self._server.stop(grace_s)
        # Those that were cut off are told so by then, but their tasks have not ended.
        await self._calls.wait_for_ends(_LAST_STEPS_S)
        if self._probes:
            await self._probes.stop(0)
        await asyncio.to_thread(self._observer.close)


def _build_observer(settings: ServeSettings, metrics: Metrics) -> Observer:
    log = RequestLog(settings.log_sample_rate, settings.slow_call_s)
    return Observer(metrics, log, _load_tracing(settings.otlp_endpoint) if settings.otlp_endpoint else None)


def _load_tracing(endpoint: str) -> Tracing:
    try:
        from service.api.tracing import OtlpTracing

        return OtlpTracing(endpoint)
    except ModuleNotFoundError as error:
        raise StartError(f"--otlp-endpoint needs the extra otel ({error}): install seqenc[otel]") from error
    except Exception as error:  # OpenTelemetry's own errors for variables that it cannot use
        raise StartError(
            f"--otlp-endpoint: {error}; correct the variable OTEL_… of the environment"
        ) from error


def _gates(settings: ServeSettings, observer: Observer) -> list[RequireToken]:
    """What a call passes first."""
    if not settings.tokens_file:
        return []
    if not settings.tls_certificate:
        log_event(
            logger, logging.WARNING, "bearer tokens travel in plaintext; add --tls-certificate or a proxy"
        )
    return [RequireToken(load_tokens(settings.tokens_file), observer)]


async def _start(
    server: grpc.aio.Server, flag: str, address: str, credentials: grpc.ServerCredentials | None = None
) -> str:
    """Returns the address with the port that it got; raises StartError."""
    try:
        if credentials:
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise StartError(f"{flag} {address} cannot be used: {_why_not(address)}") from error
    await server.start()
    return f"{address.rpartition(':')[0]}:{port}"


def _why_not(address: str) -> str:
    """gRPC does not say why it cannot listen; the operating system does."""
    host, _, port = address.rpartition(":")
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
                probe.listen()
    except OSError as error:
        return f"{error.strerror}; choose a free host:port of this machine"
    return "the port is free, but gRPC refuses the address or its TLS files; GRPC_VERBOSITY=error says why"

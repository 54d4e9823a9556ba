"""Limits that gRPC itself keeps: sizes of messages and metadata, and the calls and life of a connection."""

from __future__ import annotations

from service.config import ServeSettings

# A peer that sends nothing is asked whether it lives, and let go when it does not answer.
_KEEPALIVE_INTERVAL_S = 60.0
_KEEPALIVE_TIMEOUT_S = 20.0
# From the connection to the client's first HTTP/2 frame, TLS included.
_HANDSHAKE_TIMEOUT_S = 10.0

Option = tuple[str, int]


def transport_options(settings: ServeSettings) -> list[Option]:
    return [
        # A second server on the same port is refused, not given half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        # Replies are bounded before they are computed.
        ("grpc.max_send_message_length", -1),
        # Between the two gRPC refuses at random.
        ("grpc.max_metadata_size", settings.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", settings.max_metadata_bytes),
        ("grpc.max_concurrent_streams", settings.max_streams_per_connection),
        ("grpc.server_handshake_timeout_ms", _milliseconds(_HANDSHAKE_TIMEOUT_S)),
        ("grpc.keepalive_time_ms", _milliseconds(_KEEPALIVE_INTERVAL_S)),
        ("grpc.keepalive_timeout_ms", _milliseconds(_KEEPALIVE_TIMEOUT_S)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(settings.min_ping_interval_s)),
        *_limit("grpc.max_connection_age_ms", settings.max_connection_age_s),
        *_limit("grpc.max_connection_age_grace_ms", settings.max_connection_age_grace_s),
        *_limit("grpc.max_connection_idle_ms", settings.max_connection_idle_s),
    ]


def _limit(name: str, seconds: float) -> list[Option]:
    """None for 0, which means no limit."""
    return [(name, _milliseconds(seconds))] if seconds else []


def _milliseconds(seconds: float) -> int:
    """At least 1, at most what gRPC can hold."""
    return min(max(1, round(1000 * seconds)), (1 << 31) - 1)

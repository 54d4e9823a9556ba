"""Where and how to connect: addresses, TLS, tokens, the channel's settings; the same for sync and async."""

from __future__ import annotations

import ipaddress
import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeAlias, TypeVar

import grpc
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from seqenc.certificates import CertificateError, PemFile, check_pair, check_roots
from seqenc.errors import SeqencError
from seqenc.proxy import proxy_variable
from seqenc.types import Tls
from seqenc.v1 import encoder_pb2_grpc

logger = logging.getLogger(__name__)
T = TypeVar("T")
Address: TypeAlias = str | Sequence[str]

CHANNEL_OPTIONS = (
    # Over all addresses of a name. Names do not get to choose another policy.
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
    ("grpc.service_config_disable_resolution", 1),
    # The server knows the size of a reply before it computes it and keeps to its own limit.
    ("grpc.max_receive_message_length", -1),
    # A dead connection is noticed while a call waits on it, and soon replaced.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)

_UNREACHED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True)
class Connection:
    targets: tuple[str, ...]
    tls: Tls | None
    metadata: tuple[tuple[str, str], ...]

    def open(self, library: ModuleType) -> list[Any]:
        """One channel a target; library is grpc or grpc.aio."""
        credentials = _credentials(self.tls) if self.tls else None
        channels = []
        for target in self.targets:
            options = [*CHANNEL_OPTIONS, ("grpc.enable_http_proxy", int(proxy_variable(target) is not None))]
            if credentials is None:
                channels.append(library.insecure_channel(target, options))
                continue
            if self.tls and self.tls.server_name:
                options.append(("grpc.ssl_target_name_override", self.tls.server_name))
            channels.append(library.secure_channel(target, credentials, options))
        return channels

    def explain(self, error: SeqencError) -> SeqencError:
        """Return the error of a call that reached no server with the proxy that may be why."""
        proxies = {target: name for target in self.targets if (name := proxy_variable(target))}
        if error.reason or not proxies or error.code not in _UNREACHED:
            return error
        target, name = next(iter(proxies.items()))
        message = (
            f"{error.message} ({target} is called through the proxy in the variable {name}; "
            "to call it directly, add its host to no_proxy)"
        )
        return type(error)(error.code, message, error.reason, error.violations, error.retry_after_s)


class Stubs:
    """The methods of one channel."""

    def __init__(self, channel: Any) -> None:
        encoder = encoder_pb2_grpc.EncoderServiceStub(channel)  # type: ignore[no-untyped-call]
        self.encode = encoder.Encode
        self.encode_stream = encoder.EncodeStream
        self.tokenize = encoder.Tokenize
        self.get_model = encoder.GetModel
        # grpc.health.v1: on the wire its request is a StringValue and its response an Int32Value.
        self.check_health = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=Int32Value.FromString,
        )


class Rotation(Generic[T]):
    """Gives its items in turn, to any thread."""

    def __init__(self, items: Sequence[T]) -> None:
        self._items = items
        self._given = 0
        self._lock = threading.Lock()

    def next(self) -> T:
        with self._lock:
            self._given += 1
            return self._items[self._given % len(self._items)]


def build_connection(address: Address, tls: bool | str | Path | Tls | None, token: str | None) -> Connection:
    tls = _tls(tls)
    if tls:
        _check(tls)
    one_name = tls is None or tls.server_name is not None
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    return Connection(_targets(_addresses(address), one_name), tls, metadata)


def _tls(tls: bool | str | Path | Tls | None) -> Tls | None:
    if isinstance(tls, Tls):
        return tls
    if isinstance(tls, str | Path):
        return Tls(ca=tls)
    return Tls() if tls else None


def _addresses(address: Address) -> list[str]:
    if isinstance(address, str):
        address = [address] if address.startswith(("ipv4:", "ipv6:")) else address.split(",")
    addresses = [part.strip() for part in address]
    if not addresses or not all(addresses):
        raise ValueError(f"address {address!r}: expected host:port, or several of them")
    return addresses


def _targets(addresses: list[str], one_name: bool) -> tuple[str, ...]:
    """IP addresses of one family as one target, so that gRPC itself balances over those that are up.

    Not where each is to show a certificate of its own name, or is asked for from a proxy.
    """
    versions = {_ip_version(address) for address in addresses}
    alike = len(versions) == 1 and None not in versions
    if len(addresses) > 1 and alike and one_name and not any(map(proxy_variable, addresses)):
        return (f"ipv{versions.pop()}:{','.join(addresses)}",)
    return tuple(addresses)


def _ip_version(address: str) -> int | None:
    host = address.rpartition(":")[0]
    try:
        return ipaddress.ip_address(host.strip("[]")).version
    except ValueError:
        return None


def _check(tls: Tls) -> None:
    """Raise CertificateError for files that gRPC would only fail over, in some cases with the process."""
    if (tls.certificate is None) != (tls.key is None):
        raise CertificateError("a TLS certificate and its key belong together; give both or neither")
    warnings = check_roots(PemFile("the TLS roots", Path(tls.ca))) if tls.ca is not None else []
    if tls.certificate is not None and tls.key is not None:
        certificate = PemFile("the TLS certificate", Path(tls.certificate))
        warnings += check_pair(certificate, PemFile("the TLS key", Path(tls.key)), "client")
    for warning in warnings:
        logger.warning("%s", warning)


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca), private_key=_read(tls.key), certificate_chain=_read(tls.certificate)
    )


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()

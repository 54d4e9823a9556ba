"""Where and how to connect: addresses, TLS, tokens, the channel's settings; the same for sync and async."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeAlias, TypeVar

import grpc
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from seqenc.certificates import PemFile, check_pair, check_roots
from seqenc.checks import check_text, kind
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
# What gRPC resolves that is not host:port.
_OTHER_TARGETS = ("unix:", "unix-abstract:", "vsock:", "xds:")
_MAX_PORT = 65535
# What a header can carry, and what no server takes for a part of a token at its ends.
_TOKEN = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


@dataclass(frozen=True)
class Connection:
    targets: tuple[str, ...]
    credentials: grpc.ChannelCredentials | None
    server_name: str | None
    metadata: tuple[tuple[str, str], ...]

    def open(self, library: ModuleType) -> list[Any]:
        """One channel a target; library is grpc or grpc.aio."""
        channels = []
        for target in self.targets:
            options = [*CHANNEL_OPTIONS, ("grpc.enable_http_proxy", int(proxy_variable(target) is not None))]
            if self.credentials is None:
                channels.append(library.insecure_channel(target, options))
                continue
            if self.server_name:
                options.append(("grpc.ssl_target_name_override", self.server_name))
            channels.append(library.secure_channel(target, self.credentials, options))
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


def build_connection(
    address: Address, tls: bool | str | os.PathLike[str] | Tls | None, token: str | None
) -> Connection:
    """Raise TypeError or ValueError for what is not one, OSError for a file that cannot be read."""
    tls = _tls(tls)
    server_name = tls.server_name if tls else None
    targets = _targets(_addresses(address), tls is None or server_name is not None)
    return Connection(targets, _credentials(tls) if tls else None, server_name, _metadata(token))


def _metadata(token: object) -> tuple[tuple[str, str], ...]:
    if token is None or token == "":
        return ()
    if not isinstance(token, str):
        raise TypeError(f"token: expected a str, not {kind(token)}")
    if not _TOKEN.fullmatch(token):
        raise ValueError(
            "token: expected printable ASCII characters without a space or a line break at an end; "
            "strip what was read from a file"
        )
    return (("authorization", f"Bearer {token}"),)


def _tls(tls: object) -> Tls | None:
    if isinstance(tls, Tls):
        return tls
    if isinstance(tls, str | os.PathLike):
        return Tls(ca=tls)  # type: ignore[arg-type]
    if tls is None or isinstance(tls, bool):
        return Tls() if tls else None
    raise TypeError(f"tls: expected True, False, the path of a CA file or Tls, not {kind(tls)}")


def _addresses(address: object) -> list[str]:
    parts: Any = address
    if isinstance(address, str):
        parts = [address] if address.startswith(("ipv4:", "ipv6:")) else address.split(",")
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise TypeError(f"address: expected host:port as a str, or a list of them, not {kind(address)}")
    addresses = [part.strip() for part in parts]
    if not addresses:
        raise ValueError("address: expected host:port, or several of them; the list is empty")
    for part in addresses:
        _check_address(part)
    return addresses


def _check_address(address: str) -> None:
    check_text("address", address)
    if address.startswith(_OTHER_TARGETS):
        return
    scheme, separator, _ = address.partition("://")
    if separator and scheme != "dns":
        raise ValueError(
            f"address: expected host:port without {scheme}:// in front; the option tls asks for TLS"
        )
    hosts = re.sub(r"^(dns:(//[^/]*/)?|ipv4:|ipv6:)", "", address).split(",")
    for host, _, port in (each.rpartition(":") for each in hosts):
        ambiguous = ":" in host and not (host.startswith("[") and host.endswith("]"))
        if not host or ambiguous or not (port.isdecimal() and 0 < int(port) <= _MAX_PORT):
            raise ValueError(
                f"address {address!r}: expected host:port, or [host]:port where the host is an IPv6 address"
            )


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


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Raise TypeError, ValueError or OSError for files that gRPC would only fail over."""
    check_text("tls server_name", tls.server_name)
    if (tls.key is None) != (tls.certificate is None):
        raise ValueError("tls: certificate and key go together; one of them is missing")
    roots, key, certificate = (_pem_file(name, getattr(tls, name)) for name in ("ca", "key", "certificate"))
    warnings = check_roots(roots) if roots else []
    if certificate and key:
        warnings += check_pair(certificate, key, "client")
    for warning in warnings:
        logger.warning("%s", warning)
    return grpc.ssl_channel_credentials(
        root_certificates=roots.data if roots else None,
        private_key=key.data if key else None,
        certificate_chain=certificate.data if certificate else None,
    )


def _pem_file(name: str, path: object) -> PemFile | None:
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"tls {name}: expected the path of a PEM file, not {kind(path)}")
    return PemFile(f"tls {name}", Path(path), Path(path).read_bytes())

"""Which proxy of the environment gRPC connects a target through; targets on this machine never use one."""

from __future__ import annotations

import ipaddress
import os
import re

_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
_LOCAL_SCHEMES = ("unix:", "unix-abstract:", "vsock:")
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
# dns://authority/name and dns:name, as in gRPC's naming.
_SCHEME = re.compile(r"(?:dns|ipv4|ipv6):(?://[^/]*/)?")


def proxy_variable(target: str) -> str | None:
    """Return the variable that names the target's proxy, None for a target that is connected to directly.

    A list of addresses in one target is not a host that a proxy could be asked for.
    """
    variable = next((name for name in _VARIABLES if os.environ.get(name)), None)
    if variable is None or target.startswith(_LOCAL_SCHEMES) or "," in target:
        return None
    host = _host(target)
    exceptions = next((os.environ[name] for name in _EXCEPTIONS if os.environ.get(name)), "")
    if _is_local(host) or any(_covers(entry.strip(), host) for entry in exceptions.split(",")):
        return None
    return variable


def _host(target: str) -> str:
    name = _SCHEME.sub("", target, count=1)
    host, _, port = name.rpartition(":")
    if port.isdecimal() and _ip_address(name) is None:
        name = host
    return name.strip("[]").rstrip(".").lower()


def _is_local(host: str) -> bool:
    address = _ip_address(host)
    if address is None:
        return host in _LOCAL_NAMES or host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def _covers(entry: str, host: str) -> bool:
    """An exception is the end of a name, an address, a network in CIDR notation, or * for everything."""
    if entry == "*" or (entry and host.endswith(entry.lower())):
        return True
    address = _ip_address(host)
    try:
        return address is not None and address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None

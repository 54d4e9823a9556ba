"""PEM files of certificates and keys: what gRPC's TLS cannot use is named before handshakes fail over it.

gRPC's TLS library, BoringSSL, is stricter than the OpenSSL that reads the files here: it signs and verifies
only with RSA, P-256 and P-384 keys, holds a certificate to its key usage, and passes over a PEM block that
does not begin its line.
"""

from __future__ import annotations

import binascii
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

_CERTIFICATE = re.compile(rb"^-----BEGIN CERTIFICATE-----(.*?)^-----END CERTIFICATE-----", re.M | re.S)
_KEY = re.compile(rb"^-----BEGIN ([A-Z]+ )?PRIVATE KEY-----", re.M)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")

# Tags of ASN.1's distinguished encoding (DER).
_UTC_TIME, _VERSION, _EXTENSIONS = 0x17, 0xA0, 0xA3
# Object identifiers in DER: of keys and curves, of extensions, and of what a certificate may be used for.
_ELLIPTIC_CURVE = bytes.fromhex("2a8648ce3d0201")
_USABLE_KEYS = (
    bytes.fromhex("2a864886f70d010101"),  # RSA
    bytes.fromhex("2a8648ce3d030107"),  # P-256
    bytes.fromhex("2b81040022"),  # P-384
)
_UNUSABLE_KEYS = {
    bytes.fromhex("2b6570"): "Ed25519",
    bytes.fromhex("2b6571"): "Ed448",
    bytes.fromhex("2b81040023"): "P-521",
    bytes.fromhex("2b81040021"): "P-224",
    bytes.fromhex("2b8104000a"): "secp256k1",
    bytes.fromhex("2a8648ce380401"): "DSA",
    bytes.fromhex("2a864886f70d01010a"): "RSA-PSS",
}
_KEY_USAGE, _EXTENDED_KEY_USAGE = b"\x55\x1d\x0f", b"\x55\x1d\x25"
_DIGITAL_SIGNATURE = 0x80
_PURPOSES = {
    "server": bytes.fromhex("2b06010505070301"),
    "client": bytes.fromhex("2b06010505070302"),
}


class CertificateError(ValueError):
    """A file that TLS cannot use; the message names it and says what to do."""


@dataclass(frozen=True)
class PemFile:
    """name is what its user calls it: a flag, an argument. A pipe gives its data only once."""

    name: str
    path: Path
    data: bytes

    def __str__(self) -> str:
        return f"{self.name} {self.path}"


def check_pair(certificate: PemFile, key: PemFile, side: Literal["server", "client"]) -> list[str]:
    """Return warnings of certificates that peers will refuse, because of their dates, say.

    Raise CertificateError unless gRPC can use these as that side's certificate chain and key. A client's
    purpose is only warned of: servers that do not ask for its certificate do not mind.
    """
    chain = _read_certificates(certificate)
    _check_key_type(certificate, chain[0])
    wrong_purpose = _wrong_purpose(certificate, chain[0], side)
    if wrong_purpose and side == "server":
        raise CertificateError(wrong_purpose)
    if b"ENCRYPTED" in key.data:
        raise CertificateError(f"{key} is encrypted; decrypt it with `openssl pkey`")
    _check_is_pem(key, _KEY, "a private key")
    if certificate.path.is_file() and key.path.is_file():
        _check_belong_together(certificate, key)
    return ([wrong_purpose] if wrong_purpose else []) + _outdated(certificate, chain)


def _check_belong_together(certificate: PemFile, key: PemFile) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Whether a key is long enough is for its owner to say, not for how OpenSSL was built.
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    try:
        context.load_cert_chain(certificate.path, key.path, password=lambda: "")
    except ssl.SSLError as error:
        raise CertificateError(
            f"{certificate} and {key} cannot be used together ({_reason(error)}); name a PEM certificate "
            "chain that begins with the key's own certificate, and its unencrypted PEM key"
        ) from error


def check_roots(roots: PemFile) -> list[str]:
    """Return warnings where no root is valid at this time; of a bundle, some may have expired.

    Raise CertificateError unless the file holds certificates, all of which can be read.
    """
    certificates = _read_certificates(roots)
    warnings = _outdated(roots, certificates)
    return warnings if len(warnings) == len(certificates) else []


def _read_certificates(file: PemFile) -> list[bytes]:
    """The certificates in DER, at least one."""
    _check_is_pem(file, _CERTIFICATE, "a certificate")
    certificates = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for place, block in enumerate(_CERTIFICATE.findall(file.data), 1):
        try:
            certificates.append(binascii.a2b_base64(block))
            context.load_verify_locations(cadata=certificates[-1])
        except (binascii.Error, ssl.SSLError, ValueError) as error:
            raise CertificateError(f"{file}: certificate {place} is damaged; copy it again") from error
    return certificates


def _check_is_pem(file: PemFile, block: re.Pattern[bytes], expected: str) -> None:
    data = file.data
    if block.search(data) and _BYTE_ORDER_MARK + b"-----BEGIN" not in data:
        return
    if not data.strip():
        found = "is empty"
    elif _BYTE_ORDER_MARK in data:
        found = "has a byte-order mark, which hides the line behind it from gRPC; save it without one"
    elif data.startswith(_UTF_16):
        found = "is UTF-16; save it as ASCII"
    elif begun := re.search(rb"-----BEGIN ([A-Z0-9 ]+)-----", data):
        found = f"has a PEM block ({begun[1].decode()}) that is of another kind, cut off or indented"
    elif not data.isascii():
        found = "is not PEM; if it is DER, convert it with `openssl x509` or `openssl pkey`"
    else:
        found = "is not PEM"
    raise CertificateError(f"{file} {found}; expected a PEM file with {expected}")


def _check_key_type(file: PemFile, certificate: bytes) -> None:
    algorithm = _key_algorithm(certificate)
    if algorithm not in _USABLE_KEYS:
        raise CertificateError(
            f"{file} has a key that gRPC's TLS cannot use ({_UNUSABLE_KEYS.get(algorithm, 'a rare type')}); "
            "issue it for an RSA, P-256 or P-384 key"
        )
    if usage := _extensions(certificate).get(_KEY_USAGE):
        # A bit string: the count of unused bits at its end, then the bits.
        ((_, bits),) = _elements(usage)
        if not bits[1:2] or not bits[1] & _DIGITAL_SIGNATURE:
            raise CertificateError(
                f"{file} is not issued for signatures, which TLS needs; issue it with the key usage "
                "digitalSignature"
            )


def _wrong_purpose(file: PemFile, certificate: bytes, side: Literal["server", "client"]) -> str | None:
    purposes = _extensions(certificate).get(_EXTENDED_KEY_USAGE)
    if purposes is None:
        return None
    ((_, listed),) = _elements(purposes)
    if _PURPOSES[side] in [purpose for _, purpose in _elements(listed)]:
        return None
    return f"{file} is not issued for a {side}; issue it with the extended key usage {side}Auth, or none"


def _outdated(file: PemFile, certificates: list[bytes]) -> list[str]:
    now = datetime.now(UTC)
    warnings = []
    for place, certificate in enumerate(certificates, 1):
        start, end = (_moment(*element) for element in _elements(_fields(certificate)[3][1]))
        if now > end:
            warnings.append(f"{file}: certificate {place} expired on {end:%Y-%m-%d at %H:%M} UTC; renew it")
        elif now < start:
            warnings.append(
                f"{file}: certificate {place} is valid from {start:%Y-%m-%d at %H:%M} UTC; check the clock"
            )
    return warnings


def _key_algorithm(certificate: bytes) -> bytes:
    """The object identifier of the kind of its key; of elliptic curves, that of the curve."""
    (_, algorithm), _ = _elements(_fields(certificate)[5][1])
    (_, kind), *parameters = _elements(algorithm)
    return parameters[0][1] if kind == _ELLIPTIC_CURVE else kind


def _extensions(certificate: bytes) -> dict[bytes, bytes]:
    """Encoded values by object identifier."""
    values = {}
    for tag, content in _fields(certificate):
        if tag == _EXTENSIONS:
            ((_, extensions),) = _elements(content)
            for _, extension in _elements(extensions):
                (_, identifier), *_, (_, value) = _elements(extension)
                values[identifier] = value
    return values


def _fields(certificate: bytes) -> list[tuple[int, bytes]]:
    """Serial number, signature's algorithm, issuer, validity, subject, public key, …"""
    ((_, whole),) = _elements(certificate)
    (_, signed), *_ = _elements(whole)
    return [(tag, content) for tag, content in _elements(signed) if tag != _VERSION]


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each element of an encoded sequence."""
    while der:
        tag, length, start = der[0], der[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(der[2:start], "big")
        yield tag, der[start : start + length]
        der = der[start + length :]


def _moment(tag: int, text: bytes) -> datetime:
    form = "%y%m%d%H%M%S%z" if tag == _UTC_TIME else "%Y%m%d%H%M%S%z"
    return datetime.strptime(text.decode(), form)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "not PEM").lower().replace("_", " ")

"""Bearer tokens by the name of who holds them; knows their digests, not the tokens."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

from service.api.rereading import Rereading, read_file
from service.errors import StartError

_FLAG = "--tokens-file"
# The token as RFC 6750 spells it; 16 characters are past guessing when they are random.
_LINE = re.compile(rb"([A-Za-z0-9._-]{1,64}):([A-Za-z0-9._~+/-]{16,4096}=*)")
_CREDENTIALS = re.compile(r"bearer +(\S+)", re.IGNORECASE)


class Tokens:
    def __init__(self, names_and_tokens: Iterable[tuple[str, bytes]]) -> None:
        self._names_and_digests = [(name, _digest(token)) for name, token in names_and_tokens]

    def name_of(self, credentials: str) -> str | None:
        """Of the value of an `authorization` header; looks at every token, whichever fits."""
        match = _CREDENTIALS.fullmatch(credentials)
        digest = _digest(match[1].encode() if match else b"")
        found = None
        for name, known in self._names_and_digests:
            if hmac.compare_digest(digest, known):
                found = name
        return found


def load_tokens(path: Path) -> Rereading[Tokens]:
    """Raises StartError."""
    return Rereading("the bearer tokens", [path], lambda: _read(path))


def _read(path: Path) -> Tokens:
    tokens: dict[bytes, str] = {}
    for number, line in enumerate(read_file(_FLAG, path).splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(b"#"):
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise StartError(
                f"{_FLAG} {path}, line {number}: must be name:token, the name of up to 64 and the token of "
                "at least 16 letters, digits and ._- (token also ~+/=)"
            )
        if match[2] in tokens:
            raise StartError(
                f"{_FLAG} {path}, line {number}: repeats an earlier token; give each name its own"
            )
        tokens[match[2]] = match[1].decode()
    if not tokens:
        raise StartError(f"{_FLAG} {path} has no tokens; give it lines of name:token")
    return Tokens((name, token) for token, name in tokens.items())


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()

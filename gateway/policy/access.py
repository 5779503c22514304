"""Who may use the clients' listener, and which paths nobody may use (protocol 8.5).

A request is judged by its headers and its path, before anything else is done for it. Only digests of tokens are held.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from urllib.parse import unquote

from gateway.errors import ErrorKind, GatewayError
from gateway.headers import Headers
from gateway.policy.paths import MAX_DECODINGS

_BEARER = re.compile(r"bearer[ \t]+(.*)", re.IGNORECASE)
# What servers read in several ways: parameters (`;`), a query or fragment that was encoded, an empty segment or a host
# (`//`), a backslash, control characters and blanks at the end, and bytes that are not UTF-8.
_AMBIGUOUS = re.compile(r"[;?#\\\x00-\x1f\x7f\ud800-\udfff]|//|\s\Z")

_NEEDED = "a token is needed: `Authorization: Bearer TOKEN` or `X-Api-Key: TOKEN`"
_CHALLENGE = (("WWW-Authenticate", "Bearer"),)


def digest_of(token: str) -> bytes:
    """The digest that is kept instead of *token*: the time of a lookup by digest reveals nothing about the tokens."""
    return sha256(token.encode(errors="surrogateescape")).digest()


class Access:
    """The `access` of a configuration."""

    def __init__(self, tokens: Mapping[bytes, str] | None = None, deny: Sequence[str] = ()) -> None:
        """*tokens* maps each token's digest to its name, None if no token is needed; *deny* are patterns of paths."""
        self._tokens = tokens or {}
        self.needs_token = tokens is not None
        self.names = sorted(self._tokens.values())
        """The names of all tokens."""
        self._denied = re.compile("|".join(fnmatch.translate(each.casefold()) for each in deny)) if deny else None

    def authorize(self, headers: Headers) -> tuple[Headers, str]:
        """*headers* without the fields that hold a known token, and the token's name.

        A value of `Authorization` or `X-Api-Key` that is no known token is for the backend, and crosses.
        Raises `GatewayError` (401) if none of the known tokens was sent.
        """
        crossing, name = [], ""
        for field in headers.pairs:
            found = self._name_of(*field)
            name = name or found
            if not found:
                crossing.append(field)
        if name:
            return Headers(crossing), name
        given = "authorization" in headers.first or "x-api-key" in headers.first
        words = f"{_NEEDED}; the token that was sent is not known" if given else _NEEDED
        raise GatewayError(ErrorKind.DENIED, words, status=401, headers=_CHALLENGE)

    def check(self, path: str) -> None:
        """Raise `GatewayError` (403) if nobody may use *path* (raw, without query), however it is written.

        The path is judged as it is, and after each decoding, since a server behind a proxy may decode once more. Where
        paths are denied, a path that servers may read in several ways is denied as well.
        """
        if self._denied is None:
            return
        for _ in range(MAX_DECODINGS):
            readings = path.casefold(), path.casefold().rstrip("/")
            if _AMBIGUOUS.search(path) or any(map(self._denied.match, readings)):
                break
            decoded = unquote(path, errors="surrogateescape")
            if decoded == path:
                return
            path = decoded
        raise GatewayError(ErrorKind.DENIED, "this path is denied to all clients (access.deny)")

    def _name_of(self, field: str, value: str) -> str:
        """The name of the token in a header field; empty if the field holds no known token."""
        field = field.lower()
        if field == "x-api-key":
            return self._tokens.get(digest_of(value.strip()), "")
        bearer = _BEARER.fullmatch(value.strip()) if field == "authorization" else None
        return "" if bearer is None else self._tokens.get(digest_of(bearer[1]), "")

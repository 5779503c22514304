"""Who may use the clients' listener, and which paths nobody may use (protocol 8.5).

A request is judged by its headers and its path, before anything else is done for it. Only digests of tokens are held.
Not here: reading the file with the tokens (`config.tokens`), and certificates of clients.
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from urllib.parse import unquote_to_bytes

from gateway.errors import ErrorKind, GatewayError
from gateway.headers import Headers

_BEARER = re.compile(r"bearer[ \t]+(.*)", re.IGNORECASE)
_SLASHES = re.compile(r"[/\\]+")
# An ASCII character written as two bytes of UTF-8: UTF-8 forbids this, and some decoders accept it all the same.
_OVERLONG = re.compile(rb"([\xc0\xc1])([\x80-\xbf])")
# Tomcat and similar servers drop the parameters of a path segment (`;name=value`).
_PARAMETERS = re.compile(r";[^/]*")
# A decoded `?`, `#` or NUL: a server may take the rest of the path for a query or a fragment, or end the path here.
_TAIL = re.compile(r"[?#\0].*", re.DOTALL)
# A path that begins with two slashes may be taken for a host and its path (RFC 3986 section 4.2), and browsers'
# parsers of URLs take backslashes for slashes.
_HOST = re.compile(r"\A[/\\]{2,}[^/]+")
_SHORT_HOST = re.compile(r"\A[/\\]{2,}[^/\\]+")
# Some parsers of URLs drop control characters. In many languages `$` in a pattern also matches before a final newline.
_UNSEEN = re.compile(r"[\x00-\x1f\x7f]+")
_MAY_BE_READ_OTHERWISE = re.compile(r"[%;?#\\\x00-\x20\x7f]|//|/\Z")

MAX_READINGS = 16
"""The most ways of reading one path that are checked; a path with more is always denied."""

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
        given = "authorization" in headers or "x-api-key" in headers
        words = f"{_NEEDED}; the token that was sent is not known" if given else _NEEDED
        raise GatewayError(ErrorKind.DENIED, words, status=401, headers=_CHALLENGE)

    def check(self, path: str) -> None:
        """Raise `GatewayError` (403) if nobody may use *path* (raw, without query), however it is written."""
        if self._denied is None:
            return
        for number, text in enumerate(_readings(path)):
            if number >= MAX_READINGS or self._denied.match(text):
                raise GatewayError(ErrorKind.DENIED, "this path is denied to all clients (access.deny)")

    def _name_of(self, field: str, value: str) -> str:
        """The name of the token in a header field; empty if the field holds no known token."""
        field = field.lower()
        if field == "x-api-key":
            return self._tokens.get(digest_of(value.strip()), "")
        bearer = _BEARER.fullmatch(value.strip()) if field == "authorization" else None
        return "" if bearer is None else self._tokens.get(digest_of(bearer[1]), "")


def _readings(path: str) -> Iterator[str]:
    """All texts as which servers may read *path*, with the case of letters folded.

    The order of their steps matters: `/a;%2fb/c` is `/a/b/c` to a server that decodes first, and `/a/c` to one that
    drops parameters first.
    """
    if _MAY_BE_READ_OTHERWISE.search(path) is None:  # nearly every path
        yield path.casefold()
        return
    seen: set[str] = set()
    found = [path]
    while found:
        text = found.pop()
        if text in seen:
            continue
        seen.add(text)
        yield text.casefold()
        found += (_decoded(text), _SLASHES.sub("/", text), _PARAMETERS.sub("", text), _TAIL.sub("", text))
        found += (_HOST.sub("", text), _SHORT_HOST.sub("", text), _UNSEEN.sub("", text).rstrip())
        found.append(text.rstrip("/\\") or "/")


def _decoded(path: str) -> str:
    """*path* percent-decoded once, with overlong UTF-8 for ASCII turned into the ASCII character."""
    text = unquote_to_bytes(path.encode(errors="surrogateescape"))
    text = _OVERLONG.sub(lambda pair: bytes([(pair[1][0] & 1) << 6 | pair[2][0] & 0x3F]), text)
    return text.decode(errors="surrogateescape")

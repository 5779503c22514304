"""Who may use the clients' listener, and which paths nobody may use (protocol 8.5).

Only digests of tokens are held. Here: judging a request by its headers and its path, before anything is done
for it. Not here: the file that tokens stand in (`config.tokens`), and certificates of clients.
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
# ASCII as two bytes of UTF-8, which is forbidden and which some decoders take all the same.
_OVERLONG = re.compile(rb"([\xc0\xc1])([\x80-\xbf])")
# Tomcat and its like leave out the parameters of a segment.
_PARAMETERS = re.compile(r";[^/]*")
# What follows these when they have been decoded may be taken for a query, a fragment, or the end.
_TAIL = re.compile(r"[?#\0].*", re.DOTALL)
# A path that begins with two slashes may be taken for a host and its path (RFC 3986 section 4.2), and browsers'
# parsers of URLs take backslashes for slashes.
_HOST = re.compile(r"\A[/\\]{2,}[^/]+")
_SHORT_HOST = re.compile(r"\A[/\\]{2,}[^/\\]+")
# Some parsers of URLs drop controls; in many languages `$` at the end of a pattern matches before a line's end, too.
_UNSEEN = re.compile(r"[\x00-\x1f\x7f]+")
_MAY_BE_READ_OTHERWISE = re.compile(r"[%;?#\\\x00-\x20\x7f]|//|/\Z")

MAX_READINGS = 16
"""The most ways of reading one path that are checked; a path with more is always denied."""

_NEEDED = "a token is needed: `Authorization: Bearer TOKEN` or `X-Api-Key: TOKEN`"
_CHALLENGE = (("WWW-Authenticate", "Bearer"),)


def digest_of(token: str) -> bytes:
    """The digest that is kept instead of a *token*: the time of looking it up reveals nothing about the tokens."""
    return sha256(token.encode(errors="surrogateescape")).digest()


class Access:
    """The `access` of a configuration."""

    def __init__(self, tokens: Mapping[bytes, str] | None = None, deny: Sequence[str] = ()) -> None:
        """*tokens* are the names of all tokens by digest, None if none is needed; *deny* are patterns of paths."""
        self._tokens = tokens
        self.names = sorted(tokens.values()) if tokens is not None else []
        """Of all tokens."""
        self.denies_paths = bool(deny)
        """Whether `check` refuses any path."""
        self._denied = re.compile("|".join(fnmatch.translate(each.casefold()) for each in deny)) if deny else None

    def authorize(self, headers: Headers) -> tuple[Headers, str]:
        """*headers* without the fields that hold a token, and its name; empty where none is needed.

        Other values of these two fields are for the backend, and cross. Raises `GatewayError` (401) without a token.
        """
        if self._tokens is None:
            return headers, ""
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
        """The name of the token in a header field; empty if it holds none."""
        assert self._tokens is not None
        field = field.lower()
        if field == "x-api-key":
            return self._tokens.get(digest_of(value.strip()), "")
        bearer = _BEARER.fullmatch(value.strip()) if field == "authorization" else None
        return "" if bearer is None else self._tokens.get(digest_of(bearer[1]), "")


def _readings(path: str) -> Iterator[str]:
    """All texts that servers may take *path* for, in one case of letters.

    Servers decode, leave out and join slashes, or do not, in any order, and the order matters: `/a;%2fb/c` is `/a/b/c`
    to one that decodes first and `/a/c` to one that leaves the parameters out first.
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
    text = unquote_to_bytes(path.encode(errors="surrogateescape"))
    text = _OVERLONG.sub(lambda pair: bytes([(pair[1][0] & 1) << 6 | pair[2][0] & 0x3F]), text)
    return text.decode(errors="surrogateescape")

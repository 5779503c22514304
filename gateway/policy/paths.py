"""Which paths are refused before routing, because the gateway and a backend might not read them alike.

Routes are matched against the path as it was written; many servers decode it, and resolve `..`, before they look at
it. So what would be another path after that is refused: `/v2/models/public/../secret/infer` would be routed by the
model `public` and executed on `secret`. Here: a decision on a text. Not here: routes (`routing`), and the query, which
crosses as it is. The rule is protocol 8.6.
"""

import re
from urllib.parse import unquote_to_bytes

MAX_DECODINGS = 4
"""How often a path is decoded to find what it may mean. One that still changes after that is refused."""

_SLASHES = re.compile(rb"[/\\]")
# Tomcat and its like cut a segment at a semicolon, C programs cut it at a NUL.
_END = re.compile(rb"[;\0]")
_OVERLONG_DOT = b"\xc0\xae"
# Segments that the router looks for. Written with percent signs they would be found by the backend alone.
MAX_PERCENT_SIGNS = 1024
"""How many a path may have: each is decoded `MAX_DECODINGS` times at most, which takes 1.4 ms for so many."""

_FIXED = frozenset({b"v1", b"v2", b"models", b"versions", b"infer", b"repository"})


def find_path_fault(path: str) -> str | None:
    """Why *path* (raw, without the query) must be refused with 400; None if it need not.

    Refused are, however often they are percent-encoded: a segment `.` or `..`; a slash or backslash inside a segment of
    a path that names models; the words of the protocol (`v2`, `models`, `infer` and so on).
    """
    if "%" not in path and "/." not in path and "\\" not in path:  # nearly every path
        return None
    if path.count("%") > MAX_PERCENT_SIGNS:
        return f"the path has more than {MAX_PERCENT_SIGNS} percent signs"
    raw = path.encode(errors="surrogateescape")
    decoded = raw
    for _ in range(MAX_DECODINGS):
        if any(_is_dots(segment) for segment in _SLASHES.split(decoded)):
            return "a segment of the path is '.' or '..', which the backend might resolve to another path"
        before, decoded = decoded, unquote_to_bytes(decoded)
        if decoded == before:
            break
    else:
        return f"the path is percent-encoded more than {MAX_DECODINGS - 1} times"
    if b"/models/" in decoded.replace(b"\\", b"/") and _hides_slash(raw):
        return "an encoded slash or a backslash in the path of a model: the backend might take it for a separator"
    if any(b"%" in segment and _word(segment) in _FIXED for segment in raw.split(b"/")):
        return "the words of the protocol in a path (/v2/models/.../infer) must not be percent-encoded"
    return None


def _is_dots(segment: bytes) -> bool:
    return _END.split(segment.replace(_OVERLONG_DOT, b"."), maxsplit=1)[0] in (b".", b"..")


def _hides_slash(raw: bytes) -> bool:
    """Whether decoding *raw* gives more separators than it has."""
    return len(_SLASHES.findall(_decoded(raw))) > raw.count(b"/")


def _word(segment: bytes) -> bytes:
    """*segment* decoded, without what servers may leave out at its end.

    In many languages the `$` of a pattern also matches before the end of a line.
    """
    return _END.split(_decoded(segment), maxsplit=1)[0].strip()


def _decoded(text: bytes) -> bytes:
    """*text* without any percent-encoding, however often it was applied, up to `MAX_DECODINGS`."""
    for _ in range(MAX_DECODINGS):
        text = unquote_to_bytes(text)
    return text

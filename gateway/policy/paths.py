"""Which paths are refused before routing, because the gateway and a backend might not read them alike.

Routes are matched against the path as it was written, but many servers decode it and resolve `..` first:
`/v2/models/public/../secret/infer` would be routed by the model `public` and executed on `secret` (protocol 8.6).
"""

import re
from urllib.parse import unquote_to_bytes

MAX_DECODINGS = 4
"""How often a path is decoded to find what it may mean. A path that still changes after that is refused."""

MAX_PERCENT_SIGNS = 1024
"""The most percent signs in a path: to decode so many `MAX_DECODINGS` times takes 1.4 ms."""

MAX_CHARACTERS = 8 * 1024
"""The longest path, as most servers have it: to look for dots in one of 60 KiB takes up to 12 ms each time."""

_SLASHES = re.compile(rb"[/\\]")
# Tomcat and similar servers cut a segment at a semicolon, C programs cut it at a NUL; c0 ae is an overlong dot.
_DOTS = re.compile(rb"(?:\A|[/\\])(?:\.|\xc0\xae){1,2}(?=[/\\;\0]|\Z)")
# What the router looks for: if it were percent-encoded, only the backend would recognise it. Blanks and newlines at its
# end, because `$` in a pattern also matches before a final newline in many languages.
_WORD = re.compile(rb"\s*(?:v1|v2|models|versions|infer|repository)\s*(?:[;\0].*)?", re.DOTALL)


def find_path_fault(path: str) -> str | None:
    """Why *path* (raw, without the query) must be refused with 400; None if it is accepted.

    Refused are a segment `.` or `..`, also percent-encoded any number of times; a percent-encoded slash, or a
    backslash, in a path that names models; and a percent-encoded word of the protocol (`v2`, `models`, `infer` ...).
    """
    if len(path) > MAX_CHARACTERS:
        return f"the path has more than {MAX_CHARACTERS} characters"
    if "%" not in path and "/." not in path and "\\" not in path:  # nearly every path
        return None
    if path.count("%") > MAX_PERCENT_SIGNS:
        return f"the path has more than {MAX_PERCENT_SIGNS} percent signs"
    raw = path.encode(errors="surrogateescape")
    decoded = raw
    for _ in range(MAX_DECODINGS):
        if _DOTS.search(decoded):
            return "a segment of the path is '.' or '..', which the backend might resolve to another path"
        before, decoded = decoded, unquote_to_bytes(decoded)
        if decoded == before:
            break
    else:
        return f"the path is percent-encoded more than {MAX_DECODINGS - 1} times"
    if b"/models/" in decoded.replace(b"\\", b"/") and len(_SLASHES.findall(decoded)) > raw.count(b"/"):
        return "an encoded slash or a backslash in the path of a model: the backend might take it for a separator"
    if any(b"%" in segment and _WORD.fullmatch(_decoded(segment)) for segment in raw.split(b"/")):
        return "the words of the protocol in a path (/v2/models/.../infer) must not be percent-encoded"
    return None


def _decoded(segment: bytes) -> bytes:
    for _ in range(MAX_DECODINGS):
        segment = unquote_to_bytes(segment)
    return segment

"""Errors of backends, in the one shape in which clients read them (protocol 4.9).

Servers word their errors in many ways: `{"error": ...}` (Triton, KServe), `{"detail": ...}` (FastAPI, MLServer),
`{"code", "type", "message"}` (TorchServe), `{"error_code", "message"}` (MLflow), plain text, HTML pages of proxies.
A client of the V2 protocol reads the member `error`. Not here: which statuses are errors, and how much is read.
"""

import html
import re

import msgspec
import orjson

from gateway.codec.json.members import Members, object_text, parse_object, protect_literals, restore_literals
from gateway.errors import CodecError

MAX_WORDS = 4096
"""The most characters of a backend's error that are repeated in an error of the gateway's own."""

MAX_JSON_BYTES = 64 * 1024
"""How much of an error that is no string is taken as its words."""

_WORDS = ("error", "detail", "message")
"""The members in which servers say what went wrong, the first one that says something wins."""

_TOLD_THE_SIZE = frozenset((400, 413, 415))
"""Statuses that a backend may give because the JSON differs from what the client sent, above all in length."""

_TAG = re.compile(r"<[^<>]*>?")
_ANY = msgspec.json.Decoder()
_TEXT = msgspec.json.Decoder(str)


def error_body(text: bytes, status: int, reason: str, json_bytes: int | None = None) -> tuple[bytes, str]:
    """The body that the client gets for a backend's error, and the error's words for the log (protocol 4.9).

    *text* is the backend's body, of which the caller has read a bounded part; *reason* is the reason phrase.
    *json_bytes* is how many bytes of JSON the gateway had made of a transcoded request, None for all others.
    A body with an `error` member goes through byte for byte, unless the size has to be told in it; bytes that
    are not UTF-8 are replaced by U+FFFD.
    """
    if not text.isascii():
        text = text.decode(errors="replace").encode()
    members, marker = _members(text)
    words = words_of(members, marker) or _plain_words(text)
    words = words or f"the backend answered {status} {reason.encode('ascii', 'replace').decode()}".strip()
    if json_bytes is not None and status in _TOLD_THE_SIZE:
        words += f" (the gateway had made {json_bytes} bytes of JSON of this request)"
    elif "error" in members:
        return text, words
    others = {key: value for key, value in members.items() if key != "error"}
    return restore_literals(object_text({"error": orjson.dumps(words), **others}), marker), words


def words_of(members: Members, marker: bytes = b"") -> str:
    """What the *members* of a JSON object say went wrong: a string, or JSON as text; empty if they do not say.

    *marker* is that of the literals in *members*, see `protect_literals`.
    """
    for key in _WORDS:
        value = members.get(key, b"null")
        if value == b"null":
            continue
        if value[:1] == b'"':
            words = _TEXT.decode(value)
        else:
            words = restore_literals(value[:MAX_JSON_BYTES], marker).decode(errors="replace")
        if words.strip():
            return words.strip()
    return ""


def shortened(words: str) -> str:
    """*words* in at most about `MAX_WORDS` characters; the middle is left out, a reason often stands at the end."""
    half = MAX_WORDS // 2
    return words if len(words) <= MAX_WORDS else f"{words[:half]} ... {words[-half:]}"


def _members(text: bytes) -> tuple[Members, bytes]:
    """The members of a JSON object and the marker of the literals in them; none if *text* is anything else."""
    protected, marker = protect_literals(text)
    try:
        return parse_object(protected), marker
    except CodecError:
        return {}, b""


def _plain_words(text: bytes) -> str:
    """The words in a body without members that say them: an HTML page, a JSON string, or text."""
    words = text.decode().strip()
    if words[:1] == "<" and "</" in words:
        return _html_words(words)
    try:
        parsed = _ANY.decode(words)
    except (msgspec.DecodeError, RecursionError):
        return words
    if isinstance(parsed, str):
        return parsed.strip()
    return words if parsed else ""  # null and empty objects say nothing


def _html_words(page: str) -> str:
    """The text of an HTML *page*, without tags and with blanks collapsed.

    A title that the text repeats is left out. Attributes and comments end at their first `>`.
    """
    for element in ("script", "style"):
        page, _ = _split_out(page, element)
    page, titles = _split_out(page, "title")
    body, title = (" ".join(html.unescape(_TAG.sub(" ", text)).split()) for text in (page, titles))
    return body if title in body else f"{title}: {body}" if body else title


def _split_out(page: str, element: str) -> tuple[str, str]:
    """*page* without the elements of one name, and these; one that is not closed goes to the end."""
    folded = page.lower() if page.isascii() else page  # other letters may change their length
    outside, inside = [], []
    position = 0
    while (start := folded.find(f"<{element}", position)) >= 0:
        outside.append(page[position:start])
        end = folded.find(f"</{element}", start)
        position = end if end >= 0 else len(page)
        inside.append(page[start:position])
    outside.append(page[position:])
    return "".join(outside), " ".join(inside)

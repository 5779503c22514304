"""Errors of backends, in the one shape in which clients read them (protocol 4.9).

Servers word their errors in many ways: `{"error": ...}` (Triton, KServe), `{"detail": ...}` (FastAPI, MLServer),
`{"code", "type", "message"}` (TorchServe), `{"error_code", "message"}` (MLflow), plain text, HTML pages of proxies.
A client of the V2 protocol reads the member `error`. Not here: which statuses are errors, and how much is read.
"""

import html
import math
import re

import msgspec
import orjson

from gateway.codec.json.members import Members, object_text, parse_object
from gateway.errors import CodecError

MAX_WORDS = 4096
"""The most characters of a backend's error that are repeated in an error of the gateway's own."""

WORD_MEMBERS = ("error", "detail", "message")
"""The members in which servers say what went wrong, the first one that says something wins."""

MAX_PAGE = 16 * 1024
"""How many characters of an HTML page are read, beside title, scripts and styles: tags alone take a millisecond."""

MANY_BYTES = 1024 * 1024
"""More JSON than this may be why a backend refuses a request with 400 or 415; with 413 any length is."""

_TOLD_ABOVE = {400: MANY_BYTES, 413: 0, 415: MANY_BYTES}

_HIDDEN = re.compile(r"<(script|style|title)\b.*?(?:</\1[^<>]*+>?|\Z)", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^<>]*+>?")
_ANY = msgspec.json.Decoder()
_TEXT = msgspec.json.Decoder(str)


def error_body(
    text: bytes,
    status: int,
    reason: str,
    json_bytes: int | None = None,
    *,
    backend: str = "",
    own_words: str | None = None,
    hint: str = "",
) -> tuple[bytes, str]:
    """The body that the client gets for a backend's error, and the error's words for the log (protocol 4.9).

    *text* is the backend's body, of which the caller has read a bounded part; *reason* is the reason phrase.
    *json_bytes* is how many bytes of JSON the gateway had made of a transcoded request, None for all others. A body
    that is no JSON, or says nothing, is introduced with the name of the *backend*, if that is given. *own_words* are
    the error's words where the caller has found them; *hint* follows the words of a body without `error`. A body with
    an `error` member goes through byte for byte, unless the size has to be told in it; bytes that are not UTF-8 are
    replaced by U+FFFD.
    """
    if not text.isascii():
        text = text.decode(errors="replace").encode()
    try:
        members = parse_object(text)
    except CodecError:
        members = {}
    words = own_words or words_of(members)
    if not words:
        words, is_json = _plain_words(text)
        if not words or (backend and not is_json):
            whose = f'backend "{backend}"' if backend else "the backend"
            why = words or reason.encode("ascii", "replace").decode()
            words = f"{whose} answered {status}: {why}".removesuffix(": ")
    if json_bytes is not None and json_bytes > _TOLD_ABOVE.get(status, math.inf):
        words += f" (the gateway had made {json_bytes} bytes of JSON of this request)"
    elif "error" in members and not own_words:
        return text, words
    elif "error" not in members:
        words += hint
    members.pop("error", None)
    return object_text({"error": orjson.dumps(words), **members}), words


def reworded(body: bytes, words: str) -> bytes:
    """*body*, which `error_body` has made, with *words* as its `error`."""
    return object_text({**parse_object(body), "error": orjson.dumps(words)})


def words_of(members: Members) -> str:
    """What the *members* of a JSON object say went wrong: a string, or JSON as text; empty if they do not say."""
    for key in WORD_MEMBERS:
        value = members.get(key, b"null")
        if value == b"null":
            continue
        words = _TEXT.decode(value) if value[:1] == b'"' else value.decode(errors="replace")
        if words.strip():
            return words.strip()
    return ""


def shortened(words: str, n_characters: int = MAX_WORDS) -> str:
    """*words* in about *n_characters*: the middle is left out, a chain of errors often names the cause at its end."""
    half = n_characters // 2
    return words if len(words) <= n_characters else f"{words[:half]} ... {words[-half:]}"


def _plain_words(text: bytes) -> tuple[str, bool]:
    """The words in a body without members that say them: an HTML page, JSON, or text; and whether they are JSON."""
    words = text.decode().strip()
    if words[:1] == "<" and "</" in words:
        seen = _TAG.sub(" ", _HIDDEN.sub(" ", words)[:MAX_PAGE])  # attributes and comments end at their first `>`
        return " ".join(html.unescape(seen).split())[:MAX_WORDS], False
    if len(words) > MAX_WORDS and words[0] != '"':
        return words, False  # too long to be null or an empty value
    try:
        parsed = _ANY.decode(words)
    except (msgspec.DecodeError, RecursionError):
        return words, False
    if isinstance(parsed, str):
        return parsed.strip(), True
    return (words if parsed else ""), True  # null and empty objects say nothing

"""The small JSON of backends that is no inference: their errors, and the metadata of a server.

Bytes to bytes, as the client gets them (protocol 4.9 and section 8). Tensors never pass here.
"""

import msgspec
import orjson

_EXTENSION = "binary_tensor_data"


def error_body(text: bytes, status: int, reason: str) -> tuple[bytes, str]:
    """The body that the client gets for a backend's error, and the error's words (protocol 4.9)."""
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parsed = None
    if isinstance(parsed, dict) and "error" in parsed:
        return text, str(parsed["error"])
    words = text.decode(errors="replace").strip()
    if isinstance(parsed, dict) and "detail" in parsed:
        detail = parsed["detail"]
        words = detail if isinstance(detail, str) else msgspec.json.encode(detail).decode()
    words = words or f"the backend answered {status} {reason.encode('ascii', 'replace').decode()}".strip()
    return orjson.dumps({"error": words}), words


def with_extension(text: bytes) -> bytes:
    """Server metadata that names the binary extension exactly once; what is no JSON object stays as it is."""
    try:
        metadata = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text
    if not isinstance(metadata, dict):
        return text
    extensions = metadata.get("extensions")
    if extensions is not None and not isinstance(extensions, list):
        return text
    named = extensions or []
    if named.count(_EXTENSION) == 1:
        return text
    metadata["extensions"] = [name for name in named if name != _EXTENSION] + [_EXTENSION]
    return msgspec.json.encode(metadata)

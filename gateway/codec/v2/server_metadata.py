"""The metadata of a server, `GET /v2`, as clients of the gateway get it (protocol section 8).

Not here: the metadata of a model (`raw`).
"""

import msgspec

_EXTENSION = "binary_tensor_data"


def with_extension(text: bytes) -> bytes:
    """*text*, a server's metadata, with the binary extension named exactly once in `extensions`.

    A body that is not a JSON object, or whose `extensions` is not a list, is returned as it is.
    """
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

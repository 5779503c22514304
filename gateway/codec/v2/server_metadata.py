"""The metadata of a server, `GET /v2`, as clients of the gateway get it (protocol section 8)."""

from typing import Any

import msgspec

from gateway.codec.json.members import object_text, parse_object
from gateway.errors import CodecError

_EXTENSION = "binary_tensor_data"


def with_extension(text: bytes) -> bytes:
    """*text*, a server's metadata, with the binary extension named exactly once in `extensions`.

    A body that is not a JSON object, or whose `extensions` is not a list, is returned as it is.
    """
    try:
        # only the members are told apart: objects made of a mebibyte of metadata would hold the loop for 40 ms
        metadata = parse_object(text)
        named = msgspec.json.decode(metadata.get("extensions", b"null"), type=list[Any] | None) or []
    except (CodecError, msgspec.DecodeError, RecursionError):
        return text
    if named.count(_EXTENSION) == 1:
        return text
    wanted = [name for name in named if name != _EXTENSION] + [_EXTENSION]
    return object_text({**metadata, "extensions": msgspec.json.encode(wanted)})

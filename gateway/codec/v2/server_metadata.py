"""The metadata of a server, `GET /v2`, as clients of the gateway get it (protocol section 8).

Not here: the metadata of a model (`raw`).
"""

import msgspec

_EXTENSION = "binary_tensor_data"

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def with_extension(text: bytes) -> bytes:
    """*text*, a server's metadata, with the binary extension named exactly once in `extensions`.

    A body that is not a JSON object, or whose `extensions` is not a list, is returned as it is.
    """
    try:
        text.decode()  # msgspec does not look into the strings of a Raw
        # only the members are told apart: objects made of a mebibyte of metadata would hold the loop for 40 ms
        metadata = _MEMBERS.decode(text)
        extensions = msgspec.json.decode(metadata.get("extensions", b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text
    if extensions is not None and not isinstance(extensions, list):
        return text
    named = extensions or []
    if named.count(_EXTENSION) == 1:
        return text
    wanted = [name for name in named if name != _EXTENSION] + [_EXTENSION]
    metadata["extensions"] = msgspec.Raw(msgspec.json.encode(wanted))
    return msgspec.json.encode(metadata)

"""Several requests as one, and its answer as several.

Requests that say the same of everything but the first dimension of their inputs, and their ids, become one request with
the rows of all. Only what is binary on both sides is joined: its rows are bytes behind one another. Not here: which
requests wait for which (`policy.batching`), and what the joined request becomes for its backend.
"""

from collections.abc import Generator, Sequence

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from gateway.codec.inference import HeaderLimits, OutputSelection, Tensor, release
from gateway.codec.tensors import elements
from gateway.codec.tensors.datatypes import BYTES, FLOAT, Datatype, element_count
from gateway.codec.v2 import messages
from gateway.codec.v2.declarations import parse_shape
from gateway.codec.v2.framing import Cursor, Framing, copied
from gateway.codec.v2.messages import Answer, Entry, Request, printed
from gateway.codec.v2.reply import Reply, ReplyOutput
from gateway.codec.v2.request_reading import announced, binary_size, check_names, id_of, select
from gateway.errors import CodecError

SHARE_HEADER_BYTES = 16 * 1024
"""The longest header of a request that is joined with others: what it takes is not counted, and is kept as it waits."""

_NONE = Raw(b"0")


class Share(msgspec.Struct, frozen=True, gc=False):
    """What one request brings to a batch."""

    kind: bytes
    """Its header without id, rows and sizes: requests of one kind may be joined."""
    rows: int
    """The first dimension of each of its inputs."""
    id: bytes
    """As JSON text; empty if it has none."""
    blobs: list[memoryview]
    """The blob of each input."""

    @property
    def n_bytes(self) -> int:
        """The size of its tensors."""
        return sum(map(len, self.blobs))


def read_share(body: memoryview, framing: Framing, limits: HeaderLimits) -> Generator[None, None, Share | None]:
    """What the request in *body* brings to a batch; None for one that goes alone, be it wrong or only uncommon.

    All inputs and outputs are binary, and the inputs have the same first dimension. That each blob has exactly the
    elements of its shape is proved here, so that no request can take the rows of another. Yields after each step.
    """
    request = _read(body, framing, limits)
    if request is None:
        return None
    request_id = id_of(request)
    request.id = UNSET
    blobs = Cursor(body[framing.header_length :], *(framing.blobs or ()))
    found: list[Tensor] = []
    try:
        check_names(request.inputs)
        for index, entry in enumerate(request.inputs):
            tensor = yield from _input(entry, index, blobs)
            if tensor is None:
                return None
            found.append(tensor)
        blobs.finish()
        kind = printed(request)
        selection = select(request)
    except CodecError:
        return None
    rows = {tensor.shape[0] for tensor in found}
    if len(rows) != 1 or 0 in rows or not _is_binary(selection):
        return None
    return Share(kind, rows.pop(), request_id, [tensor.blob for tensor in found])


def _is_binary(selection: OutputSelection) -> bool:
    """Whether the client wants nothing but blobs."""
    return all(selection.named.values()) if selection.named else selection.binary_by_default


def _read(body: memoryview, framing: Framing, limits: HeaderLimits) -> Request | None:
    """The request in *body*, if it can be joined with others as far as its header's form goes."""
    length = framing.header_length
    if not length or length > min(limits.max_header_bytes, SHARE_HEADER_BYTES, len(body)):
        return None
    request = messages.read(Request, bytes(body[:length]))
    if request is None or not request.inputs or len(request.inputs) > limits.max_tensors:
        return None
    # the requests of a sequence come one after the other
    return None if request.parameters and "sequence_id" in request.parameters else request


def _input(entry: Entry, index: int, blobs: Cursor) -> Generator[None, None, Tensor | None]:
    """The input *entry*, whose bytes are taken off *blobs*; None if it has no rows, or is not binary.

    Takes rows and size out of the entry. Raises `CodecError` if its bytes are not those of its shape.
    """
    size = binary_size(entry, index)
    if size is None or entry.data is not UNSET:
        return None
    tensor = announced(entry, index, size, blobs)
    if not tensor.shape:
        return None
    if tensor.datatype.kind is BYTES:
        yield from elements.check_elements(tensor.blob, element_count(tensor.shape), tensor, utf8=False)
    _describe(entry, (0, *tensor.shape[1:]), _NONE)
    return tensor


def joined(shares: Sequence[Share], request_id: str) -> tuple[bytes, list[memoryview]]:
    """The header and the blobs of one request with the rows of all *shares*, which are of one kind.

    The joined request has the id *request_id* if any of *shares* has an id, so that the answer says whose it is. The
    blobs of *shares* become views of the joined blobs, and no longer hold what clients have sent.
    """
    request = messages.read(Request, shares[0].kind)
    assert request is not None
    rows = sum(share.rows for share in shares)
    blobs: list[memoryview] = []
    for index, entry in enumerate(request.inputs):
        blob = memoryview(b"".join([share.blobs[index] for share in shares]))
        blobs.append(blob)
        start = 0
        for share in shares:
            sent = share.blobs[index]
            share.blobs[index] = blob[start : start + len(sent)]
            start += len(sent)
            sent.release()
        shape = parse_shape(bytes(entry.shape))  # type: ignore[arg-type]  # `_describe` has written it
        assert shape is not None
        _describe(entry, (rows, *shape[1:]), Raw(b"%d" % len(blob)))
    if any(share.id for share in shares):
        request.id = Raw(msgspec.json.encode(request_id))
    return printed(request), blobs


def divided(reply: Reply, shares: Sequence[Share]) -> Generator[None, None, list[Reply]]:
    """The replies to each of *shares*, cut out of *reply* to all of them together, each in memory of its own.

    As soon as it is certain that *reply* can be divided, the blobs of *shares* are let go, and the blobs of *reply* one
    by one. Yields after each step. Raises `CodecError` for an output whose first dimension is not the sum of the rows.
    """
    rows = [share.rows for share in shares]
    header = b"".join(reply.header)
    answer = messages.read(Answer, header)
    if answer is None or len(answer.outputs) != len(reply.outputs):
        raise CodecError("the answer has members that cannot be divided")
    for output in reply.outputs:
        if not output.shape or output.shape[0] != sum(rows):
            words = f"output {output.name!r} has shape {list(output.shape)} for a batch of {sum(rows)} rows"
            raise CodecError(words)
    for share in shares:
        release(share.blobs)
    pieces: list[list[memoryview]] = []
    for output in reply.outputs:
        blob = yield from elements.joined_blobs(output.blobs)
        output.blobs.clear()
        pieces.append((yield from _cut(blob, output.datatype, element_count(output.shape[1:]), rows)))
        del blob
    replies: list[Reply] = []
    for number, share in enumerate(shares):
        replies.append(_part(reply, header, share, [cut[number] for cut in pieces]))
        yield
    return replies


def _cut(
    blob: memoryview, datatype: Datatype, per_row: int, rows: Sequence[int]
) -> Generator[None, None, list[memoryview]]:
    """*blob*, whose rows have *per_row* elements each, in copies of as many rows as *rows* says.

    A view would hold all of *blob* until the last client has read its part.
    """
    pieces: list[memoryview] = []
    end = 0
    for n_rows in rows:
        start = end
        if datatype.kind is BYTES:
            end = yield from elements.end_of(blob, start, n_rows * per_row)
        else:
            end += n_rows * per_row * datatype.item_bytes
        pieces.append((yield from copied(blob[start:end])))
    return pieces


def _part(reply: Reply, header: bytes, share: Share, blobs: list[memoryview]) -> Reply:
    """The part of *reply*, whose JSON is *header*, that *share* gets; its outputs are *blobs*."""
    answer = messages.read(Answer, header)
    assert answer is not None  # `divided` has read the same text
    outputs: list[ReplyOutput] = []
    nonfinite = 0
    for entry, output, blob in zip(answer.outputs, reply.outputs, blobs, strict=True):
        size = Raw(b"%d" % len(blob))
        shape = (share.rows, *output.shape[1:])
        _describe(entry, shape, size)
        parameters = {**output.parameters, "binary_data_size": size}
        outputs.append(ReplyOutput(output.name, output.datatype, shape, parameters, [blob]))
        if reply.nonfinite and output.datatype.kind is FLOAT:
            values = output.datatype.view(blob)
            nonfinite += len(values) - int(np.count_nonzero(output.datatype.is_finite(values)))  # type: ignore[misc]
    answer.id = Raw(share.id) if share.id else UNSET
    return Reply([printed(answer)], outputs, nonfinite)


def _describe(entry: Entry, shape: tuple[int, ...], size: Raw) -> None:
    """Say in *entry* that it has this *shape*, and *size* bytes."""
    entry.shape = Raw(msgspec.json.encode(shape))
    entry.parameters = {**(entry.parameters or {}), "binary_data_size": size}

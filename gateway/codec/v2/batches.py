"""Several requests as one, and its answer as several.

Requests that say the same of everything but the first dimension of their inputs, and their ids, become one request with
the rows of all. Only what is binary on both sides is joined: its rows are bytes behind one another. The JSON of a
request, and that of an answer, is kept with marks in place of its rows and sizes, which are filled in for the batch and
for each client.
"""

from collections.abc import Generator, Iterable, Sequence

import msgspec
from msgspec import Raw

from gateway.codec.inference import HeaderLimits, Tensor, release
from gateway.codec.json.members import OBJECT, decoded, restore_literals
from gateway.codec.tensors import elements
from gateway.codec.tensors.datatypes import BYTES, Datatype, element_count
from gateway.codec.v2.framing import Cursor, Framing, copied
from gateway.codec.v2.messages import Answer, Entry, Parameters, Request, read_message
from gateway.codec.v2.reply import Reply, ReplyOutput
from gateway.codec.v2.request_reading import id_of, read_inputs, select
from gateway.errors import CodecError

SHARE_HEADER_BYTES = 16 * 1024
"""The longest header of a request that is joined with others: what it takes is not counted, and is kept as it waits."""

# No JSON has these bytes.
_ROWS, _SIZE = b"\0", b"\1"

_PARAMETERS = msgspec.json.Decoder(Parameters | None)
_KNOWN = frozenset((*Request.__annotations__, *Answer.__annotations__, *Entry.__annotations__))

# Clients may write their members in any order.
_print_sorted = msgspec.json.Encoder(order="sorted").encode


class Share(msgspec.Struct, frozen=True, gc=False):
    """What one request brings to a batch."""

    kind: bytes
    """Its header without id, and with marks for rows and sizes: requests of one kind may be joined."""
    rows: int
    """The first dimension of each of its inputs."""
    id: bytes
    """As JSON text; empty if it has none."""
    blobs: list[memoryview]
    """The blob of each input."""
    names: Sequence[str]
    """The name of each input."""

    @property
    def n_bytes(self) -> int:
        """The size of its tensors."""
        return sum(map(len, self.blobs))


def read_share(body: memoryview, framing: Framing, limits: HeaderLimits) -> Generator[None, None, Share | None]:
    """What the request in *body* brings to a batch; None for one that goes alone, be it wrong or only uncommon.

    All inputs and outputs are binary, and the inputs have the same first dimension. That each blob has exactly the
    elements of its shape is proved here, so that no request can take the rows of another. Yields after each step.
    """
    length = framing.header_length
    if not length or length > min(limits.max_header_bytes, SHARE_HEADER_BYTES, len(body)):
        return None
    try:
        request = read_message(decoded(OBJECT, bytes(body[:length])), Request, limits.max_tensors)
        tensors = yield from _marked(request, Cursor(body[length:], *(framing.blobs or ())))
        request_id = id_of(request)
        request.pop("id", None)
        kind = restore_literals(_print_sorted(request))
        selection = select(request)
    except CodecError:
        return None
    is_binary = all(selection.named.values()) if selection.named else selection.binary_by_default
    is_known = _is_known(request, (*request["inputs"], *(request.get("outputs") or ())))
    # the requests of a sequence come one after the other
    is_of_sequence = "sequence_id" in (request.get("parameters") or ())
    rows = {tensor.shape[:1] for tensor in tensors}
    if len(rows) != 1 or rows & {(), (0,)} or is_of_sequence or not (is_binary and is_known):
        return None
    names, blobs = zip(*[(tensor.name, tensor.blob) for tensor in tensors], strict=True)
    return Share(kind, tensors[0].shape[0], request_id, list(blobs), names)


def _marked(request: Request, blobs: Cursor) -> Generator[None, None, list[Tensor]]:
    """The inputs of *request*, in which marks take the place of rows and sizes; none if one of them is not binary.

    Raises `CodecError` if the bytes of one are not those of its shape.
    """
    tensors: list[Tensor] = []
    for entry, source in (yield from read_inputs(request, blobs)):
        if not isinstance(source, Tensor):
            return []
        if source.datatype.kind is BYTES:
            yield from elements.check_elements(source.blob, element_count(source.shape), source, utf8=False)
        _mark(entry, source.shape)
        tensors.append(source)
    return tensors


def _is_known(message: Request | Answer, entries: Iterable[Entry]) -> bool:
    """Whether the protocol knows all members of *message* and of its *entries*; others may say something of rows."""
    return all(map(_KNOWN.issuperset, (message, *entries)))


def _check_parameters(parameters: Parameters) -> None:
    """Raise `CodecError` for an answer's parameter that is no number: it may say something of one client's rows."""
    for name, value in parameters.items():
        if name != "content_type" and restore_literals(bytes(value))[:1] in b'"[{':
            raise CodecError(f"the parameter {name[:64]!r} of the answer may say something of one client's rows")


def joined(shares: Sequence[Share], request_id: str) -> tuple[bytes, list[memoryview]]:
    """The header and the blobs of one request with the rows of all *shares*, which are of one kind.

    The joined request has the id *request_id* if any of *shares* has an id, so that the answer says whose it is. The
    blobs of *shares* become views of the joined blobs, and no longer hold what clients have sent.
    """
    blobs: list[memoryview] = []
    for index in range(len(shares[0].blobs)):
        blob = memoryview(b"".join([share.blobs[index] for share in shares]))
        blobs.append(blob)
        start = 0
        for share in shares:
            sent = share.blobs[index]
            share.blobs[index] = blob[start : start + len(sent)]
            start += len(sent)
            sent.release()
    joined_id = msgspec.json.encode(request_id) if any(share.id for share in shares) else b""
    return _filled(shares[0].kind, joined_id, sum(share.rows for share in shares), blobs), blobs


def check_rows(reply: Reply, rows: int) -> None:
    """Raise `CodecError` if an output of *reply* has not as many rows as the request, *rows*: it is no batch then."""
    for output in reply.outputs:
        if output.shape[:1] != (rows,):
            raise CodecError(f"output {output.name!r} has shape {list(output.shape)} in the answer to {rows} rows")


def divided(reply: Reply, shares: Sequence[Share]) -> Generator[None, None, list[Reply]]:
    """The replies to each of *shares*, cut out of *reply* to all of them together, each in memory of its own.

    As soon as it is certain that *reply* can be divided, the blobs of *shares* are let go, and the blobs of *reply* one
    by one. Yields after each step. Raises `CodecError` for an output whose first dimension is not the sum of the rows.
    """
    rows = [share.rows for share in shares]
    answer = read_message(decoded(OBJECT, b"".join(reply.header)), Answer, len(reply.outputs))
    if not _is_known(answer, answer["outputs"]):
        raise CodecError("the answer has members that cannot be divided")
    of_answer = decoded(_PARAMETERS, bytes(answer["parameters"])) if "parameters" in answer else None
    for parameters in (of_answer, *(entry.get("parameters") for entry in answer["outputs"])):
        _check_parameters(parameters or {})
    check_rows(reply, sum(rows))
    for entry, output in zip(answer["outputs"], reply.outputs, strict=True):
        _mark(entry, output.shape)
    answer.pop("id", None)
    header = restore_literals(_print_sorted(answer))
    for share in shares:
        release(share.blobs)
    pieces: list[list[memoryview]] = []
    for output in reply.outputs:
        blob = yield from elements.joined_blobs(output.blobs)
        output.blobs.clear()
        pieces.append((yield from _cut(blob, output.datatype, element_count(output.shape[1:]), rows)))
        del blob
    replies: list[Reply] = []
    for share, *blobs in zip(shares, *pieces, strict=True):
        outputs = [
            ReplyOutput(output.name, output.datatype, (share.rows, *output.shape[1:]), [blob])
            for output, blob in zip(reply.outputs, blobs, strict=True)
        ]
        nonfinite = 0 if replies else reply.nonfinite  # it is only counted in sum
        replies.append(Reply([_filled(header, share.id, share.rows, blobs)], outputs, nonfinite))
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


def _mark(entry: Entry, shape: tuple[int, ...]) -> None:
    """Put marks for rows and size into *entry*, whose tensor has this *shape*."""
    entry["shape"] = Raw(b"[%b]" % b",".join([_ROWS, *[b"%d" % size for size in shape[1:]]]))
    entry["parameters"] = {**(entry.get("parameters") or {}), "binary_data_size": Raw(_SIZE)}


def _filled(header: bytes, message_id: bytes, rows: int, blobs: Sequence[memoryview]) -> bytes:
    """*header* for so many *rows* in *blobs*, and with *message_id*, unless that is empty."""
    beginning, *texts_behind = header.replace(_ROWS, b"%d" % rows).split(_SIZE)
    sizes = [b"%d%b" % (len(blob), text) for blob, text in zip(blobs, texts_behind, strict=True)]
    filled = b"".join([beginning, *sizes])
    return b'{"id":%b,%b' % (message_id, filled[1:]) if message_id else filled

"""Replies, and JSON that is put together without copying what is long."""

from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.v2.messages import LIST_LATER, Answer, Entry, printed
from gateway.codec.v2.reply import WRITE_BYTES, Reply, ReplyOutput, long_pieces


def test_short_texts_are_joined_and_long_ones_stay_themselves() -> None:
    long = b"x" * WRITE_BYTES
    outputs = [Entry(data=LIST_LATER), Entry(data=LIST_LATER), Entry()]
    pieces = long_pieces(printed(Answer(outputs=outputs), [[b"1", b",", long], [b"2"]]))
    assert pieces == [b'{"outputs":[{"data":[1,', long, b']},{"data":[2]},{}]}']
    assert pieces[1] is long


def test_a_reply_counts_its_json_and_its_blobs() -> None:
    blobs = [memoryview(b"12"), memoryview(b"")]
    outputs = [ReplyOutput("y", DATATYPES["INT8"], (len(blob),), [blob]) for blob in blobs]
    reply = Reply([b"ab", b"c"], outputs, 0)
    assert (reply.header_bytes, reply.n_bytes) == (3, 5)
    assert (reply.blobs, reply.datatypes) == (blobs, ["INT8", "INT8"])

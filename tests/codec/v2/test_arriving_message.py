"""A message that is read while it arrives: what goes where, what is held, and how long a step is."""

import itertools
from typing import Any

import pytest

from gateway.codec.inference import HeaderLimits
from gateway.codec.json.arriving import ArrivingText, Reading
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.json.sinks import TextSink
from gateway.codec.v2.messages import RUN_BYTES, Answer, ArrivingMessage, Entry, printed
from gateway.errors import CodecError, TooLargeError
from tests.codec.walk import cut, exhaust

LIMITS = HeaderLimits(max_header_bytes=1 << 20)
LONG = b"1," * RUN_BYTES + b"1"


class Read:
    """The answer *text*, read while it arrives in chunks, and the long `data` in it."""

    def __init__(
        self, text: bytes, chunk_bytes: int | None = None, limits: HeaderLimits = LIMITS, *, is_all: bool = True
    ) -> None:
        self.taken: list[bytes] = []
        self.known: list[list[str]] = []
        self.arriving = ArrivingMessage(Answer, limits, self._take, is_all=is_all)
        reading = self.arriving.read()
        for chunk in cut(text, chunk_bytes):
            if self.arriving.text.add(chunk):
                exhaust(self.arriving.go_on(reading))
        self.arriving.text.end()
        exhaust(self.arriving.go_on(reading))

    def _take(self, text: ArrivingText, entry: Entry) -> Reading[int]:
        pieces: list[bytes] = []
        self.known.append(list(entry))
        yield from text.pour(TextSink("value", pieces))
        self.taken.append(b"".join(pieces))
        return len(self.taken) - 1

    @property
    def message(self) -> Any:
        return self.arriving.message()


@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
@pytest.mark.parametrize(
    "data",
    [
        b"[%b]" % LONG,
        b'["a","]","\\"]","\\\\",%b]' % LONG,
        b'{"data":{"data":[%b]}}' % LONG,
        b'"%b, ]}"' % LONG,
        b"[NaN,-Infinity,%b]" % LONG,
    ],
)
def test_long_data_is_taken_and_what_stands_for_it_is_in_its_place(data: bytes, chunk_bytes: int | None) -> None:
    text = b' {"a":{"data":[0]},"outputs":[{"name":"x","data":%b , "p":{"data":[7]}},{"data" : %b}],"z":1}' % (
        data,
        data,
    )
    read = Read(text, chunk_bytes)
    assert read.taken == [data, data]
    assert read.known == [["name"], []]
    assert (
        b"".join(printed(read.message))
        == b'{"a":{"data":[0]},"outputs":[{"name":"x","data":0,"p":{"data":[7]}},{"data":1}],"z":1}'
    )
    assert read.arriving.text.consumed == len(text)
    assert read.arriving.header_bytes <= len(text) - 2 * len(data)


@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize(
    ("text", "n_values"),
    [
        (b'{"outputs":[{"d\\u0061ta":[%b]}]}', 1),
        (b'{"\\u006futputs":[{"data":[%b]}]}', 1),
        (b'{"outputs":[{"name":"data","x":"outputs","data":[%b]}]}', 1),
        (b'{"outputs":[{"data":[%b],"data":[%b]}]}', 2),
        (b'{"outputs":[{"data":[%b]}],"outputs":[{"data":[%b]}]}', 2),
        (b'{"outputs":[{"dat\\\\u0061":[%b]}]}', 0),
        (b'{"x":"outputs","y":[{"data":[%b]}],"outputs":[]}', 0),
        (b'{"x":{"outputs":[{"data":[%b]}]},"outputs":[]}', 0),
        (b'{"outputs":[],"other":[{"data":[%b]}]}', 0),
        (b'{"outputs":[{"x":{"data":[%b]}}]}', 0),
    ],
)
def test_only_data_of_entries_of_the_section_is_taken(text: bytes, n_values: int, chunk_bytes: int | None) -> None:
    read = Read(text.replace(b"%b", LONG), chunk_bytes)
    assert len(read.taken) == n_values
    assert len(read.message["outputs"]) <= 1


@pytest.mark.parametrize("text", [b"[1]", b"1", b'"x"', b"x{}", b"}", b"  ]", b"\xef\xbb\xbf{}", b"null"])
def test_document_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError, match="expected a JSON object"):
        Read(text)


@pytest.mark.parametrize(
    "text", [b"", b" ", b"{", b'{"a', b'{"a"', b'{"outputs":[', b'{"outputs":[{"data":[1,', b'{"outputs":[{"data":"x']
)
def test_document_that_ends_too_early_is_cut_off(text: bytes) -> None:
    with pytest.raises(CodecError, match="cut off"):
        Read(text)


def test_what_follows_the_document_is_refused_or_left_alone() -> None:
    with pytest.raises(CodecError, match="trailing characters behind 14 bytes"):
        Read(b'{"outputs":[]}{{{"')
    for is_all, text in ((True, b"  \n"), (False, b'{{{"')):
        read = Read(b'{"outputs":[]}' + text, is_all=is_all)
        assert read.arriving.text.consumed == 14
        assert read.arriving.text.buffer == (b"" if is_all else text)


def test_key_or_string_around_data_may_be_cut_anywhere() -> None:
    text = b'{"id":"a\\"]}","outputs" : [ { "n\\\\" : "\\u00e9", "data" \t : ["%b"] } ] , "x":"{\\\\"}' % LONG
    whole = Read(text)
    for position in (*range(100), *range(len(text) - 100, len(text))):
        reading = (read := ArrivingMessage(Answer, LIMITS, whole._take)).read()
        for chunk in (text[:position], text[position:]):
            read.text.add(chunk)
            exhaust(read.go_on(reading))
        assert read.done
        assert read.header_bytes == whole.arriving.header_bytes


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        (b'{"id":"', b"x"),
        (b'{"outputs"', b" "),
        (b"{", b" "),
        (b"{", b'"x":1,'),
        (b'{"x":[', b"1,"),
        (b'{"outputs":[{"name":"x",', b'"x":1,'),
        (b'{"outputs":[{"parameters":{', b'"x":[[[[[[[1]]]]]]],'),
    ],
)
def test_endless_text_beside_the_data_is_refused_at_the_limit(head: bytes, unit: bytes) -> None:
    with pytest.raises(TooLargeError, match="limits.header"):
        Read(head + unit * (2 * LIMITS.max_header_bytes // len(unit)), PIECE_BYTES)


@pytest.mark.parametrize("entries", [b"{}," * 5 + b"{}", b'{"a":[{},{}]},' * 5 + b"{}", b'{"x":[%b]},' % LONG * 6])
def test_more_entries_than_allowed_are_refused_while_they_are_read(entries: bytes) -> None:
    text = b'{"x":[[{},{},{}]],"outputs":[%b]}' % entries.rstrip(b",")
    assert len(Read(text, limits=HeaderLimits(1 << 20, max_tensors=6)).message["outputs"]) == 6
    with pytest.raises(CodecError, match=r"more than 5 entries in `outputs`.*`limits.tensors`"):
        assert Read(text, limits=HeaderLimits(1 << 20, max_tensors=5)).message is None


def test_one_long_entry_too_many_ends_the_reading() -> None:
    entries = b'{"data":[%b]},' % LONG * 6
    with pytest.raises(CodecError, match="cut off"):
        Read(b'{"outputs":[' + entries, limits=HeaderLimits(1 << 20, max_tensors=6))
    with pytest.raises(CodecError, match=r"more than 5 entries in `outputs`.*`limits.tensors`"):
        Read(b'{"outputs":[' + entries, limits=HeaderLimits(1 << 20, max_tensors=5))


@pytest.mark.parametrize("entries", [b"[]", b"{},1", b"1", b"[%b]" % LONG, b'"data",{"x":"data"}'])
def test_section_must_be_an_array_of_objects(entries: bytes) -> None:
    for text in (b'{"outputs":[%b]}', b'{"outputs":[{"data":[%b]},%%b]}' % LONG, b'{"x":NaN,"outputs":[%b]}'):
        with pytest.raises(CodecError, match="`outputs` must be an array of objects"):
            assert Read(text.replace(b"%b", entries)).message is None


def test_limit_counts_the_json_beside_the_data_and_names_what_to_set() -> None:
    for data in (b"1," * 500, b"NaN," * 200, b"1," * 50_000):
        text = b'{"outputs":[{"data":[%b1]},{"data":[%b1]}],"x":"%b"}' % (data, data, b"y" * 1000)
        Read(text, limits=HeaderLimits(1100))
        with pytest.raises(TooLargeError, match=r"longer than 1000 bytes.*`limits.header`"):
            Read(text, limits=HeaderLimits(1000))


@pytest.mark.parametrize(
    "text",
    [
        b'{"p":[%b1]}' % (b"[]," * 100_000),
        b'{%b"b":1}' % (b'"a":"",' * 100_000),
        b'{"p":"%b"}' % (b"\\n" * 200_000),
        b'{"p":[%b1]}' % (b"1," * 200_000),
        b"{%b}" % (b" " * 500_000),
    ],
    ids=["brackets", "members", "long_string", "numbers", "blanks"],
)
def test_each_step_is_short(text: bytes) -> None:
    arriving = ArrivingMessage(Answer, LIMITS, lambda text, entry: iter(()))  # type: ignore[arg-type,return-value]
    arriving.text.add(text)
    consumed = [arriving.text.consumed for _ in arriving.go_on(arriving.read())]
    assert arriving.done
    assert max(end - start for start, end in itertools.pairwise(consumed)) <= PIECE_BYTES + len('{"p":')


@pytest.mark.parametrize("strings", [b'"%b":1' % (b"x" * 10_000), b",".join([b'"%b":1' % (b"x" * 100)] * 100)])
def test_text_that_comes_byte_by_byte_is_not_read_each_time(strings: bytes) -> None:
    text = b'{"outputs":[],%b}' % strings
    arriving = ArrivingMessage(Answer, LIMITS, lambda text, entry: iter(()))  # type: ignore[arg-type,return-value]
    reading = arriving.read()
    looked_at = 0
    for chunk in cut(text, 1):
        if arriving.text.add(chunk):
            looked_at += len(arriving.text.buffer)
            exhaust(arriving.go_on(reading))
    assert looked_at < 5 * len(text)

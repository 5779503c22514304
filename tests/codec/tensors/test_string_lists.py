"""BYTES in lists: with the shape known or learned, however the lists are long, written and cut."""

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors.elements import RUN_STEP_ELEMENTS, STEP_ELEMENTS, WINDOW_BYTES
from gateway.codec.tensors.string_reading import BytesSink
from gateway.errors import CodecError
from tests.codec.make_pairs import blob_of, nested
from tests.codec.test_properties import DICE, PROFILE, chunks_of, scrambled
from tests.codec.walk import cut

SHORT = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(lambda shape: math.prod(shape) <= 200)
LONG = st.sampled_from(
    [[900], [900, 1], [60, 16], [3, 300], [1, 900], [30, 2, 16], [300, 3, 1], [300, 1, 3], [225, 2, 2], [2, 3, 5, 30]]
)
SHAPES = st.one_of(SHORT, LONG)
ALPHABETS = ["ab c", "abcdefgh", 'ab",', "a\\\n", 'a"\\', "],[", '"],["', "\x00\x01\x7f_", "é😀a", 'é\x7f"', ", :{}"]


def texts_of(n_texts: int, dice: random.Random) -> list[str]:
    """Strings that are alike long or not, of letters that may look like separators, lengths and escapes."""
    alphabet = dice.choice(ALPHABETS)
    sizes = dice.choice([[0], [1], [6], [40], [0, 1, 2, 3], list(range(30))])
    texts = ["".join(dice.choices(alphabet, k=dice.choice(sizes))) for _ in range(n_texts)]
    for _ in range(dice.choice([0, 0, 1, 3]) if texts else 0):
        texts[dice.randrange(n_texts)] = dice.choice(
            ['","', '"],["', "],[", "]", "\\", '\\"', "\\\\", "\0", "é", "", "xyz"]
        )
    return texts


def written(data: Any, dice: random.Random) -> str:
    """*data* as JSON in one of the ways that servers write it, or in one that none does."""
    if dice.random() < 0.1:
        return scrambled(data, dice)
    item, indent = dice.choice([(",", None), (",", None), (", ", None), (", ", None), (" , ", None), (",", 1)])
    return json.dumps(data, ensure_ascii=dice.random() < 0.5, separators=(item, ":"), indent=indent)


def read(
    chunks: list[bytes], shape: tuple[int, ...] | None, *, b64_objects: bool = False
) -> tuple[tuple[int, ...], bytes]:
    """The shape and the elements. Raises what the sink raises, and `EOFError` if the array does not end with them."""
    sink = BytesSink("y", shape, b64_objects=b64_objects)
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while buffer and not sink.done and (taken := sink.step(buffer)):
            assert taken <= WINDOW_BYTES
            del buffer[:taken]
    if not sink.done or buffer.strip():
        raise EOFError
    return sink.shape, b"".join(sink.blobs())


@given(SHAPES, DICE)
@PROFILE
def test_lists_are_read_like_flat_data_whether_their_shape_is_known_or_not(
    shape: list[int], dice: random.Random
) -> None:
    texts = texts_of(math.prod(shape), dice)
    blob = blob_of(texts)
    nested_text = written(nested(texts, shape), dice).encode()
    flat_text = written(texts, dice).encode()
    learned = tuple(shape[: shape.index(0) + 1]) if 0 in shape else tuple(shape)
    assert read(chunks_of(nested_text, dice), None) == (learned, blob)
    assert read(chunks_of(nested_text, dice), tuple(shape)) == (tuple(shape), blob)
    assert read(chunks_of(flat_text, dice), tuple(shape)) == (tuple(shape), blob)
    assert read(chunks_of(flat_text, dice), None) == ((len(texts),), blob)


def shape_and_texts(data: Any) -> tuple[tuple[int, ...], list[Any]] | None:
    """What nested lists of strings are, by the plainest way; None if they are ragged."""
    if not isinstance(data, list):
        return (), [data]
    items = [shape_and_texts(item) for item in data]
    if not items:
        return (0,), []
    if items[0] is None or any(item is None or item[0] != items[0][0] for item in items):
        return None
    return (len(items), *items[0][0]), [text for item in items for text in item[1]]  # type: ignore[index]


def leaves(data: Any) -> list[Any]:
    return [leaf for item in data for leaf in leaves(item)] if isinstance(data, list) else [data]


def as_json_reads(text: bytes) -> Any:
    """The lists of strings that Python's own parser reads in *text*; None if it is none."""
    try:
        data = json.loads(text.decode())
        if not isinstance(data, list) or not all(isinstance(leaf, str) for leaf in leaves(data)):
            return None
        "".join(leaves(data)).encode()  # fails for a lone surrogate
    except ValueError:
        return None
    return data


@pytest.mark.parametrize("seed", range(20))
def test_damaged_lists_are_read_as_by_another_parser(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(10):
        shape = dice.choice([[200, 1], [13, 16], [10, 2, 10], [3, 65], [50, 2, 2], [2, 2]])
        whole = written(nested(texts_of(math.prod(shape), dice), shape), dice).encode()
        for n_damages in (0, 1, 1, 2):
            text = bytearray(whole)
            for _ in range(n_damages):
                damage = dice.choice(
                    [b'"', b",", b"\\", b" ", b"", b"\0", b"\xc3", b"a", b"[", b"]", b"],[", b'","', b'"],["']
                )
                place = dice.randrange(len(text))
                text[place : place + dice.choice([0, 1, 1, 3])] = damage
            data = as_json_reads(bytes(text))
            expected = shape_and_texts(data) if data is not None else None
            try:
                found = read(cut(bytes(text), dice.choice([None, 100, 1000])), None)
            except (CodecError, EOFError):
                found = None
            assert found == (expected and (expected[0], blob_of(expected[1])))
            try:
                found = read(cut(bytes(text), dice.choice([None, 100, 1000])), tuple(shape))
            except (CodecError, EOFError):
                assert expected is None or expected[0] != tuple(shape)
            else:  # lists may be left out where the shape is known
                assert found == (tuple(shape), blob_of(leaves(data)))


@pytest.mark.parametrize("odd", ["[", "]", "[[]]", '["a"]', '"a"', "[],", "", "{}"])
@pytest.mark.parametrize("place", [0, 1, 500, 999])
def test_odd_one_of_many_empty_lists_is_found(odd: str, place: int) -> None:
    items = ["[]"] * 1000
    items[place] = odd
    with pytest.raises((CodecError, EOFError)):
        read([f"[{','.join(items)}]".encode()], None)
    items[place] = "[] \n"
    assert read([f"[{','.join(items)}]".encode()], None) == ((1000, 0), b"")


@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
@pytest.mark.parametrize(
    ("data", "shape", "texts"),
    [
        ("[]", (0,), []),
        ("[ [ ] , [] ]", (2, 0), []),
        ("[[[]],[[]]]", (2, 1, 0), []),
        ('["a"]', (1,), ["a"]),
        ('["a","","é"]', (3,), ["a", "", "é"]),
        ('[["a"],["b"]]', (2, 1), ["a", "b"]),
        ('[[["a","b"]],[["c","d"]],[["e","f"]]]', (3, 1, 2), ["a", "b", "c", "d", "e", "f"]),
    ],
)
def test_shape_is_learned_from_the_lists(
    data: str, shape: tuple[int, ...], texts: list[Any], chunk_bytes: int | None
) -> None:
    assert read(cut(data.encode(), chunk_bytes), None) == (shape, blob_of(texts))


@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
@pytest.mark.parametrize(
    "data",
    [
        '[["a","b"],["c"]]',
        '[["a"],["b","c"]]',
        '[["a"],[]]',
        '[[],["a"]]',
        '["a",["b"]]',
        '[["a"],"b"]',
        '[[],"a"]',
        '["a",[]]',
        "[[[]],[]]",
        "[[],[[]]]",
        '[[["a"]],["b"]]',
        '[[["a"],["b"]],[["c"]]]',
    ],
)
def test_ragged_lists_are_refused_where_the_shape_is_learned(data: str, chunk_bytes: int | None) -> None:
    with pytest.raises(CodecError, match="ragged"):
        read(cut(data.encode(), chunk_bytes), None)


@pytest.mark.parametrize("is_learned", [False, True])
@pytest.mark.parametrize("shape", [[300, 1], [40, 16], [10, 3, 16], [4, 100]])
def test_one_list_of_another_length_among_many_is_refused(shape: list[int], is_learned: bool) -> None:
    for row in (1, 2, shape[0] // 2, shape[0] - 1):
        for change in ("longer", "shorter", "deeper", "nothing in it"):
            data = nested([f"text {index}" for index in range(math.prod(shape))], shape)
            inner = data[row]
            while isinstance(inner[0], list):
                inner = inner[-1]
            if change == "longer":
                inner.append("x")
            elif change == "shorter":
                inner.pop()
            elif change == "deeper":
                inner[-1] = [inner[-1]]
            else:
                inner[-1] = []
            text = json.dumps(data, separators=(",", ":")).encode()
            for chunk_bytes in (None, 500):
                with pytest.raises(CodecError, match="ragged|nested|expected"):
                    read(cut(text, chunk_bytes), None if is_learned else tuple(shape))


@pytest.mark.parametrize("separator", [",", ", "])
@pytest.mark.parametrize("shape", [[20_000], [20_000, 1], [1250, 16], [5, 4000], [625, 2, 16], [5000, 2, 2]])
@pytest.mark.parametrize("text", ["{:05}", "{}", "\n{}", "{:0100}"])
def test_lists_are_read_in_few_steps(text: str, shape: list[int], separator: str) -> None:
    """Nearly all strings are read in runs: a step takes much of what has arrived, in lists as in flat data."""
    texts = [text.format(index) for index in range(math.prod(shape))]
    data = json.dumps(nested(texts, shape), separators=(separator, ":")).encode()
    for known in (tuple(shape), None):
        sink = BytesSink("y", known)
        buffer = bytearray()
        n_steps = 0
        for chunk in cut(data, PIECE_BYTES):
            buffer += chunk
            while buffer and not sink.done and (taken := sink.step(buffer)):
                del buffer[:taken]
                n_steps += 1
        assert sink.done
        assert b"".join(sink.blobs()) == blob_of(texts)
        assert n_steps <= 4 * (len(data) // PIECE_BYTES + 2)


@pytest.mark.parametrize("strings", [[b'""', b'"a"'], [b'""', b'"a" '], [b'"\\n"', b'"a"']])
@pytest.mark.parametrize("front", [b"", b'"' + b"b" * 200_000 + b'",'])
def test_one_step_reads_so_many_strings_at_most(front: bytes, strings: list[bytes]) -> None:
    buffer = bytearray(b"[%b%b]" % (front, b",".join(strings * 60_000)))
    sink = BytesSink("y", None)
    most = held = 0
    while not sink.done:
        del buffer[: sink.step(buffer)]
        if held:
            most = max(most, (sink.held_bytes - held) // 4)
        held = sink.held_bytes
    assert most <= 2 * RUN_STEP_ELEMENTS  # an element takes five bytes at most


@pytest.mark.parametrize("element", ['""', '"\\n"', '"abcdefgh"'])
@pytest.mark.parametrize("rank", [1, 2, 3, 10, 20])
def test_one_step_reads_so_many_lists_at_most(rank: int, element: str) -> None:
    """A list costs as much as a string."""
    item = "[" * (rank - 1) + element + "]" * (rank - 1)
    n_items = 200_000 // len(item)
    buffer = bytearray(f"[{','.join([item] * n_items)}]".encode())
    sink = BytesSink("y", None)
    most = 0
    while not sink.done:
        taken = sink.step(buffer)
        step = bytes(buffer[:taken])
        most = max(most, step.count(b"[") + step.count(b'"') // 2)
        del buffer[:taken]
    assert sink.shape == (n_items,) + (1,) * (rank - 1)
    at_once = RUN_STEP_ELEMENTS if rank == 1 else STEP_ELEMENTS
    assert most <= at_once + 512  # and some that are read one by one


def test_missing_elements_become_what_the_sink_was_told() -> None:
    sink = BytesSink("y", None, missing=b"-")
    buffer = bytearray(b'[["a",null],[NaN,"b"]]')
    while not sink.done:
        del buffer[: sink.step(buffer)]
    assert sink.shape == (2, 2)
    assert b"".join(sink.blobs()) == blob_of(["a", "-", "-", "b"])

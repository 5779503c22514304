"""Long arrays and objects are cut into runs of whole items, wherever a step ends."""

import random

import pytest

from gateway.codec.json.brackets import END_ARRAY, END_OBJECT, STEP_TOKENS
from gateway.codec.json.items import RUN_BYTES, end_of_run
from gateway.errors import CodecError

ITEMS = [
    b"1", b' "a,]"', b'"\\",\\\\"', b"[1,[2,3]]", b'{"a":[1,2],"b":{}}', b"[]", b" null ", b'"%b"' % (b"x," * 40),
    b'"%b"' % (b"x" * 3000), b'["%b",1]' % (b"]" * RUN_BYTES), b"[%b1]" % (b"[]," * STEP_TOKENS),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_runs_are_whole_items_and_leave_none_out(seed: int) -> None:
    dice = random.Random(seed)
    for n_items in (1, 12, 300, 3000):
        some = dice.sample(ITEMS, dice.randrange(1, len(ITEMS)))
        left = dice.choices(some, k=min(n_items, 300_000 // max(map(len, some))))
        text = b"[%b]" % b",".join(left)
        start = 1
        while left:
            end = end_of_run(text, start, END_ARRAY)
            if not end:  # the first item is long: whoever asked reads it by itself
                assert len(left[0]) >= RUN_BYTES or left[0].count(b"[") >= STEP_TOKENS // 2
                end = start + len(left.pop(0))
            else:
                assert end - start <= RUN_BYTES
                run: list[bytes] = []
                while b",".join(run) != text[start:end]:
                    run.append(left.pop(0))
            assert text[end : end + 1] == (b"," if left else b"]")
            start = end + 1
        assert start == len(text)


def test_items_that_are_small_come_in_runs() -> None:
    text = b"[%b]" % b",".join([b'{"a":12345678901234567890}'] * 10_000)
    assert RUN_BYTES - 30 < end_of_run(text, 1, END_ARRAY) <= RUN_BYTES


def test_members_end_where_the_object_ends() -> None:
    text = b'{"a":[1,2],"b":"}"}'
    assert end_of_run(text, 1, END_OBJECT) == len(text) - 1


def test_other_closing_bracket_is_refused() -> None:
    with pytest.raises(CodecError, match=r"']' in place of '}'"):
        end_of_run(b'{"a":1]', 1, END_OBJECT)


@pytest.mark.parametrize("text", [b"[1", b"[[1,2]", b'["a', b'["a,\\', b'[{"a":1,"b":2'])
def test_array_without_an_end_has_no_run(text: bytes) -> None:
    assert end_of_run(text, 1, END_ARRAY) == 0

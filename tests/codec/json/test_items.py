"""Long arrays and objects are cut into runs of whole items, wherever a step ends."""

import random

import pytest

from gateway.codec.json import items as items_module
from gateway.codec.json.brackets import ARRAY, OBJECT
from gateway.codec.json.items import RUN_BYTES, Items
from gateway.errors import CodecError

ITEMS = [b"1", b' "a,]"', b'"\\",\\\\"', b"[1,[2,3]]", b'{"a":[1,2],"b":{}}', b"[]", b" null ", b'"%b"' % (b"x," * 40)]


def runs_of(text: bytes, opening: int = ARRAY) -> list[bytes]:
    items = Items(text, opening)
    runs = []
    while not items.done:
        run = items.step()
        if run is not None:
            runs.append(text[run[0] : run[1]])
    return runs


@pytest.mark.parametrize("seed", range(30))
def test_runs_joined_with_commas_are_the_inside_of_the_array(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(40):
        monkeypatch.setattr(items_module, "RUN_BYTES", run_bytes := dice.randrange(2, 60))
        monkeypatch.setattr(items_module, "STEP_TOKENS", dice.choice([2, 5, 1000]))
        expected = dice.choices(ITEMS, k=dice.randrange(12))
        inside = b",".join(expected)
        runs = runs_of(b" [%b] " % inside)
        assert b",".join(runs) == inside
        for run in runs:
            assert len(run) <= run_bytes or run in expected, "a run that is longer than a step is one item"


def test_items_that_are_small_come_in_runs() -> None:
    inside = b",".join([b'{"a":1}'] * 10_000)
    assert len(runs_of(b"[%b]" % inside)) <= 2 * len(inside) // RUN_BYTES


def test_object_is_cut_between_its_members() -> None:
    assert b",".join(runs_of(b'{"a":[1,2],"b":"}"}', OBJECT)) == b'"a":[1,2],"b":"}"'


@pytest.mark.parametrize(
    "text", [b"[1,2", b"[1,[2]", b'["a', b'["a\\', b"[1]]", b"[1] x", b"[1}", b"{}", b"", b" ", b"1"]
)
def test_array_that_does_not_end_with_its_bracket_is_refused(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    for run_bytes in (2, 100):
        monkeypatch.setattr(items_module, "RUN_BYTES", run_bytes)
        with pytest.raises(CodecError):
            runs_of(text)

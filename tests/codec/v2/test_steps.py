"""Work in steps comes to the same as work in one go, and no step is long."""

import pytest

from gateway.codec import run
from gateway.codec.json.members import object_text, protect_literals, restore_literals
from gateway.codec.v2.steps import ITEM_COST, STEP_COST, Steps, sliced_restore, sliced_text


def test_step_is_full_after_so_much_work_and_the_next_one_begins() -> None:
    steps = Steps()
    for _ in range(2):
        assert [steps.is_full_with(STEP_COST // 4) for _ in range(4)] == [False, False, False, True]
    assert steps.is_full_with(10 * STEP_COST)
    assert not steps.is_full_with(STEP_COST - 1)


@pytest.mark.parametrize("n_members", [0, 1, 2, 5000])
def test_object_printed_in_steps_is_the_same_text(n_members: int) -> None:
    members = {f'"{number}é': b"[%d]" % number for number in range(n_members)}
    assert run(sliced_text(members)) == object_text(members)
    assert sum(1 for _ in sliced_text(members)) >= n_members * ITEM_COST // STEP_COST


@pytest.mark.parametrize("separator", [b",", b", ", b',"x",', b"," + b" " * 21])
def test_literals_restored_in_steps_are_the_same_wherever_the_text_is_cut(separator: bytes) -> None:
    for offset in range(0, 24):
        text = b"[" + b" " * offset + separator.join([b"NaN", b"-Infinity", b"Infinity", b"7"] * 2000) + b"]"
        protected, marker = protect_literals(text)
        assert marker
        assert run(sliced_restore(protected, marker)) == restore_literals(protected, marker) == text
    assert sum(1 for _ in sliced_restore(protected, marker)) >= len(protected) // STEP_COST

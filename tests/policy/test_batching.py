"""When requests go together: each case is what comes, and what goes at once, later, or at the end of another batch."""

from gateway.policy.batching import BATCH_BYTES, BatchLimits, Lane, Waiting

LIMITS = BatchLimits(max_rows=4, max_delay_s=0.005)


def one(what: str, rows: int = 1, kind: str = "k", since_s: float = 0.0, n_bytes: int = 1) -> Waiting[str]:
    """A request called *what*."""
    return Waiting(what, kind, rows, n_bytes, since_s)


def busy() -> Lane[str]:
    """A lane of which one batch is under way."""
    lane = Lane[str](LIMITS)
    lane.begin()
    return lane


def went(batches: object) -> list[str]:
    """Each batch as the names in it."""
    return ["".join(waiting.what for waiting in batch) for batch in batches]  # type: ignore[attr-defined]


def test_one_waits_while_another_is_under_way() -> None:
    lane = busy()
    assert lane.next_due_s is None
    assert went(lane.add(one("a", since_s=1.0))) == []
    assert went(lane.end()) == ["a"]
    assert lane.under_way == 1


def test_full_batches_go_at_once() -> None:
    lane = busy()
    assert [went(lane.add(one(name))) for name in "abcde"] == [[], [], [], ["abcd"], []]
    assert lane.under_way == 2


def test_what_does_not_fit_any_more_sends_off_those_before_it() -> None:
    lane = busy()
    assert [went(lane.add(one(name, rows))) for name, rows in (("a", 3), ("b", 2), ("c", 2))] == [[], ["a"], ["bc"]]
    assert went(lane.add(one("d", n_bytes=BATCH_BYTES - 1))) == []
    assert went(lane.add(one("e", n_bytes=2))) == ["d"]


def test_kinds_do_not_mix() -> None:
    lane = busy()
    for name, kind in (("a", "k"), ("b", "l"), ("c", "k")):
        assert went(lane.add(one(name, kind=kind))) == []
    assert went(lane.end()) == ["ac", "b"]
    assert lane.under_way == 2


def test_the_end_of_one_of_two_sends_nothing() -> None:
    lane = busy()
    for name in "abcde":
        went(lane.add(one(name)))
    assert went(lane.end()) == []
    assert went(lane.end()) == ["e"]


def test_the_first_waits_longest() -> None:
    lane = busy()
    went(lane.add(one("a", since_s=1.0)))
    went(lane.add(one("b", kind="l", since_s=1.002)))
    went(lane.add(one("c", since_s=1.004)))
    assert lane.next_due_s == 1.005
    assert went(lane.due(1.004)) == []
    assert went(lane.due(1.005)) == ["ac"]
    assert lane.next_due_s == 1.002 + LIMITS.max_delay_s
    assert went(lane.due(2)) == ["b"]


def test_who_leaves_waits_no_longer() -> None:
    lane = busy()
    gone, stays = one("a"), one("b")
    went(lane.add(gone))
    went(lane.add(stays))
    lane.remove(gone)
    assert went(lane.due(1)) == ["b"]
    lane.remove(stays)  # it is under way by now
    lane.remove(one("c"))
    assert lane.next_due_s is None


def test_what_goes_alone() -> None:
    lane = Lane[str](LIMITS)
    assert lane.takes(3, 1)
    assert not lane.takes(4, 1)
    assert not lane.takes(1, BATCH_BYTES)

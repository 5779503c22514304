"""Who gets the next attempt: turns, the fewest in flight, and who may be asked at all."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gateway.policy.balancing import candidates, due, least_in_flight, round_robin
from gateway.policy.ejection import Ejection


@dataclass(eq=False)
class Place:
    """An endpoint as the decisions see it."""

    name: str
    in_flight: int = 0
    is_up: bool = True
    ejection: Ejection = field(default_factory=Ejection)


def place(text: str) -> Place:
    """From a row of a table: `a` is well, `a-` is down, `a!` was ejected at 0 s, for 30 s."""
    made = Place(text[0], is_up="-" not in text)
    if "!" in text:
        assert made.ejection.fail(0, None, failures=1, window_s=30, for_s=30, may_eject=True)
    return made


def names(places: Sequence[Place]) -> str:
    return "".join(each.name for each in places)


def test_endpoints_take_turns() -> None:
    assert "".join(round_robin("abc", turn) for turn in range(7)) == "abcabca"


@pytest.mark.parametrize(
    ("in_flight", "picked"),
    [
        ([0], "aaaa"),
        ([3, 1, 2], "bbbb"),
        ([0, 0, 0], "abca"),
        ([1, 0, 0], "bcbc"),
        ([0, 5, 0], "acac"),
        ([2, 2, 9], "abab"),
    ],
)
def test_the_fewest_in_flight_win_and_those_with_equally_few_take_turns(in_flight: list[int], picked: str) -> None:
    places = [Place(name, count) for name, count in zip("abc", in_flight, strict=False)]
    assert "".join(least_in_flight(places, turn).name for turn in range(4)) == picked


def test_the_fewest_in_flight_spread_requests_that_do_not_end() -> None:
    places = [Place(name) for name in "abc"]
    for turn in range(10):
        least_in_flight(places, turn).in_flight += 1
    assert sorted(each.in_flight for each in places) == [3, 3, 4]


@pytest.mark.parametrize(
    ("endpoints", "tried", "now_s", "expected"),
    [
        # those that are well, and nobody else
        ("a b c", "", 1, "abc"),
        ("a b- c", "", 1, "ac"),
        ("a b! c", "", 1, "ac"),
        ("a! b- c", "", 1, "c"),
        # after `for`, one attempt may go to the one that was ejected; not while it is down
        ("a b! c", "", 30, "acb"),
        ("a b!- c", "", 30, "ac"),
        # another attempt goes to another endpoint, if there is one
        ("a b c", "a", 1, "bc"),
        ("a b c", "ac", 1, "b"),
        ("a b c", "abc", 1, "abc"),
        ("a b-", "a", 1, "a"),
        ("a b!", "a", 1, "a"),
        # and to one that is due for its trial only where no other is left
        ("a b! c", "a", 30, "c"),
        ("a b!", "a", 30, "b"),
        # where none would be left, all are tried
        ("a! b-", "", 1, "ab"),
        ("a- b-", "", 1, "ab"),
        ("a! b!", "", 1, "ab"),
        ("a! b!", "a", 1, "b"),
        ("a! b!", "ab", 1, "ab"),
        ("a-", "", 1, "a"),
        ("a-", "a", 1, "a"),
    ],
)
def test_who_may_be_asked(endpoints: str, tried: str, now_s: float, expected: str) -> None:
    places = [place(text) for text in endpoints.split()]
    has_tried = [each for each in places if each.name in tried]
    assert names(candidates(places, has_tried, now_s)) == expected


def test_an_endpoint_whose_trial_runs_gets_nothing_else() -> None:
    places = [place("a"), place("b!")]
    assert names(due(places, 30)) == "b"
    assert places[1].ejection.begin_trial(30) is not None
    assert names(due(places, 31)) == ""
    assert names(candidates(places, [], 31)) == "a"


def test_a_failing_endpoint_does_not_get_every_first_attempt() -> None:
    """Turns are those of calls: with one for each attempt, a's failure and b's retry would give a the next call too."""
    places = [place("a"), place("b")]
    first: Counter[str] = Counter()
    for turn in range(10):
        picked = round_robin(candidates(places, [], 0), turn)
        first[picked.name] += 1
        if picked.name == "a":
            assert round_robin(candidates(places, [picked], 0), turn).name == "b"
    assert first == {"a": 5, "b": 5}

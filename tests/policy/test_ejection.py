"""When an endpoint is ejected, for how long, and what brings it back."""

import pytest

from gateway.errors import ErrorKind
from gateway.policy.ejection import FAILURES, Ejection, Trial, leaves_enough


def fail(
    ejection: Ejection, now_s: float, trial: Trial | None = None, failures: int = 3, *, may_eject: bool = True
) -> bool:
    """A failure where *failures* within 30 s eject the endpoint for 10 s."""
    return ejection.fail(now_s, trial, failures=failures, window_s=30, for_s=10, may_eject=may_eject)


def ejected(now_s: float = 0) -> Ejection:
    ejection = Ejection()
    assert [fail(ejection, now_s) for _ in range(3)] == [False, False, True]
    return ejection


@pytest.mark.parametrize(
    ("failures", "times_s", "ejected_at"),
    [
        (3, [0, 1, 2], 2),
        (3, [0, 0, 0], 0),
        (3, [0, 1], None),
        (3, [0, 1, 29.9], 29.9),
        (3, [0, 1, 30], None),  # the first is out of the window by then
        (3, [0, 1, 30, 30.5], 30.5),
        (3, [0, 16, 32, 48, 64], None),
        (1, [7], 7),
        (0, [0, 0, 0, 0, 0, 0], None),
    ],
)
def test_so_many_failures_within_the_window_eject(
    failures: int, times_s: list[float], ejected_at: float | None
) -> None:
    ejection = Ejection()
    happened = [now_s for now_s in times_s if fail(ejection, now_s, failures=failures)]
    assert happened == ([] if ejected_at is None else [ejected_at])
    assert ejection.is_ejected == (ejected_at is not None)


def test_no_more_failures_are_remembered_than_are_needed() -> None:
    ejection = Ejection()
    for number in range(10_000):
        fail(ejection, number / 1e6, may_eject=False)
    assert len(ejection._failed_at) == 3


def test_a_trial_may_begin_after_the_time_and_there_is_one() -> None:
    ejection = ejected()
    assert [ejection.is_due(now_s) for now_s in (0, 9.9, 10, 1000)] == [False, False, True, True]
    assert ejection.begin_trial(9.9) is None
    trial = ejection.begin_trial(10)
    assert trial is not None
    assert not ejection.is_due(11)
    assert ejection.begin_trial(11) is None
    assert Ejection().begin_trial(11) is None


def test_only_the_success_of_the_trial_brings_the_endpoint_back() -> None:
    ejection = ejected()
    assert not ejection.succeed(Trial())
    trial = ejection.begin_trial(10)
    assert trial is not None
    assert not ejection.succeed(Trial())
    assert ejection.is_ejected
    assert ejection.succeed(trial)
    assert not ejection.is_ejected
    # and the failures from before are forgotten
    assert [fail(ejection, 11) for _ in range(3)] == [False, False, True]


def test_a_trial_that_fails_ejects_for_as_long_again() -> None:
    ejection = ejected()
    trial = ejection.begin_trial(15)
    assert trial is not None
    assert not fail(ejection, 20, trial=trial)  # it was ejected already
    ejection.end_trial(trial)
    assert [ejection.is_due(now_s) for now_s in (20, 29.9, 30)] == [False, False, True]


def test_a_trial_that_is_neither_makes_room_for_the_next() -> None:
    ejection = ejected()
    trial = ejection.begin_trial(10)
    assert trial is not None
    ejection.end_trial(trial)
    assert ejection.is_ejected
    again = ejection.begin_trial(10)
    assert again is not None
    ejection.end_trial(trial)  # that of before ends nothing any more
    assert ejection.begin_trial(10) is None
    assert ejection.succeed(again)


def test_failures_of_requests_that_began_before_the_ejection_do_not_make_it_longer() -> None:
    ejection = ejected()
    assert not fail(ejection, 9)
    assert ejection.is_due(10)


def test_a_trial_from_before_all_was_forgotten_decides_nothing() -> None:
    ejection = ejected()
    trial = ejection.begin_trial(10)
    assert trial is not None
    ejection.clear()
    assert not ejection.is_ejected
    for _ in range(3):
        fail(ejection, 20)
    assert ejection.is_ejected
    assert not ejection.succeed(trial)


@pytest.mark.parametrize(
    ("panic_below", "n", "n_others", "is_allowed"),
    [
        (0, 2, 1, True),
        (0, 2, 0, True),
        (0, 1, 0, False),  # the only one
        (0.5, 2, 1, True),  # with two endpoints and 0.5, one may go
        (0.5, 2, 0, False),
        (0.5, 3, 2, True),
        (0.5, 3, 1, False),
        (0.5, 4, 2, True),
        (0.34, 3, 1, False),
        (0.3, 3, 1, True),
        (1, 4, 3, False),
        (0.75, 4, 3, True),
    ],
)
def test_ejecting_never_leaves_less_than_panic_below(
    panic_below: float, n: int, n_others: int, is_allowed: bool
) -> None:
    assert leaves_enough(n_others, n, panic_below) == is_allowed


def test_who_was_not_ejected_because_of_the_others_is_when_it_fails_again_and_they_are_back() -> None:
    ejection = Ejection()
    assert not fail(ejection, 0, failures=1, may_eject=False)
    assert fail(ejection, 1, failures=1)


def test_what_counts_as_a_failure() -> None:
    """Design: ejection. Neither a backend's answers, nor clients, nor overload."""
    assert {kind.label for kind in ErrorKind if kind in FAILURES} == {
        "unreachable",
        "timeout",
        "upstream_closed",
        "malformed_response",
    }

"""Whether another attempt follows, when, and how many may."""

import pytest

from gateway.policy.retry import BUDGET_S, FIRST_DELAY_S, MAX_DELAY_S, RecentCalls, RetryRules


@pytest.mark.parametrize(
    ("attempts", "resend", "attempt", "sent", "delay_s"),
    [
        (2, False, 1, False, 0),
        (2, False, 2, False, None),  # attempts count the first
        (1, False, 1, False, None),
        (1, True, 1, True, None),
        (3, False, 2, False, 0),
        (2, False, 1, True, None),  # what a backend may have read is not sent again
        (2, True, 1, True, 0),
        (2, True, 2, True, None),
        (2, True, 1, False, 0),
    ],
)
def test_another_attempt_follows(attempts: int, resend: bool, attempt: int, sent: bool, delay_s: float | None) -> None:
    policy = RetryRules(attempts=attempts, resend_after_sent=resend)
    delay = policy.delay_before_next(attempt, sent=sent, has_other=True, remaining_s=60, jitter=0.9)
    assert delay == delay_s


@pytest.mark.parametrize(
    ("attempt", "jitter", "delay_s"),
    [
        (1, 0, FIRST_DELAY_S),
        (1, 0.5, 1.5 * FIRST_DELAY_S),
        (2, 0, 2 * FIRST_DELAY_S),
        (3, 0, 4 * FIRST_DELAY_S),
        (5, 0, MAX_DELAY_S),
        (100_000, 0, MAX_DELAY_S),
        (100_000, 1, 2 * MAX_DELAY_S),
    ],
)
def test_who_has_just_failed_is_asked_again_after_a_while(attempt: int, jitter: float, delay_s: float) -> None:
    policy = RetryRules(attempts=1_000_000)
    delay = policy.delay_before_next(attempt, sent=False, has_other=False, remaining_s=60, jitter=jitter)
    assert delay == pytest.approx(delay_s)


@pytest.mark.parametrize(
    ("has_other", "remaining_s", "goes_on"),
    [(True, 0.001, True), (True, 0, False), (True, -1, False), (False, 0.1, False), (False, 0.11, True)],
)
def test_nobody_waits_longer_than_total(has_other: bool, remaining_s: float, goes_on: bool) -> None:
    policy = RetryRules(attempts=2)
    delay = policy.delay_before_next(1, sent=False, has_other=has_other, remaining_s=remaining_s, jitter=0)
    assert (delay is not None) == goes_on


@pytest.mark.parametrize(
    ("budget", "workers", "n_calls", "most"),
    [
        (0.2, 1, 0, 30),  # three a second, over ten seconds
        (0.2, 1, 150, 30),
        (0.2, 1, 1000, 200),
        (1, 1, 1000, 1000),
        (0, 1, 1000, 0),  # none at all
        (0.2, 2, 0, 15),  # each worker has its share of the three
        (0.2, 2, 1000, 200),  # and its own requests
        (0.2, 30, 0, 1),
        (0.2, 64, 0, 1),
    ],
)
def test_so_many_retries_are_within_the_budget(budget: float, workers: int, n_calls: int, most: int) -> None:
    policy = RetryRules(budget=budget)
    n_retries = 0
    while policy.is_within_budget(n_calls, n_retries, workers):
        n_retries += 1
    assert n_retries == most


def test_what_is_older_than_ten_seconds_is_forgotten() -> None:
    recent = RecentCalls()
    recent.count(100.0, 1, 0)
    recent.count(100.9, 1, 0)
    recent.count(101.0, 0, 1)
    recent.count(105.0, 1, 0)
    assert recent.totals(105.0) == (3, 1)
    assert recent.totals(109.9) == (3, 1)
    assert recent.totals(110.0) == (1, 1)
    assert recent.totals(111.0) == (1, 0)
    assert recent.totals(115.0) == (0, 0)


@pytest.mark.parametrize("gap_s", [1, BUDGET_S - 1, BUDGET_S, BUDGET_S + 1, 10**9])
def test_counts_are_right_after_any_pause(gap_s: int) -> None:
    recent = RecentCalls()
    recent.count(50, 1, 0)
    assert recent.totals(50 + gap_s) == ((1, 0) if gap_s < BUDGET_S else (0, 0))
    recent.count(50 + gap_s, 0, 1)
    recent.count(50 + gap_s, 1, 0)
    assert recent.totals(50 + gap_s) == ((2, 1) if gap_s < BUDGET_S else (1, 1))
    assert len(recent._seconds) <= 2

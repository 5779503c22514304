"""What probes say about an endpoint."""

from itertools import groupby

import pytest

from gateway.policy.health import FIRST_WITHIN_S, JITTER, Condition, Finding, first_round_s, next_round_s

LETTERS = {"+": Finding.HEALTHY, "-": Finding.FAILED, "4": Finding.NOT_FOUND, "1": Finding.DENIED}


@pytest.mark.parametrize(
    ("status", "finding"),
    [
        (200, Finding.HEALTHY),
        (204, Finding.HEALTHY),
        (299, Finding.HEALTHY),
        (199, Finding.FAILED),
        (300, Finding.FAILED),
        (302, Finding.FAILED),
        (400, Finding.FAILED),
        (405, Finding.FAILED),
        (404, Finding.NOT_FOUND),
        (429, Finding.FAILED),
        (500, Finding.FAILED),
        (503, Finding.FAILED),
        (999, Finding.FAILED),
    ],
)
def test_only_statuses_of_success_are_healthy(status: int, finding: Finding) -> None:
    assert Finding.of(status, is_denied=False) is finding


def test_an_answer_that_wants_credentials_is_denied_whatever_its_status() -> None:
    assert {Finding.of(status, is_denied=True) for status in (400, 401, 403)} == {Finding.DENIED}


@pytest.mark.parametrize(
    ("probes", "up"),
    [
        # an endpoint is up until three probes in a row have failed, and down until two in a row have succeeded
        ("", "U"),
        ("+", "UU"),
        ("--", "UUU"),
        ("---", "UUUD"),
        ("----", "UUUDD"),
        ("--+--+", "UUUUUUU"),
        ("--+---", "UUUUUUD"),
        ("---+", "UUUDD"),
        ("---++", "UUUDDU"),
        ("---+-+", "UUUDDDD"),
        ("---+-++", "UUUDDDDU"),
        ("---++--", "UUUDDUUU"),
        ("---++---", "UUUDDUUUD"),
        # 404 before the first success: the path is not there, and nobody knows how the endpoint is
        ("4444", "UUUUU"),
        ("4--", "UUUU"),
        ("--4--", "UUUUUU"),
        ("4---", "UUUUD"),
        # a server that was not there yet, and has no such path when it comes, is not down for ever
        ("---4", "UUUDD"),
        ("---44", "UUUDDU"),
        # after a success the path is known, and 404 is a failure as any other: a model that was unloaded
        ("+44", "UUUU"),
        ("+444", "UUUUD"),
        ("4+444", "UUUUUD"),
        ("+4-4", "UUUUD"),
        ("+---44", "UUUUDDD"),
        # the same for a server that wants credentials of its clients, which probes do not have
        ("1111", "UUUUU"),
        ("1414", "UUUUU"),
        ("---11", "UUUDDU"),
        ("+111", "UUUUD"),
    ],
)
def test_an_endpoint_is_up_until_it_was_found_down(probes: str, up: str) -> None:
    condition = Condition()
    seen = [condition.is_up]
    for probe in probes:
        condition = condition.after(LETTERS[probe], unhealthy_after=3, healthy_after=2)
        seen.append(condition.is_up)
    assert "".join("U" if each else "D" for each in seen) == up


def test_one_probe_is_enough_where_the_configuration_says_so() -> None:
    down = Condition().after(Finding.FAILED, unhealthy_after=1, healthy_after=1)
    assert not down.is_up
    assert down.after(Finding.HEALTHY, unhealthy_after=1, healthy_after=1).is_up


@pytest.mark.parametrize(
    ("probes", "unjudged"),
    [
        ("4", "M"),
        ("44", "MM"),
        ("4-4", "MMM"),
        ("-4", ".M"),
        ("+4", ".."),
        ("4+4", "M.."),
        ("1", "M"),
        ("41-1", "MMMM"),
        ("+1", ".."),
    ],
)
def test_that_an_endpoint_cannot_be_judged_is_news_once(probes: str, unjudged: str) -> None:
    condition = Condition()
    seen = ""
    for probe in probes:
        condition = condition.after(LETTERS[probe], unhealthy_after=3, healthy_after=2)
        seen += "M" if condition.is_unjudged else "."
    assert seen == unjudged
    assert len([is_missing for is_missing, _ in groupby(seen) if is_missing == "M"]) <= 1


def test_another_path_keeps_what_is_known_of_the_endpoint_and_forgets_what_was_counted() -> None:
    condition = Condition(is_up=False, n_against=1, has_succeeded=True)
    assert condition.for_another_path() == Condition(is_up=False)


@pytest.mark.parametrize(
    ("interval_s", "share", "delay_s"),
    [(5.0, 0.0, 0.0), (5.0, 0.5, 0.5 * FIRST_WITHIN_S), (5.0, 1.0, FIRST_WITHIN_S), (0.2, 1.0, 0.2)],
)
def test_the_first_probe_comes_soon_and_not_to_all_at_once(interval_s: float, share: float, delay_s: float) -> None:
    assert first_round_s(interval_s, share) == pytest.approx(delay_s)


@pytest.mark.parametrize(("share", "delay_s"), [(0.5, 10.0), (0.0, 10.0 * (1 - JITTER)), (1.0, 10.0 * (1 + JITTER))])
def test_probes_come_once_in_an_interval_that_varies(share: float, delay_s: float) -> None:
    assert next_round_s(10.0, share) == pytest.approx(delay_s)

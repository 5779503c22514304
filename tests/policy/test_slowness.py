"""Which clients are too slow."""

import pytest

from gateway.policy.slowness import MIN_BYTES_PER_S, Upload


def slowness(n_bytes: int, waited_s: float, silent_s: float, limit_s: float) -> str | None:
    """Why a client is too slow that has sent *n_bytes* in *waited_s*, and nothing in the last *silent_s*."""
    upload = Upload()
    upload.begin_waiting(0.0)
    upload.go_on(n_bytes, waited_s - silent_s)
    return upload.find_slowness(waited_s, limit_s)


FLOOR = "less than 1024 a second after the first 60 s"


@pytest.mark.parametrize(
    ("n_bytes", "waited_s", "silent_s", "words"),
    [
        pytest.param(0, 0.0, 0.0, None, id="just begun"),
        pytest.param(0, 59.9, 59.9, None, id="silent for almost the limit"),
        pytest.param(0, 60.0, 60.0, "nothing for 60 s", id="silent for the limit"),
        pytest.param(10**9, 60.0, 60.0, "nothing for 60 s", id="silent after a lot"),
        pytest.param(1, 60.0, 1.0, None, id="a byte in the first minute, which is not judged"),
        pytest.param(61, 61.0, 1.0, f"61 bytes in 61.0 s, {FLOOR}", id="a byte a second"),
        pytest.param(1024, 61.0, 1.0, None, id="exactly the floor"),
        pytest.param(1023, 61.0, 1.0, f"1023 bytes in 61.0 s, {FLOOR}", id="a byte less than the floor"),
        pytest.param(10_000_000, 9_000.0, 59.0, None, id="fast in the beginning, the average counts"),
        pytest.param(1_000_000, 1_040.0, 0.0, f"1000000 bytes in 1040.0 s, {FLOOR}", id="a little too slow for long"),
    ],
)
def test_a_client_may_be_silent_for_the_limit_and_has_an_average_to_keep(
    n_bytes: int, waited_s: float, silent_s: float, words: str | None
) -> None:
    assert slowness(n_bytes, waited_s, silent_s, 60.0) == words


def test_no_body_takes_longer_than_its_length_at_the_floor_and_the_limit() -> None:
    n_bytes, limit_s = 1_000_000, 60.0
    longest_s = n_bytes / MIN_BYTES_PER_S + limit_s
    assert slowness(n_bytes - 1, longest_s, 0.0, limit_s) is not None
    assert slowness(n_bytes - 1, longest_s - 0.01, 0.0, limit_s) is None


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        pytest.param([(500, 30.0), (500, 59.0)], None, id="nothing read for less than the limit"),
        pytest.param([(500, 30.0), (500, 60.0)], "nothing for 60 s", id="nothing read for the limit"),
        pytest.param([(100_500, 30.0), (100_500, 89.0)], None, id="what was read counts from when it was seen"),
        pytest.param([(100_500, 30.0), (100_500, 90.0)], "nothing for 60 s", id="silent after that"),
        pytest.param([(501, 50.0), (502, 100.0)], f"2 bytes in 100.0 s, {FLOOR}", id="a byte now and then"),
        pytest.param([(100_500, 50.0), (100_501, 100.0)], None, id="slower than before, but enough"),
    ],
)
def test_a_reader_that_is_behind_is_judged_by_what_it_took_since(
    looks: list[tuple[int, float]], words: str | None
) -> None:
    backlog, taken_before, found = Upload(), 500, []
    backlog.go_on(0, 0.0)
    for taken, now_s in looks:
        backlog.go_on(taken - taken_before, now_s)
        taken_before = taken
        found.append(backlog.find_slowness(now_s, 60.0))
    assert found == [None] * (len(looks) - 1) + [words]

"""Who is let in: the budget of bytes and of slots, the share of the small, and which slow uploads give way."""

import pytest

from gateway.policy.admission import (
    ENDED_AT_ONCE,
    LOOK_S,
    SLOW_AFTER_S,
    SLOW_BYTES_PER_S,
    SMALL_BYTES,
    SMALL_SHARE,
    Admission,
    Claim,
    Reservation,
)
from gateway.policy.slowness import Upload

KIB, MIB = 1024, 1024 * 1024
NOW_S = 100.0
UNTIL_S = NOW_S + 2.5


def admitted(admission: Admission, n_bytes: int) -> Reservation | None:
    """A reservation of *n_bytes* and a slot; None if there is no room for both."""
    reservation = Reservation(admission)
    return reservation if reservation.take(n_bytes, 1) else None


def test_bytes_are_promised_and_given_back() -> None:
    admission = Admission(16 * MIB, 100)
    first = admitted(admission, 10 * MIB)
    assert first is not None
    assert admitted(admission, 10 * MIB) is None
    assert (admission.held_bytes, admission.requests) == (10 * MIB, 1)
    first.release()
    assert (admission.held_bytes, admission.requests) == (0, 0)
    first.release()
    assert (admission.held_bytes, admission.requests) == (0, 0)
    assert admitted(admission, 10 * MIB) is not None


def test_a_request_that_is_alone_may_use_the_whole_budget() -> None:
    admission = Admission(16 * MIB, 100)
    assert admitted(admission, 16 * MIB + 1) is None
    assert admitted(admission, 16 * MIB) is not None


def test_large_requests_leave_room_for_small_ones() -> None:
    admission = Admission(16 * MIB, 100)
    assert admitted(admission, 14 * MIB) is not None
    assert admitted(admission, MIB + 1) is None
    assert admitted(admission, MIB) is not None
    small = [admitted(admission, SMALL_BYTES) for _ in range(16)]
    assert None not in small
    assert admitted(admission, SMALL_BYTES) is None


def test_large_requests_release_slots_for_small_ones() -> None:
    admission = Admission(10**12, 2 * SMALL_SHARE)
    large = [admitted(admission, MIB) for _ in range(2 * SMALL_SHARE)]
    assert large.count(None) == 2
    assert [admitted(admission, 1) is not None for _ in range(3)] == [True, True, False]


def test_a_body_of_unknown_size_reserves_as_it_grows() -> None:
    admission = Admission(16 * MIB, 100)
    reservation = admitted(admission, 0)
    assert reservation is not None
    assert reservation.take(16 * MIB)
    assert not reservation.take(1)
    reservation.release()
    assert admission.held_bytes == 0


def test_bytes_are_reserved_before_a_slot_is_taken() -> None:
    admission = Admission(16 * MIB, 1)
    uploads = [Reservation(admission) for _ in range(2)]
    assert [each.take(MIB) for each in uploads] == [True, True]
    assert (admission.held_bytes, admission.requests) == (2 * MIB, 0)
    assert [each.take(0, 1) for each in uploads] == [True, False]
    uploads[0].release()
    assert uploads[1].take(0, 1)
    assert (admission.held_bytes, admission.requests) == (MIB, 1)


def test_answers_are_counted_but_never_refused() -> None:
    admission = Admission(16 * MIB, 100)
    reservation = admitted(admission, MIB)
    assert reservation is not None
    reservation.hold(100 * MIB)
    assert admission.held_bytes == 101 * MIB
    assert admitted(admission, 1) is None
    reservation.release()
    assert admission.held_bytes == 0


def test_an_answer_beyond_the_budget_keeps_no_body_that_is_there_from_its_slot() -> None:
    admission = Admission(16 * MIB, 100)
    answered, read = admitted(admission, MIB), Reservation(admission)
    assert answered is not None
    assert read.take(MIB)
    answered.hold(100 * MIB)
    assert read.take(0, 1)


def test_what_connections_hold_is_counted_and_keeps_out_all_but_one_that_is_alone() -> None:
    admission = Admission(16 * MIB, 100)
    admission.hold_unread(2 * MIB)
    assert admission.held_bytes == 2 * MIB
    alone = admitted(admission, 16 * MIB)
    assert alone is not None
    alone.release()
    assert admitted(admission, 10 * MIB) is not None
    assert admitted(admission, 4 * MIB) is None
    admission.hold_unread(-2 * MIB)
    assert admitted(admission, 4 * MIB) is not None
    assert admission.held_bytes == 14 * MIB


class Attacked:
    """A budget with uploads that are read, and what became of them."""

    def __init__(self, max_bytes: int = 16 * MIB, max_requests: int = 16) -> None:
        self.admission = Admission(max_bytes, max_requests)
        self.ended: dict[str, str] = {}

    def look(self, claim: Claim, now_s: float) -> tuple[bool | None, list[str]]:
        """The verdict about *claim* at *now_s*, and who has been ended so far."""
        self.admission.look(now_s)
        return claim.is_granted, [*self.ended]

    def upload(
        self, name: str, n_bytes: int, waited_s: float, received: float, n_slots: int = 0, *, is_read: bool = True
    ) -> Reservation:
        """One that has *received* so many bytes in *waited_s*; *is_read*: its client is waited for now."""
        reservation = Reservation(self.admission)
        assert reservation.take(n_bytes, n_slots)

        def fail(words: str) -> None:
            self.ended[name] = words

        upload = Upload(int(received))
        upload.begin_waiting(NOW_S - waited_s)
        upload.end_waiting(NOW_S)
        if is_read:
            upload.begin_waiting(NOW_S)
        reservation.begin_upload(upload, fail)
        return reservation

    def claim(self, n_bytes: int, n_slots: int = 0, *, own_bytes: int = 0) -> Claim:
        """One that waits."""
        reservation = Reservation(self.admission)
        assert reservation.take(own_bytes)
        claim = Claim(reservation, n_bytes, n_slots, UNTIL_S, lambda: False)
        assert not claim.take()
        assert self.admission.wait(claim, NOW_S)
        return claim


SLOW = 9 * KIB * 3  # in 3 s


@pytest.mark.parametrize(
    ("uploads", "claimed", "ended", "is_granted"),
    [
        pytest.param({"a": (15, 3, SLOW)}, MIB, "a", True, id="a slow one is ended"),
        pytest.param({"a": (15, 3, SLOW)}, 16 * MIB, "a", True, id="and all of it given to one that is then alone"),
        pytest.param({"a": (14.5, 3, SLOW), "b": (0.5, 9, 5)}, MIB, "ba", True, id="the slowest first"),
        pytest.param({"a": (7, 3, SLOW), "b": (8, 9, 5)}, MIB, "b", True, id="and only until it fits"),
        pytest.param({"a": (7, 3, SLOW), "b": (8, 9, 5)}, 9 * MIB, "ba", True, id="several"),
        pytest.param({"a": (15, SLOW_AFTER_S, 0)}, MIB, "", None, id="none before its time, which is waited for"),
        pytest.param({"a": (15, 0, 0)}, MIB, "", None, id="nor one that has just begun"),
        pytest.param({"a": (15, 1, 130 * KIB)}, MIB, "", None, id="nor one that was fast for a moment"),
        pytest.param({"a": (15, 1, 300 * KIB)}, MIB, "", False, id="one that is fast is not waited for"),
        pytest.param({"a": (0, 3, SLOW), "b": (15, 1, 0)}, MIB, "", None, id="none that holds nothing"),
        pytest.param({"a": (1, 3, SLOW), "b": (14, 1, 0)}, 2 * MIB, "", None, id="none if that is not enough yet"),
        pytest.param(
            {"a": (1, 3, SLOW), "b": (14, 30, 40 * SLOW_BYTES_PER_S)}, 2 * MIB, "", False, id="none if it never is"
        ),
        pytest.param(
            {"a": (8, 9, 900 * KIB), "b": (7, 3, SLOW)}, 8 * MIB, "", False, id="none of 100 KiB/s, whatever is claimed"
        ),
        pytest.param({"a": (8, 3, 300 * KIB), "b": (7, 3, SLOW)}, 7 * MIB, "b", True, id="beside one of 100 KiB/s"),
    ],
)
def test_slow_uploads_give_way(
    uploads: dict[str, tuple[float, float, float]], claimed: int, ended: str, is_granted: bool | None
) -> None:
    """*uploads*: MiB reserved, seconds waited, bytes received."""
    attacked = Attacked()
    for name, (n_mib, waited_s, received) in uploads.items():
        attacked.upload(name, int(n_mib * MIB), waited_s, received)
    attacked.upload("", 0, 0, 0)
    claim = attacked.claim(claimed)
    before = attacked.admission.held_bytes
    attacked.admission.look(NOW_S)
    assert ("".join(attacked.ended), claim.is_granted) == (ended, is_granted)
    given_back = sum(int(uploads[name][0] * MIB) for name in ended)
    assert attacked.admission.held_bytes == before - given_back + (claimed if is_granted else 0)


def test_a_claim_waits_until_the_oldest_may_be_ended() -> None:
    attacked = Attacked()
    attacked.upload("a", 15 * MIB, 0.5, 0)
    claim, too_large = attacked.claim(MIB), attacked.claim(17 * MIB)
    assert attacked.look(claim, NOW_S) == (None, [])
    assert too_large.is_granted is False
    assert attacked.look(claim, NOW_S + 1.4) == (None, [])
    assert attacked.look(claim, NOW_S + 1.6) == (True, ["a"])


def test_a_claim_waits_no_longer_than_it_may() -> None:
    attacked = Attacked()
    attacked.upload("a", 15 * MIB, 0.5, 185 * KIB)  # not slow before it has taken 2.9 s
    attacked.upload("b", 0, 0, 0)
    claim = attacked.claim(MIB)
    claim.until_s = NOW_S + 2
    assert attacked.look(claim, NOW_S + 1.9) == (None, [])
    assert attacked.look(claim, NOW_S + 2) == (False, [])


def test_slots_that_slow_relayed_uploads_hold_are_given_back_too() -> None:
    attacked = Attacked(max_requests=3)
    attacked.upload("sends", MIB, 9, 5)
    relayed = attacked.upload("relayed", MIB, 3, SLOW, 1)
    attacked.upload("fast", MIB, 3, 300 * KIB, 1)
    attacked.upload("relayed, too", MIB, 3, 2 * SLOW, 1)
    claim = attacked.claim(0, 1, own_bytes=10)
    attacked.admission.look(NOW_S)
    assert claim.is_granted is None
    assert attacked.admission.held_bytes == 3 * MIB + 10
    relayed.release()  # when its connection to the backend is free
    assert claim.is_granted
    assert attacked.ended == {
        "relayed": "9216 bytes a second in 3.0 s, and its place was needed for other requests "
        "(limits.concurrent_requests)"
    }
    assert attacked.admission.requests == 3


def test_what_an_ended_upload_gives_back_at_once_is_granted_once() -> None:
    attacked = Attacked()
    held = attacked.upload("a", 15 * MIB, 9, 5)
    held.fail = lambda words: held.release()
    claims = [attacked.claim(2 * MIB), attacked.claim(3 * MIB)]
    attacked.admission.look(NOW_S)
    assert [(each.is_granted, each.reservation.n_bytes) for each in claims] == [(True, 2 * MIB), (True, 3 * MIB)]
    assert attacked.admission.held_bytes == 5 * MIB


def test_time_in_which_the_gateway_does_not_read_is_not_the_clients() -> None:
    attacked = Attacked()
    upload = attacked.upload("a", 15 * MIB, 1, 100 * KIB, is_read=False).upload
    assert upload is not None
    attacked.upload("b", 0, 1, 0)
    claim = attacked.claim(MIB)
    claim.until_s = NOW_S + 9
    assert attacked.look(claim, NOW_S + 1.5) == (None, [])
    assert (upload.waited_s(NOW_S + 1.5), upload.bytes_per_s(NOW_S + 1.5)) == (1, 100 * KIB)
    upload.begin_waiting(NOW_S + 1.5)
    assert attacked.look(claim, NOW_S + 2.4) == (None, [])
    assert attacked.look(claim, NOW_S + 2.6) == (True, ["a"])


def test_what_is_given_back_goes_to_those_that_wait_the_smallest_first() -> None:
    attacked = Attacked()
    leaves = attacked.upload("a", 8 * MIB, 0.1, 0)
    attacked.upload("b", 7 * MIB, 0.1, 0)
    large, second, small = attacked.claim(8 * MIB), attacked.claim(3 * MIB), attacked.claim(2 * MIB)
    gone = attacked.claim(MIB)
    attacked.admission.leave(gone)
    leaves.release()
    assert [each.is_granted for each in (large, second, small, gone)] == [None, True, True, None]
    assert attacked.admission.held_bytes == 12 * MIB
    attacked.admission.look(NOW_S)
    assert large.is_granted is None


def test_nothing_waits_where_no_upload_is_slow() -> None:
    attacked = Attacked()
    attacked.upload("a", 8 * MIB, 1, 300 * KIB)
    growing = attacked.upload("b", 7 * MIB, 9, 0, is_read=False)  # no upload waits for itself
    claim = Claim(growing, 2 * MIB, 0, UNTIL_S, lambda: False)
    assert not attacked.admission.wait(claim, NOW_S)


def test_bodies_that_are_there_come_before_uploads_and_small_ones_before_large_ones() -> None:
    attacked = Attacked(max_requests=2)
    gone = [attacked.upload(name, MIB, 0.1, 0, 1) for name in "ab"]
    upload, large, small = attacked.claim(0, 1), attacked.claim(0, 1, own_bytes=1000), attacked.claim(0, 1, own_bytes=9)
    for claim in (large, small):
        attacked.admission.leave(claim)
        claim.is_whole = lambda: True
        assert attacked.admission.wait(claim, NOW_S)
    granted = []
    for reservation in (*gone, small.reservation):
        reservation.release()
        granted.append([each.is_granted for each in (upload, large, small)])
    assert granted == [[None, None, True], [None, True, True], [True, True, True]]


def test_a_body_that_comes_to_its_end_while_it_waits_comes_before_uploads() -> None:
    attacked = Attacked()
    attacked.upload("a", 15 * MIB, 3, SLOW)
    smaller, has_come = attacked.claim(14 * MIB), attacked.claim(15 * MIB)
    has_come.is_whole = lambda: True
    attacked.admission.look(NOW_S)
    assert (smaller.is_granted, has_come.is_granted) == (False, True)


def test_what_is_freed_for_a_claim_in_several_looks_is_not_taken_by_uploads_that_come_after_it() -> None:
    attacked = Attacked()
    n_uploads = 16 * MIB // SMALL_BYTES
    for number in range(n_uploads):
        attacked.upload(str(number), SMALL_BYTES, 3, 5)
    whole, beginning = attacked.claim(6 * MIB), [attacked.claim(SMALL_BYTES) for _ in range(n_uploads)]
    whole.is_whole = lambda: True
    attacked.admission.look(NOW_S)
    assert len(attacked.ended) == ENDED_AT_ONCE
    assert whole.is_granted is None
    attacked.admission.look(NOW_S + LOOK_S)
    assert whole.is_granted
    assert any(each.is_granted for each in beginning)


def test_an_upload_that_is_ended_learns_its_rate_and_the_reason() -> None:
    attacked = Attacked()
    attacked.upload("a", 15 * MIB, 3, SLOW)
    attacked.claim(MIB)
    attacked.admission.look(NOW_S)
    assert attacked.ended == {
        "a": "9216 bytes a second in 3.0 s, and memory was needed for other requests (limits.in_flight_bytes)"
    }

"""Who is let in: the budget of bytes and of places, and the share of the small."""

from gateway.policy.admission import SMALL_BYTES, SMALL_SHARE, Admission

MIB = 1024 * 1024


def test_bytes_are_promised_and_given_back() -> None:
    admission = Admission(16 * MIB, 100)
    first = admission.admit(10 * MIB)
    assert first is not None
    assert admission.admit(10 * MIB) is None
    assert (admission.held_bytes, admission.requests) == (10 * MIB, 1)
    first.release()
    assert (admission.held_bytes, admission.requests) == (0, 0)
    assert admission.admit(10 * MIB) is not None


def test_a_request_that_is_alone_may_use_the_whole_budget() -> None:
    admission = Admission(16 * MIB, 100)
    assert admission.admit(16 * MIB + 1) is None
    assert admission.admit(16 * MIB) is not None


def test_large_requests_leave_room_for_small_ones() -> None:
    admission = Admission(16 * MIB, 100)
    assert admission.admit(14 * MIB) is not None
    assert admission.admit(MIB + 1) is None
    assert admission.admit(MIB) is not None
    small = [admission.admit(SMALL_BYTES) for _ in range(16)]
    assert None not in small
    assert admission.admit(SMALL_BYTES) is None


def test_large_requests_release_slots_for_small_ones() -> None:
    admission = Admission(10**12, 2 * SMALL_SHARE)
    large = [admission.admit(MIB) for _ in range(2 * SMALL_SHARE)]
    assert large.count(None) == 2
    assert [admission.admit(1) is not None for _ in range(3)] == [True, True, False]


def test_a_body_of_unknown_size_reserves_as_it_grows() -> None:
    admission = Admission(16 * MIB, 100)
    reservation = admission.admit(0)
    assert reservation is not None
    assert reservation.grow(16 * MIB)
    assert not reservation.grow(1)
    reservation.release()
    assert admission.held_bytes == 0


def test_answers_are_counted_but_never_refused() -> None:
    admission = Admission(16 * MIB, 100)
    reservation = admission.admit(MIB)
    assert reservation is not None
    reservation.hold(100 * MIB)
    assert admission.held_bytes == 101 * MIB
    assert admission.admit(1) is None
    reservation.release()
    assert admission.held_bytes == 0

"""How often the same thing is said."""

from gateway.policy.quiet import OncePerInterval


def test_a_key_speaks_once_per_interval() -> None:
    quiet = OncePerInterval(interval_s=60, max_keys=10)
    said = [quiet.allows("a", now_s) for now_s in (0, 1, 59.9, 60, 61, 120)]
    assert said == [True, False, False, True, False, True]
    assert quiet.allows("b", 1)


def test_room_is_bounded_and_given_back() -> None:
    quiet = OncePerInterval(interval_s=60, max_keys=2)
    assert [quiet.allows(key, 0) for key in "abc"] == [True, True, False]
    assert quiet.allows("c", 60)

"""How often the same thing is said."""

from gateway.policy.quiet import OncePerInterval


def test_a_warning_comes_once_per_interval() -> None:
    quiet = OncePerInterval()
    said = [quiet.allows(now_s) for now_s in (0, 1, 59.9, 60, 61, 120)]
    assert said == [True, False, False, True, False, True]

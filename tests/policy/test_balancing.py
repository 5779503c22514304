"""Which endpoint gets the next request."""

from gateway.policy.balancing import RoundRobin


def test_endpoints_take_turns() -> None:
    balancer = RoundRobin(["a", "b", "c"])
    assert [balancer.pick() for _ in range(7)] == ["a", "b", "c", "a", "b", "c", "a"]

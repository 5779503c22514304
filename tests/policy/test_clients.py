"""What one client may ask for, as a table: moments of requests, and what becomes of them."""

import pytest

from gateway.policy.clients import MAX_CLIENTS, Clients


@pytest.mark.parametrize(
    ("rate", "burst", "moments", "waits"),
    [
        (0, 0, [0, 0, 0, 0], [None, None, None, None]),
        (1, 0, [0, 0, 1, 1.5], [None, 1, None, 0.5]),
        (2, 3, [0, 0, 0, 0, 0.5, 0.5], [None, None, None, 0.5, None, 0.5]),
        (0.5, 1, [0, 1, 2, 100, 100], [None, 1, None, None, 2]),
        (10, 0, [0] * 11, [None] * 10 + [0.1]),
    ],
)
def test_so_many_a_second_and_so_many_together(
    rate: float, burst: int, moments: list[float], waits: list[float | None]
) -> None:
    clients = Clients()
    found = [clients.begin("a", moment, 0, rate, burst) for moment in moments]
    assert found == [None if wait is None else pytest.approx(wait) for wait in waits]


def test_so_many_at_once_and_each_client_by_itself() -> None:
    clients = Clients()
    assert [clients.begin("a", 0, 2, 0, 0) for _ in range(3)] == [None, None, 1.0]
    assert clients.begin("b", 0, 2, 0, 0) is None
    clients.end("a")
    assert clients.begin("a", 0, 2, 0, 0) is None


def test_one_that_was_refused_costs_nothing() -> None:
    clients = Clients()
    assert clients.begin("a", 0, 0, 1, 0) is None
    for _ in range(100):
        assert clients.begin("a", 0.5, 0, 1, 0) == pytest.approx(0.5)
    assert clients.begin("a", 1, 0, 1, 0) is None


def test_one_more_client_is_served_where_all_that_are_remembered_have_requests_in_flight() -> None:
    clients = Clients()
    for number in range(MAX_CLIENTS + 1):
        assert clients.begin(str(number), 0, 1, 0, 0) is None
    assert clients.begin(str(MAX_CLIENTS), 0, 1, 0, 0) == 1.0


def test_many_clients_are_remembered_and_not_all() -> None:
    clients = Clients()
    assert clients.begin("busy", 0, 1, 0, 0) is None
    for number in range(MAX_CLIENTS + 100):
        clients.begin(str(number), number, 0, 1, 0)
        clients.end(str(number))
    assert len(clients._known) == MAX_CLIENTS
    assert clients.begin("busy", 1, 1, 0, 0) == 1.0  # what has requests in flight is not forgotten

"""What belongs to a key: always the same, in every process, and only what has to move moves."""

import subprocess
import sys
from collections import Counter

import pytest

from gateway.policy.balancing import pick_sticky, pick_weighted

NAMES = [f"http://10.0.0.{number}:8000" for number in range(1, 6)]
KEYS = [f"sequence {number}" for number in range(2000)]
STICKY = [4, 3, 2, 0, 1, 2, 3, 0, 2, 4, 2, 4]
WEIGHTED = "nssssnssnssn"


def owners(names: list[str]) -> dict[str, str]:
    return {key: names[pick_sticky(key, names)] for key in KEYS}


def test_the_owner_of_a_key_never_changes() -> None:
    """Workers, and gateways of another release beside this one, have to agree; so these are written down."""
    assert [pick_sticky(str(key), NAMES) for key in range(12)] == STICKY
    weights = {"stable": 3, "next": 1}
    assert "".join(pick_weighted(str(key), weights)[0] for key in range(12)) == WEIGHTED


def test_every_process_picks_the_same() -> None:
    code = "from tests.policy.test_sticky import *; print([pick_sticky(key, NAMES) for key in KEYS])"
    printed = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1] == f"{[pick_sticky(key, NAMES) for key in KEYS]}\n".encode()


def test_keys_are_spread_evenly() -> None:
    counts = Counter(owners(NAMES).values())
    assert set(counts) == set(NAMES)
    assert all(300 < count < 500 for count in counts.values())


@pytest.mark.parametrize("gone", NAMES)
def test_only_the_keys_of_an_endpoint_that_is_gone_move(gone: str) -> None:
    before = owners(NAMES)
    after = owners([name for name in NAMES if name != gone])
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key] == gone}
    assert len({after[key] for key in moved}) == 4  # to all of the others


def test_the_order_of_the_names_does_not_matter() -> None:
    assert owners(NAMES) == owners(NAMES[::-1])


def test_the_only_one_owns_every_key() -> None:
    assert {pick_sticky(key, ["a"]) for key in KEYS} == {0}


def test_a_key_may_hold_anything() -> None:
    assert pick_sticky("", NAMES) in range(5)
    assert pick_sticky("\udcff\x00é", NAMES) in range(5)


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ({"stable": 95, "next": 5}, {"stable": 0.95, "next": 0.05}),
        ({"a": 1, "b": 1}, {"a": 0.5, "b": 0.5}),
        ({"a": 2, "b": 1, "c": 1}, {"a": 0.5, "b": 0.25, "c": 0.25}),
        ({"a": 0, "b": 7}, {"b": 1}),
        ({"a": 1000000, "b": 1000000}, {"a": 0.5, "b": 0.5}),
    ],
)
def test_each_gets_its_share_of_the_keys(weights: dict[str, int], shares: dict[str, float]) -> None:
    counts = Counter(pick_weighted(key, weights) for key in KEYS)
    assert set(counts) == set(shares)
    assert all(abs(counts[name] / len(KEYS) - share) < 0.03 for name, share in shares.items())


def test_only_to_where_the_weight_grows_keys_move() -> None:
    before = {key: pick_weighted(key, {"stable": 95, "next": 5}) for key in KEYS}
    after = {key: pick_weighted(key, {"stable": 80, "next": 20}) for key in KEYS}
    moved = {(before[key], after[key]) for key in KEYS if before[key] != after[key]}
    assert moved == {("stable", "next")}


def test_weights_that_are_all_0_lead_nowhere() -> None:
    with pytest.raises(ValueError, match="empty"):
        pick_weighted("key", {"a": 0})

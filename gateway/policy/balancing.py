"""Which endpoint of a backend gets the next attempt, and which backend of a split a request goes to.

`candidates` says which endpoints may be asked at all, the other functions choose one. Those that stick to a key hash it
with each name, and the highest score wins (rendezvous hashing). So all processes agree without a table, and if a name
goes, only its own keys move.
"""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

from gateway.policy.ejection import Ejection


class Candidate(Protocol):
    """An endpoint, as far as the choice depends on it."""

    in_flight: int
    """Attempts that have begun there and have not ended."""
    is_up: bool
    """False if health probes have found the endpoint down."""
    ejection: Ejection
    """Whether its failures have ejected the endpoint."""


_SCORE_BITS = 52
"""How many bits of the hash make a score: as many as a float holds exactly, with one left for the half added below."""

E = TypeVar("E")
C = TypeVar("C", bound=Candidate)


def candidates(endpoints: Sequence[C], tried: Sequence[C], now_s: float) -> Sequence[C]:
    """The endpoints that the next attempt may go to; never empty.

    Endpoints that this call has *tried* are chosen only if there is no other. Endpoints that are ejected or down get
    nothing, unless all are: then all are candidates. An endpoint whose ejection has lasted long enough (`due`) is among
    the candidates, for one attempt.
    """
    usable = [each for each in endpoints if each.is_up and not each.ejection.is_ejected]
    if not usable:
        return _but(tried, endpoints) or endpoints
    if tried:
        return _but(tried, usable) or _but(tried, due(endpoints, now_s)) or usable
    return usable + due(endpoints, now_s) if len(usable) < len(endpoints) else usable


def _but(tried: Sequence[C], endpoints: Sequence[C]) -> list[C]:
    return [each for each in endpoints if each not in tried]


def due(endpoints: Sequence[C], now_s: float) -> list[C]:
    """The ejected *endpoints* to which one attempt may go now, to find out whether they work again."""
    return [each for each in endpoints if each.ejection.is_ejected and each.is_up and each.ejection.is_due(now_s)]


def round_robin(endpoints: Sequence[E], turn: int) -> E:
    """Each endpoint in turn; *turn* counts the requests of clients, not their attempts.

    If it counted attempts, a retry after each failure would give the failing one of two endpoints every first attempt.
    """
    return endpoints[turn % len(endpoints)]


def least_in_flight(endpoints: Sequence[C], turn: int) -> C:
    """The endpoint with the fewest attempts in flight; endpoints with equally few take turns, as in `round_robin`."""
    fewest = math.inf
    idle: list[C] = []
    for each in endpoints:
        if each.in_flight < fewest:
            fewest, idle = each.in_flight, [each]
        elif each.in_flight == fewest:
            idle.append(each)
    return idle[turn % len(idle)]


def pick_sticky(key: str, names: Sequence[str]) -> int:
    """The index of the name that *key* belongs to; *names* is not empty, and its order does not matter."""
    return max(range(len(names)), key=lambda index: (_score(key, names[index]), names[index]))


def pick_weighted(key: str, weights: Mapping[str, int]) -> str:
    """The name that *key* belongs to; each name gets a share of the keys by its weight, none with a weight of 0.

    If weights change, keys only move to names whose share has grown. Raises `ValueError` if all weights are 0.
    """
    # weighted rendezvous hashing: a name's -weight / ln(score) is the highest with a probability of weight / sum
    return max(
        (name for name, weight in weights.items() if weight > 0),
        key=lambda name: (-weights[name] / math.log(_score(key, name)), name),
    )


def _score(key: str, name: str) -> float:
    """A number above 0 and below 1, the same in every process (`hash()` would differ)."""
    text = f"{len(key)}:{key}{name}".encode(errors="surrogateescape")
    digest = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
    return ((digest >> (64 - _SCORE_BITS)) + 0.5) / (1 << _SCORE_BITS)

"""Rendezvous hashing: requests with the same key go to the same endpoint or backend, and no process keeps a table.

Every name gets a score for the key and the highest score wins. So all workers and processes agree, and if a name goes,
only its own keys move. Not here: where keys come from, and which names may be chosen.
"""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b

_SCORE_BITS = 52
"""How many bits of the hash make a score: as many as a float holds exactly, with one left for the half added below."""


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

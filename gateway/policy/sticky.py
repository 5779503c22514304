"""Rendezvous hashing: requests with the same key go to the same place, without anybody remembering it.

Every name is scored for the key and the highest score wins, so if a name goes, only its own keys move, and all workers
and processes agree. Not here: where keys come from, and who may be chosen.
"""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b

_SCORE_BITS = 52
"""Of the hash, as many as a float holds beside the half that keeps a score between 0 and 1."""


def pick_sticky(key: str, names: Sequence[str]) -> int:
    """The index of the name that *key* belongs to; *names* is not empty, and its order does not matter."""
    if len(names) == 1:
        return 0
    return max(range(len(names)), key=lambda index: (_score(key, names[index]), names[index]))


def pick_weighted(key: str, weights: Mapping[str, int]) -> str:
    """The name that *key* belongs to; each gets its share of the keys. One of weight 0 gets none.

    Where the weights change, keys only move to names whose share has grown. Raises `ValueError` if all weights are 0.
    """
    # The highest of -weight / ln(score) is the name's with a probability of weight / sum (weighted rendezvous hashing).
    return max(
        (name for name, weight in weights.items() if weight > 0),
        key=lambda name: (-weights[name] / math.log(_score(key, name)), name),
    )


def _score(key: str, name: str) -> float:
    """More than 0 and less than 1, the same in every process; `hash()` is not."""
    text = f"{len(key)}:{key}{name}".encode(errors="surrogateescape")
    digest = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
    return ((digest >> (64 - _SCORE_BITS)) + 0.5) / (1 << _SCORE_BITS)

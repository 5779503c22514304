"""What the last minute was like: rates, times and sizes, for the status page.

`Metrics` hands over finished exchanges in groups of one kind, so each number is taken of a whole group in one step.
The sums of a minute are kept as slices of some seconds, and a slice that is too old is subtracted. All sums are whole
numbers, so that subtracting leaves no rounding errors. Not here: counts since the start (`metrics`), single errors
(`failures`).
"""

import struct
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import TypeVar

import msgspec
import numpy as np

from gateway.errors import blame_of
from gateway.exchange import Exchange

SLICE_S = 3
"""The length of one slice; what is older than a minute is subtracted one slice at a time."""

N_SLICES = 20
"""How many slices are kept, the one that is being filled included: the last minute."""

MAX_GROUPS = 200
"""The most pairs of route and backend with sums of their own; the others share those of `OTHER`."""

OTHER = "other"
"""The route and backend of what has no sums of its own."""

_STEP_SHIFT = 48
"""A duration's step is its double without the last 48 bits: 16 steps for each doubling, so that the middle of a step is
within 3.2 % of every duration in it."""

_BITS, _EDGES = struct.Struct("=qq"), struct.Struct("=dd")

_seconds_of = attrgetter("seconds")

K = TypeVar("K", str, int)


class Sums(msgspec.Struct):
    """Of finished requests. Bytes are bodies on the wire, of transcoded inferences that succeeded."""

    requests: int = 0
    microseconds: int = 0
    """From each request's head to its reply's last byte."""
    codec_microseconds: int = 0
    upstream_microseconds: int = 0
    """Of all attempts: large bodies are encoded and decoded meanwhile, so this and the codec's overlap."""
    client_request_bytes: int = 0
    upstream_request_bytes: int = 0
    upstream_response_bytes: int = 0
    client_response_bytes: int = 0
    blames: dict[str, int] = {}
    """How many have failed, by who caused it."""
    reasons: dict[str, int] = {}
    """How many have failed, by the error's label."""
    steps: dict[int, int] = {}
    """How many took how long, see `percentiles`."""

    @property
    def errors(self) -> int:
        """How many have failed."""
        return sum(self.blames.values())

    def add(self, other: "Sums") -> None:
        """Add *other*."""
        self._change_by(other, 1)

    def subtract(self, other: "Sums") -> None:
        """Take away *other*, which was added."""
        self._change_by(other, -1)

    def _change_by(self, other: "Sums", sign: int) -> None:
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))
        _change_each(self.blames, other.blames, sign)
        _change_each(self.reasons, other.reasons, sign)
        _change_each(self.steps, other.steps, sign)

    def percentiles(self, *shares: float) -> list[float | None]:
        """The seconds within which each of *shares* of the requests were done, to 3.2 %; None if there were none."""
        if not self.steps:
            return [None] * len(shares)
        steps = sorted(self.steps)
        done = list(accumulate(map(self.steps.__getitem__, steps)))
        return [_middle_of(steps[bisect_left(done, share * done[-1])]) for share in shares]


_NUMBERS = [each.name for each in msgspec.structs.fields(Sums) if each.type is int]


class Group(msgspec.Struct, frozen=True):
    """What one route has sent to one backend."""

    route: str
    backend: str
    sums: Sums


class Slice(msgspec.Struct, frozen=True):
    """How many requests ended in one slice of time, for a line over the last minute."""

    number: int
    """Since the machine's start, the same in all processes."""
    requests: int
    errors: int


class Minute(msgspec.Struct, frozen=True):
    """The last minute of one process."""

    seconds: float
    """How much of a minute it covers."""
    now: int
    """The number of the slice that is being filled."""
    slices: list[Slice]
    """Those in which requests have ended."""
    groups: list[Group]


class _Slice:
    """What is kept of one slice of time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.groups: dict[tuple[str, str], Sums] = {}


class Recent:
    """The last minute of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """*clock* counts seconds, and is the same in all processes of the machine."""
        self._clock = clock
        self._began_s = clock()
        self._slices: deque[_Slice] = deque()
        self._totals: dict[tuple[str, str], Sums] = {}

    def add(self, group: Sequence[Exchange]) -> None:
        """Add finished exchanges that agree on route, backend, error and whether they were transcoded."""
        current = self._current()
        one = group[0]
        key = one.route, one.backend
        if key not in self._totals and len(self._totals) >= MAX_GROUPS:
            key = OTHER, OTHER
        sums = _sums_of(group)
        for groups in (current.groups, self._totals):
            groups.setdefault(key, Sums()).add(sums)

    def reading(self) -> Minute:
        """What is known now."""
        now = self._current().number
        now_s = self._clock()
        return Minute(
            max(0.0, min(now_s - self._began_s, now_s - (now - N_SLICES + 1) * SLICE_S)),
            now,
            [_summed(each) for each in self._slices],
            [Group(*key, sums) for key, sums in self._totals.items()],
        )

    def _current(self) -> _Slice:
        """The slice of this moment; those that are too old are left out from now on."""
        number = int(self._clock() // SLICE_S)
        slices = self._slices
        if not slices or slices[-1].number < number:
            slices.append(_Slice(number))
        while slices[0].number <= number - N_SLICES:
            for key, sums in slices.popleft().groups.items():
                total = self._totals[key]
                total.subtract(sums)
                if not total.requests:
                    del self._totals[key]
        return slices[-1]


def merged(parts: Iterable[Sums]) -> Sums:
    """The sum of *parts*."""
    total = Sums()
    for part in parts:
        total.add(part)
    return total


def _sums_of(group: Sequence[Exchange]) -> Sums:
    one = group[0]
    durations = np.fromiter(map(_seconds_of, group), np.float64, len(group))
    attempts = chain.from_iterable(map(attrgetter("attempts"), group))
    sums = Sums(
        len(group),
        round(float(durations.sum()) * 1e6),
        _microseconds("request_codec_s", group) + _microseconds("response_codec_s", group),
        round(sum(map(_seconds_of, attempts)) * 1e6),
        # a double that is not negative is ordered as the integer with the same bits
        steps=dict(Counter((durations.view(np.int64) >> _STEP_SHIFT).tolist())),
    )
    if one.error is not None:
        sums.reasons = {one.error.label: len(group)}
        sums.blames = dict(Counter(blame_of(one.error, exchange.status).value for exchange in group))
    elif one.is_transcoded:
        last = [exchange.attempts[-1] for exchange in group if exchange.attempts]
        sums.client_request_bytes = _bytes("client_request_bytes", group)
        sums.client_response_bytes = _bytes("client_response_bytes", group)
        sums.upstream_request_bytes = sum(map(attrgetter("request_bytes"), last))
        sums.upstream_response_bytes = sum(map(attrgetter("response_bytes"), last))
    return sums


def _microseconds(name: str, group: Sequence[Exchange]) -> int:
    return round(float(sum(map(attrgetter(name), group))) * 1e6)


def _bytes(name: str, group: Sequence[Exchange]) -> int:
    return int(sum(map(attrgetter(name), group)))


def _middle_of(step: int) -> float:
    lower, upper = _EDGES.unpack(_BITS.pack(step << _STEP_SHIFT, (step + 1) << _STEP_SHIFT))
    return (lower + upper) / 2 if step else 0.0


def _change_each(counts: dict[K, int], by: dict[K, int], sign: int) -> None:
    """Add *by*, *sign* times, to *counts*; what becomes zero is left out."""
    if not counts and sign > 0:
        counts.update(by)
        return
    for key, count in by.items():
        if left := counts.get(key, 0) + sign * count:
            counts[key] = left
        else:
            del counts[key]


def _summed(kept: _Slice) -> Slice:
    groups = kept.groups.values()
    return Slice(kept.number, sum(each.requests for each in groups), sum(each.errors for each in groups))

"""Which requests go to the server together, and when (docs/configuration.md, "Requests that go together").

A lane holds the requests for one model of one backend, as long as any of them is under way. Requests of one kind go
together as soon as they have enough rows, or the first of them has waited long enough, or the server has answered all
requests that it was sent. Which requests are of one kind, and sending: `serving.batching`. Not here: clocks and timers.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

BATCH_BYTES = 8 * 1024 * 1024
"""The most bytes of tensors in one batch: to copy them takes a millisecond.

A request of this size or more gains nothing by going with others.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The configuration's `batch` of a backend or a model."""

    max_rows: int
    max_delay_s: float


@dataclass(slots=True, eq=False)
class Waiting(Generic[T]):
    """A request that waits for others to go with."""

    what: T
    kind: Hashable
    rows: int
    n_bytes: int
    since_s: float


Batch = list[Waiting[T]]


@dataclass(slots=True)
class Lane(Generic[T]):
    """The waiting requests for one model of one backend, and the number of batches under way."""

    limits: BatchLimits
    under_way: int = 0
    """How many batches are under way; a request that goes alone counts as one."""
    _waiting: dict[Hashable, Batch[T]] = field(default_factory=dict)

    def takes(self, rows: int, n_bytes: int) -> bool:
        """Whether a request of this size may go with others at all."""
        return rows < self.limits.max_rows and n_bytes < BATCH_BYTES

    def begin(self) -> None:
        """Count a request that goes alone; `end` must follow."""
        self.under_way += 1

    def add(self, one: Waiting[T]) -> list[Batch[T]]:
        """Let *one* wait, and take the batches that go now because of it; *one* may be in none of them."""
        same, going = self._waiting.get(one.kind), []
        if same and not self._fits(same, one):
            going.append(self._take(one.kind))
        same = self._waiting.setdefault(one.kind, [])
        same.append(one)
        if sum(each.rows for each in same) >= self.limits.max_rows:
            going.append(self._take(one.kind))
        return going

    def remove(self, one: Waiting[T]) -> None:
        """Take out *one*, whose client has left; does nothing if it does not wait any more."""
        same = self._waiting.get(one.kind, [])
        if one in same:
            same.remove(one)
            if not same:
                del self._waiting[one.kind]

    def end(self) -> list[Batch[T]]:
        """Count a batch as answered, and take the batches that go now: all that wait, if none is under way."""
        self.under_way -= 1
        return [] if self.under_way or not self._waiting else [self._take(kind) for kind in list(self._waiting)]

    def due(self, now_s: float) -> list[Batch[T]]:
        """Take the batches whose first request has waited long enough."""
        delay_s = self.limits.max_delay_s
        kinds = [kind for kind, same in self._waiting.items() if now_s >= same[0].since_s + delay_s]
        return [self._take(kind) for kind in kinds]

    @property
    def next_due_s(self) -> float | None:
        """When `due` will have the next batch; None if no request waits."""
        first = min((same[0].since_s for same in self._waiting.values()), default=None)
        return None if first is None else first + self.limits.max_delay_s

    def _fits(self, same: Batch[T], one: Waiting[T]) -> bool:
        rows = sum(each.rows for each in same) + one.rows
        return rows <= self.limits.max_rows and sum(each.n_bytes for each in same) + one.n_bytes <= BATCH_BYTES

    def _take(self, kind: Hashable) -> Batch[T]:
        """Take all waiting requests of *kind*: one batch, which is under way from now on."""
        self.under_way += 1
        return self._waiting.pop(kind)

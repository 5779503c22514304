"""Which requests go to the server together, and when (docs/configuration.md, "Requests that go together").

A lane has the requests for one model of one backend, while any of them is under way. Requests of one kind go together:
when they are enough, when the first of them has waited long enough, or when the server has answered all that it has.
Not here: what makes requests one of a kind, clocks and timers, and sending.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

BATCH_BYTES = 8 * 1024 * 1024
"""The most bytes of tensors in one batch: to copy them takes a millisecond.

Requests that are larger gain nothing by company.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """`batch` of a backend or a model."""

    max_rows: int
    max_delay_s: float


@dataclass(slots=True, eq=False)
class Waiting(Generic[T]):
    """A request that waits for company."""

    what: T
    kind: Hashable
    rows: int
    n_bytes: int
    since_s: float


Batch = list[Waiting[T]]


@dataclass(slots=True)
class Lane(Generic[T]):
    """The requests for one model of one backend that wait, and how many batches of them are under way."""

    limits: BatchLimits
    under_way: int = 0
    """Batches, and requests that go alone."""
    _waiting: dict[Hashable, Batch[T]] = field(default_factory=dict)

    def takes(self, rows: int, n_bytes: int) -> bool:
        """Whether a request of this size may go with others at all."""
        return rows < self.limits.max_rows and n_bytes < BATCH_BYTES

    def begin(self) -> None:
        """One request goes alone."""
        self.under_way += 1

    def add(self, one: Waiting[T]) -> list[Batch[T]]:
        """The batches that go now that *one* has come; it may be in none of them, and waits then."""
        same, going = self._waiting.get(one.kind), []
        if same and not self._fits(same, one):
            going.append(self._take(one.kind))
        same = self._waiting.setdefault(one.kind, [])
        same.append(one)
        if sum(each.rows for each in same) >= self.limits.max_rows:
            going.append(self._take(one.kind))
        return going

    def remove(self, one: Waiting[T]) -> None:
        """*one* waits no longer: its client has left."""
        same = self._waiting.get(one.kind, [])
        if one in same:
            same.remove(one)
            if not same:
                del self._waiting[one.kind]

    def end(self) -> list[Batch[T]]:
        """One batch is answered; the batches that go now: all that wait, if it was the last."""
        self.under_way -= 1
        return [] if self.under_way or not self._waiting else [self._take(kind) for kind in list(self._waiting)]

    def due(self, now_s: float) -> list[Batch[T]]:
        """The batches that go because the first request of them has waited long enough."""
        delay_s = self.limits.max_delay_s
        kinds = [kind for kind, same in self._waiting.items() if now_s >= same[0].since_s + delay_s]
        return [self._take(kind) for kind in kinds]

    @property
    def next_due_s(self) -> float | None:
        """When `due` has the next one; None if nothing waits."""
        first = min((same[0].since_s for same in self._waiting.values()), default=None)
        return None if first is None else first + self.limits.max_delay_s

    def _fits(self, same: Batch[T], one: Waiting[T]) -> bool:
        rows = sum(each.rows for each in same) + one.rows
        return rows <= self.limits.max_rows and sum(each.n_bytes for each in same) + one.n_bytes <= BATCH_BYTES

    def _take(self, kind: Hashable) -> Batch[T]:
        """Everything of *kind* that waits, which is under way from now on."""
        self.under_way += 1
        return self._waiting.pop(kind)

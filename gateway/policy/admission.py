"""Which requests are admitted, and which slow uploads make room for them.

Bytes are reserved before a body is read; a slot among the concurrent requests is taken when the body is there, or when
it goes on to a backend. Answers add what they hold; they are never refused, because the work has been done by then, but
keep new requests out. A share is left for small requests, so that large ones cannot starve them.

A claim for which there is no room waits while ending slow uploads may help, which are not ended before they have
taken `SLOW_AFTER_S`. `Admission.look` decides about all claims that wait, so that an attack by thousands of connections
costs one pass over them in `LOOK_S`. Not here: what is counted of a request (`client.body`), clocks and timers.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

SMALL_BYTES = 64 * 1024
"""The largest body of a small request."""

SMALL_SHARE = 16
"""Only small requests may use the last sixteenth of the bytes and of the slots."""

SLOW_BYTES_PER_S = 64 * 1024
"""An upload that comes more slowly, on average over the time that its client was waited for, gives way to others."""

SLOW_AFTER_S = 2.0
"""For how long an upload's client must have been waited for before it may be ended to make room."""

MAX_WAIT_S = 2.5
"""How long a claim waits for room at most: until an upload that has just begun may be ended, and a few looks more."""

LOOK_S = 0.1
"""How often `Admission.look` is called while claims wait."""

ENDED_AT_ONCE = 64
"""How many uploads are ended in one look at most: with 2,048 uploads and as many claims a look takes 3 ms then."""


class Admission:
    """The budget of one process."""

    def __init__(self, max_bytes: int, max_requests: int) -> None:
        self.max_bytes = max_bytes
        self.max_requests = max_requests
        self.requests = 0
        """Slots that are taken."""
        self.reserved_bytes = 0
        """Of bodies, and of answers as far as they have come."""
        self.waiting: list[Claim] = []
        """In the order in which they are granted."""
        self._unread_bytes = 0
        self._uploads: set[Upload] = set()
        self._look_at_s: float | None = None
        self._looked_at_s = self._none_slow_until_s = float("-inf")

    @property
    def held_bytes(self) -> int:
        """What is held of requests and answers, and what connections hold beside them."""
        return self.reserved_bytes + self._unread_bytes

    def hold_unread(self, n_bytes: int) -> None:
        """Count *n_bytes* more, or fewer if negative, that connections hold outside of any request's reservation.

        They keep new requests out, but for one that is alone.
        """
        self._unread_bytes += n_bytes

    def admit(self, n_bytes: int) -> "Reservation | None":
        """Let in a request whose body is there, with *n_bytes*: bytes and a slot; None if there is no room for both."""
        is_sure = (  # a small one in a budget that is not full: without a call, since nearly all requests are such
            n_bytes <= SMALL_BYTES
            and self.reserved_bytes + self._unread_bytes + n_bytes <= self.max_bytes
            and self.requests < self.max_requests
        )
        if not is_sure and not self.has_room(0, n_bytes, 1):
            return None
        self.requests += 1
        self.reserved_bytes += n_bytes
        return Reservation(self, n_bytes, 1)

    def has_room(self, own_bytes: int, n_bytes: int, n_slots: int, freed_bytes: int = 0, freed_slots: int = 0) -> bool:
        """Whether *n_bytes* and *n_slots* may join the *own_bytes* of a reservation.

        *freed_bytes* and *freed_slots*: if so much of other reservations were given back.
        """
        max_bytes, max_requests = self.max_bytes, self.max_requests
        whole_bytes = own_bytes + n_bytes
        held_bytes = self.reserved_bytes + n_bytes - freed_bytes
        if whole_bytes > SMALL_BYTES:
            max_requests -= max_requests // SMALL_SHARE
        if held_bytes > whole_bytes:  # one that is alone may use all bytes
            held_bytes += self._unread_bytes
            if whole_bytes > SMALL_BYTES:
                max_bytes -= max_bytes // SMALL_SHARE
        has_bytes = not n_bytes or held_bytes <= max_bytes
        return has_bytes and (not n_slots or self.requests - freed_slots < max_requests)

    def begin(self, upload: "Upload") -> None:
        """*upload* is being read from now on, and gives way to others if it is slow."""
        self._uploads.add(upload)

    def end(self, upload: "Upload") -> None:
        """*upload* is not read any more; this may be called again."""
        self._uploads.discard(upload)

    def wait(self, claim: "Claim", now_s: float) -> bool:
        """Let *claim* wait for a verdict; False if no other upload may be slow soon, so that waiting is of no use."""
        if now_s < self._none_slow_until_s:
            return False
        own = claim.reservation
        if not any(each.reservation is not own and each.may_be_slow_soon(now_s) for each in self._uploads):
            self._none_slow_until_s = now_s + LOOK_S
            return False
        insort(self.waiting, claim, key=_rank)
        return True

    def leave(self, claim: "Claim") -> None:
        """*claim* waits no longer, with or without a verdict."""
        if claim.is_granted is None:
            self.waiting.remove(claim)

    def plan_look(self, now_s: float) -> float | None:
        """When `look_as_planned` is to be called next; None if nobody waits, or that call is planned already."""
        if not self.waiting or self._look_at_s is not None:
            return None
        self._look_at_s = max(now_s, self._looked_at_s + LOOK_S)
        return self._look_at_s

    def look_as_planned(self, now_s: float) -> None:
        """`look`, at the time that `plan_look` gave."""
        self._look_at_s = None
        self.look(now_s)

    def look(self, now_s: float) -> None:
        """Decide about the claims that wait: end slow uploads for those that fit then, refuse those that cannot fit."""
        self._looked_at_s = now_s
        for claim in self.waiting:
            claim.is_whole = claim.is_whole or claim.has_come()
        self.waiting.sort(key=_rank)
        slow = _Slow(self._uploads, now_s)
        for claim in self.waiting.copy():
            self._decide(claim, slow, now_s)

    def _decide(self, claim: "Claim", slow: "_Slow", now_s: float) -> None:
        """Grant or refuse *claim*, or let it wait on. There are five cases.

        An upload that is ended may give back what it holds at once, and `serve` then grants this claim or others.
        """
        # what was freed for a body that still lacks some is not for uploads that come after it
        may_take = slow.n_left > 0 or claim.is_whole
        while claim.is_granted is None:
            # 1. There is room.
            if may_take and claim.take():
                self._settle(claim, True)
            # 2. It waits for a slot of an upload that was ended in this look.
            elif slow.promised_slots and claim.fits(0, slow.promised_slots):
                slow.promised_slots -= claim.n_slots
                return
            # 3. There would be room without the slow uploads: the slowest is ended, and it is asked again.
            elif slow.uploads and slow.n_left and claim.fits(slow.n_bytes, slow.n_slots + slow.promised_slots):
                self._end_slowest(slow, claim, now_s)
            # 4. Its time is over, or there would be no room even without those that may be slow soon.
            elif now_s >= claim.until_s or not claim.fits(slow.soon_bytes, slow.soon_slots + slow.promised_slots):
                self._settle(claim, False)
            # 5. It waits on.
            else:
                return

    def _end_slowest(self, slow: "_Slow", claim: "Claim", now_s: float) -> None:
        """End the slowest upload if what it holds is what *claim* lacks.

        Its bytes are given back at once, its slot when its connection to a backend is free as well, a few turns of the
        event loop later.
        """
        upload = slow.take_slowest()
        held, own_bytes = upload.reservation, claim.reservation.n_bytes
        if held.n_bytes and not self.has_room(own_bytes, claim.n_bytes, 0):
            reason = "memory was needed for other requests (limits.in_flight_bytes)"
        elif held.n_slots and not self.has_room(own_bytes + claim.n_bytes, 0, claim.n_slots):
            reason = "its place was needed for other requests (limits.concurrent_requests)"
        else:
            return
        self.end(upload)
        upload.fail(f"{upload.bytes_per_s(now_s):.0f} bytes a second in {upload.waited_s(now_s):.1f} s, and {reason}")
        held.hold(-held.n_bytes)
        slow.promised_slots += held.n_slots

    def serve(self) -> None:
        """Grant what fits to claims that wait, in their order; to be called when something was given back."""
        while self.waiting and self.waiting[0].take():
            self._settle(self.waiting[0], True)

    def _settle(self, claim: "Claim", is_granted: bool) -> None:
        self.waiting.remove(claim)
        claim.is_granted = is_granted
        claim.wake()


class Reservation:
    """What one request holds of the budget."""

    __slots__ = ("admission", "n_bytes", "n_slots")

    def __init__(self, admission: Admission, n_bytes: int = 0, n_slots: int = 0) -> None:
        """With *n_bytes* and *n_slots* that are counted already."""
        self.admission = admission
        self.n_bytes = n_bytes
        self.n_slots = n_slots

    def take(self, n_bytes: int, n_slots: int = 0) -> bool:
        """Take *n_bytes* more, and *n_slots* among the concurrent requests; False if there is no room for both."""
        admission = self.admission
        if not admission.has_room(self.n_bytes, n_bytes, n_slots):
            return False
        self.n_bytes += n_bytes
        self.n_slots += n_slots
        admission.reserved_bytes += n_bytes
        admission.requests += n_slots
        return True

    def hold(self, n_bytes: int) -> None:
        """Count *n_bytes* more of an answer, whether there is room or not."""
        self.n_bytes += n_bytes
        self.admission.reserved_bytes += n_bytes

    def release(self) -> None:
        """Give everything back that is held."""
        admission = self.admission
        admission.reserved_bytes -= self.n_bytes
        admission.requests -= self.n_slots
        self.n_bytes = self.n_slots = 0
        if admission.waiting:
            admission.serve()


class Upload:
    """A body that is being read: how fast it comes. Only the time counts in which its client is waited for."""

    __slots__ = ("_received_bytes", "_waited_s", "_waits_since_s", "fail", "reservation")

    def __init__(self, reservation: Reservation, fail: Callable[[str], None]) -> None:
        """*fail* ends it; it is given words that say how fast the upload was, and why it is ended."""
        self.reservation = reservation
        self.fail = fail
        self._received_bytes = 0
        self._waited_s = 0.0
        self._waits_since_s: float | None = None

    def begin_wait(self, now_s: float) -> None:
        """The client is waited for from now on."""
        self._waits_since_s = now_s

    def end_wait(self, now_s: float, n_bytes: int) -> None:
        """The client is waited for no longer; *n_bytes* came."""
        self._waited_s = self.waited_s(now_s)
        self._waits_since_s = None
        self._received_bytes += n_bytes

    def waited_s(self, now_s: float) -> float:
        """How long the client has been waited for in all."""
        return self._waited_s + (0.0 if self._waits_since_s is None else now_s - self._waits_since_s)

    def bytes_per_s(self, now_s: float) -> float:
        """On average while the client was waited for; 0 at the very beginning."""
        waited_s = self.waited_s(now_s)
        return self._received_bytes / waited_s if waited_s > 0 else 0.0

    def is_slow(self, now_s: float) -> bool:
        """Whether it may be ended to make room: not while the gateway does not wait for its client."""
        waited_s = self.waited_s(now_s)
        is_waited_for = self._waits_since_s is not None
        return is_waited_for and waited_s > SLOW_AFTER_S and self._received_bytes < SLOW_BYTES_PER_S * waited_s

    def may_be_slow_soon(self, now_s: float) -> bool:
        """Whether it may be ended by now, or within `MAX_WAIT_S` if nothing more comes.

        Else a client that reconnects, and sends a little at once each time, would never be slow at its beginning.
        """
        return self._received_bytes < SLOW_BYTES_PER_S * (self.waited_s(now_s) + MAX_WAIT_S)


@dataclass(slots=True, eq=False)
class Claim:
    """More bytes or a slot, for which there was no room and a request waits."""

    reservation: Reservation
    n_bytes: int
    n_slots: int
    until_s: float
    wake: Callable[[], None]
    """Called when there is a verdict, at `until_s` and a look at the latest."""
    is_whole: bool = False
    """Whether the body has come to its end, so that it is no slow upload."""
    has_come: Callable[[], bool] = bool
    """Whether it has come to its end by now."""
    is_granted: bool | None = None
    """The verdict; None while the claim waits. What is granted is in the reservation."""

    def take(self) -> bool:
        """Take what is claimed, if there is room for all of it."""
        return self.reservation.take(self.n_bytes, self.n_slots)

    def fits(self, freed_bytes: int, freed_slots: int) -> bool:
        """Whether there would be room for it, if so much of others were given back."""
        own = self.reservation
        return own.admission.has_room(own.n_bytes, self.n_bytes, self.n_slots, freed_bytes, freed_slots)


def _rank(claim: Claim) -> tuple[bool, int]:
    """Bodies that are there come first, so that slow uploads cannot take what is given back by others of their kind.

    Then the smallest first, since what fits one that is larger fits it too, but for requests that are alone.
    """
    return not claim.is_whole, claim.reservation.n_bytes + claim.n_bytes


class _Slow:
    """The slow uploads of one look, the slowest last; and what those and all hold that may be slow soon."""

    def __init__(self, uploads: set[Upload], now_s: float) -> None:
        self.n_bytes = self.n_slots = self.soon_bytes = self.soon_slots = 0
        self.promised_slots = 0
        """Those of uploads that were ended, and that still have to be given back."""
        self.n_left = ENDED_AT_ONCE
        self.uploads = []
        for upload in uploads:
            if upload.may_be_slow_soon(now_s):
                is_slow = upload.is_slow(now_s)
                self._count(upload.reservation, 1, is_slow)
                if is_slow:
                    self.uploads.append(upload)
        self.uploads.sort(key=lambda upload: upload.bytes_per_s(now_s), reverse=True)

    def take_slowest(self) -> Upload:
        """The slowest, which is no longer one of `uploads`."""
        upload = self.uploads.pop()
        self.n_left -= 1
        self._count(upload.reservation, -1, True)
        return upload

    def _count(self, held: Reservation, sign: int, is_slow: bool) -> None:
        self.soon_bytes += sign * held.n_bytes
        self.soon_slots += sign * held.n_slots
        if is_slow:
            self.n_bytes += sign * held.n_bytes
            self.n_slots += sign * held.n_slots

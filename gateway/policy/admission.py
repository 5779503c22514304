"""Which requests are admitted, and which slow uploads make room for them.

Bytes are reserved before a body is read, and a slot is taken when the body is complete, or begins to cross to a
backend. Answers are counted but never refused, because their work is done. A share is left for small requests.

A claim for which there is no room waits as long as ending slow uploads may make room. `Admission.look` decides about
all waiting claims at once, so that thousands of connections cost one pass over them in `LOOK_S`. Not here: which bytes
of a request are counted (`client.body`), clocks and timers.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.policy.slowness import Upload

SMALL_BYTES = 64 * 1024
"""The largest body of a small request."""

SMALL_SHARE = 16
"""Only small requests may use the last sixteenth of the bytes and of the slots."""

SLOW_BYTES_PER_S = 64 * 1024
"""An upload slower than this gives way to others; the average over the time in which its client was waited for."""

SLOW_AFTER_S = 2.0
"""For how long an upload's client must have been waited for before it may be ended to make room."""

MAX_WAIT_S = 2.5
"""The longest wait of a claim: until an upload that has just begun may be ended, and a few looks more."""

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
        """The bytes reserved for bodies, and those of answers that have come."""
        self.waiting: list[Claim] = []
        """The claims without a verdict, in the order in which they are granted."""
        self.uploads: set[Reservation] = set()
        """Those of bodies that are read as they come."""
        self._unread_bytes = 0
        self.looking: object = None
        """What calls `look` every `LOOK_S` while claims wait; None while none does."""
        self._none_slow_until_s = float("-inf")

    @property
    def held_bytes(self) -> int:
        """The bytes reserved for requests and answers, and those that connections hold outside of any request."""
        return self.reserved_bytes + self._unread_bytes

    def hold_unread(self, n_bytes: int) -> None:
        """Count *n_bytes* more, or fewer if negative, that connections hold outside of any request's reservation."""
        self._unread_bytes += n_bytes

    def has_room(self, own_bytes: int, n_bytes: int, n_slots: int, freed_bytes: int = 0, freed_slots: int = 0) -> bool:
        """Whether *n_bytes* and *n_slots* may join the *own_bytes* of a reservation.

        *freed_bytes* and *freed_slots* are counted as if other reservations had given them back already.
        """
        max_bytes, max_requests = self.max_bytes, self.max_requests
        whole_bytes = own_bytes + n_bytes
        held_bytes = self.reserved_bytes + n_bytes - freed_bytes
        if whole_bytes > SMALL_BYTES:
            max_requests -= max_requests // SMALL_SHARE
        if held_bytes > whole_bytes:  # a request that is alone may use all bytes
            held_bytes += self._unread_bytes
            if whole_bytes > SMALL_BYTES:
                max_bytes -= max_bytes // SMALL_SHARE
        has_bytes = not n_bytes or held_bytes <= max_bytes
        return has_bytes and (not n_slots or self.requests - freed_slots < max_requests)

    def wait(self, claim: "Claim", now_s: float) -> bool:
        """Let *claim* wait for a verdict; False if no other upload may soon be slow, so that waiting is of no use."""
        if now_s < self._none_slow_until_s:
            return False
        own = claim.reservation
        if not any(each is not own and each.may_be_slow_soon(now_s) for each in self.uploads):
            self._none_slow_until_s = now_s + LOOK_S
            return False
        insort(self.waiting, claim, key=_rank)
        return True

    def leave(self, claim: "Claim") -> None:
        """Take *claim* out of those that wait, if it still has no verdict."""
        if claim.is_granted is None:
            self.waiting.remove(claim)

    def look(self, now_s: float) -> None:
        """Decide about all waiting claims: end slow uploads where a claim then fits, refuse claims that cannot fit."""
        self.waiting.sort(key=_rank)
        slow = _Slow(self.uploads, now_s)
        for claim in self.waiting.copy():
            self._decide(claim, slow, now_s)

    def _decide(self, claim: "Claim", slow: "_Slow", now_s: float) -> None:
        """Grant or refuse *claim*, or let it wait on. There are five cases; `serve` may grant it in between."""
        # once this look may end no more uploads (`ENDED_AT_ONCE`), only complete bodies may take the room that is left
        may_take = slow.n_left > 0 or claim.is_whole()
        while claim.is_granted is None:
            # 1. There is room.
            if may_take and claim.take():
                self._settle(claim, True)
            # 2. A slot of an upload that was ended in this look will be free soon: the claim waits for it.
            elif slow.promised_slots and claim.fits(0, slow.promised_slots):
                slow.promised_slots -= claim.n_slots
                return
            # 3. There would be room without the slow uploads: the slowest is ended, and the cases are tried again.
            elif slow.uploads and slow.n_left and claim.fits(slow.n_bytes, slow.n_slots + slow.promised_slots):
                self._end_slowest(slow, claim, now_s)
            # 4. The claim's time is over, or there would be no room even without all uploads that may soon be slow.
            elif now_s >= claim.until_s or not claim.fits(
                slow.n_bytes + slow.other_bytes, slow.n_slots + slow.other_slots + slow.promised_slots
            ):
                self._settle(claim, False)
            # 5. The claim waits on.
            else:
                return

    def _end_slowest(self, slow: "_Slow", claim: "Claim", now_s: float) -> None:
        """End the slowest upload if it holds bytes or a slot that *claim* lacks.

        The upload's bytes are given back at once. Its slot follows a few turns of the event loop later, when its
        connection to a backend is free as well.
        """
        held, own_bytes = slow.take_slowest(), claim.reservation.n_bytes
        upload, fail = held.upload, held.fail
        assert upload is not None
        assert fail is not None
        if held.n_bytes and not self.has_room(own_bytes, claim.n_bytes, 0):
            reason = "memory was needed for other requests (limits.in_flight_bytes)"
        elif held.n_slots and not self.has_room(own_bytes + claim.n_bytes, 0, claim.n_slots):
            reason = "its place was needed for other requests (limits.concurrent_requests)"
        else:
            return
        held.end_upload()
        fail(f"{upload.bytes_per_s(now_s):.0f} bytes a second in {upload.waited_s(now_s):.1f} s, and {reason}")
        held.hold(-held.n_bytes)
        slow.promised_slots += held.n_slots

    def serve(self) -> None:
        """Grant waiting claims in their order as long as they fit; to be called when bytes or slots were given back."""
        while self.waiting and self.waiting[0].take():
            self._settle(self.waiting[0], True)

    def _settle(self, claim: "Claim", is_granted: bool) -> None:
        self.waiting.remove(claim)
        claim.is_granted = is_granted
        claim.wake()


class Reservation:
    """The share of the budget that one request holds; its bytes and slots are counted in its `admission` already."""

    n_bytes = 0
    n_slots = 0
    is_released = False
    upload: Upload | None = None
    """How fast the body comes; None if it is complete, or is not read yet."""
    fail: Callable[[str], None] | None = None
    """Ends the upload; its argument says in words how fast the upload was, and why it is ended."""

    def __init__(self, admission: Admission) -> None:
        """A reservation that holds nothing yet, of *admission*."""
        self.admission = admission

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

    def begin_upload(self, upload: Upload, fail: Callable[[str], None]) -> None:
        """Give way to others from now on if *upload* is slow, by *fail*."""
        self.upload, self.fail = upload, fail
        self.admission.uploads.add(self)

    def end_upload(self) -> None:
        """The body is complete, or is not read any more."""
        if self.upload is not None:
            self.upload = self.fail = None
            self.admission.uploads.remove(self)

    def is_slow(self, now_s: float) -> bool:
        """Whether the upload may be ended to make room; never while the gateway itself does not read."""
        upload = self.upload
        if upload is None or not upload.is_awaited:
            return False
        waited_s = upload.waited_s(now_s)
        return waited_s > SLOW_AFTER_S and upload.received_bytes < SLOW_BYTES_PER_S * waited_s

    def may_be_slow_soon(self, now_s: float) -> bool:
        """Whether the upload may be ended by now, or within `MAX_WAIT_S` if nothing more comes.

        So a client that reconnects and each time sends a little at once counts as slow from its beginning.
        """
        upload = self.upload
        return upload is not None and upload.received_bytes < SLOW_BYTES_PER_S * (upload.waited_s(now_s) + MAX_WAIT_S)

    def release(self) -> None:
        """Give back everything; claims that wait and fit now are granted."""
        if self.upload is not None:
            self.end_upload()
        admission = self.admission
        admission.reserved_bytes -= self.n_bytes
        admission.requests -= self.n_slots
        self.n_bytes = self.n_slots = 0
        self.is_released = True
        if admission.waiting:
            admission.serve()


@dataclass(slots=True, eq=False)
class Claim:
    """More bytes or a slot, for which a request waits because there was no room."""

    reservation: Reservation
    n_bytes: int
    n_slots: int
    until_s: float
    is_whole: Callable[[], bool]
    """Asks whether the body is complete by now, so that it is no slow upload."""
    wake: Callable[[], object] = bool
    """Called when there is a verdict, one look after `until_s` at the latest."""
    is_granted: bool | None = None
    """The verdict; None while the claim waits. Bytes and slots that are granted are in the reservation."""

    def take(self) -> bool:
        """Take the bytes and slots into the reservation; False, and nothing is taken, if there is no room for all."""
        return self.reservation.take(self.n_bytes, self.n_slots)

    def fits(self, freed_bytes: int, freed_slots: int) -> bool:
        """Whether there would be room if others gave back *freed_bytes* and *freed_slots*."""
        own = self.reservation
        return own.admission.has_room(own.n_bytes, self.n_bytes, self.n_slots, freed_bytes, freed_slots)


def _rank(claim: Claim) -> tuple[bool, int]:
    """Complete bodies come first, so that slow uploads cannot take the room that other slow uploads give back.

    Then the smallest first: wherever a larger claim fits a smaller one fits, too, except for a request that is alone.
    """
    return not claim.is_whole(), claim.reservation.n_bytes + claim.n_bytes


class _Slow:
    """The slow uploads of one look, the slowest last, and what they and those that may soon be slow hold."""

    def __init__(self, uploads: Iterable[Reservation], now_s: float) -> None:
        soon = [held for held in uploads if held.may_be_slow_soon(now_s)]
        self.uploads = [held for held in soon if held.is_slow(now_s)]
        self.uploads.sort(key=lambda held: held.upload.bytes_per_s(now_s) if held.upload else 0, reverse=True)
        self.n_bytes = sum(held.n_bytes for held in self.uploads)
        self.n_slots = sum(held.n_slots for held in self.uploads)
        self.other_bytes = sum(held.n_bytes for held in soon) - self.n_bytes
        self.other_slots = sum(held.n_slots for held in soon) - self.n_slots
        self.promised_slots = 0
        """Slots of uploads that were ended; the uploads have not given them back yet."""
        self.n_left = ENDED_AT_ONCE

    def take_slowest(self) -> Reservation:
        """Remove the slowest upload from `uploads` and return what it holds."""
        held = self.uploads.pop()
        self.n_left -= 1
        self.n_bytes -= held.n_bytes
        self.n_slots -= held.n_slots
        return held

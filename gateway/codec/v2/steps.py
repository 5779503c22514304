"""Work on the JSON beside the tensors' data, in steps that are short whatever a header holds.

A header may have a mebibyte of JSON, in a thousand inputs or in a hundred thousand members of one object. Each loop
over it counts what it has worked on and yields when a step is full, so that others can run. Short objects, which is
to say nearly all, are worked on in one go by the plain functions of `json.members`: a generator costs as much as they.
"""

from collections.abc import Generator

import orjson

from gateway.codec.json.members import Members, restore_literals

STEP_COST = 16 * 1024
"""How much one step works on: about a quarter of a millisecond for what costs most."""

ITEM_COST = 64
"""What one member or list entry costs beside its bytes, in bytes: Python works on it one by one."""

ENTRY_COST = 512
"""The same for a tensor's entry, which is checked and printed again."""

SHORT_BYTES = 4 * 1024
"""The longest text that is parsed or restored in one go."""

FEW_MEMBERS = SHORT_BYTES // ITEM_COST
"""The most members of an object that is printed in one go."""


class Steps:
    """Counts the cost of a loop's work."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = STEP_COST

    def is_full_with(self, cost: int) -> bool:
        """Whether *cost* more fills a step; if so the next one begins, and the caller yields."""
        self._left -= cost
        if self._left > 0:
            return False
        self._left = STEP_COST
        return True


def sliced_text(members: Members) -> Generator[None, None, bytes]:
    """As `object_text`, for any number of *members*: yields after each step of work."""
    text = bytearray(b"{")
    steps = Steps()
    for key, value in members.items():
        if len(text) > 1:
            text += b","
        text += b"%b:%b" % (orjson.dumps(key), value)
        if steps.is_full_with(ITEM_COST + len(value)):
            yield
    text += b"}"
    return bytes(text)


def sliced_restore(text: bytes, marker: bytes) -> Generator[None, None, bytes]:
    """As `restore_literals`, for a *text* of any length: yields after each step of work."""
    if not marker:
        return text
    whole = bytearray()
    start = 0
    while start < len(text):
        end = _cut(text, start + STEP_COST, marker)
        whole += restore_literals(text[start:end], marker)
        start = end
        yield
    return bytes(whole)


def _cut(text: bytes, position: int, marker: bytes) -> int:
    """The last place up to *position* that is not inside *marker* and the digit behind it."""
    if position >= len(text):
        return len(text)
    cut_through = text.find(marker, position - len(marker), position + len(marker))
    return min(position, cut_through) if cut_through >= 0 else position

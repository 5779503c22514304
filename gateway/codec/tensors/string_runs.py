r"""Many short strings at a time, flat or nested: from the text of their array to length-prefixed elements.

Where no backslash is in the text, the bytes of each string already are its element. Only what stands between two
strings, the gap, has to become a length:

    "first","second"],["third"       ->       5 first 6 second 5 third

numpy finds all quotes. Every second pair of neighbours must enclose the gap that the shape wants there: a comma, or
brackets and a comma where lists end and begin. This is proved by writing the gaps into a copy of the text: if that
changes nothing, they are right. With its quotes, a gap of two bytes is exactly as long as a length. A shorter one is
made longer, and of a longer one the rest is deleted. For short strings this takes a third of what orjson takes; for
strings of 100 bytes four fifths, and half in lists of one string or beyond ASCII.

Where there are backslashes, or only a few strings, orjson parses the strings and makes lists of the rows; the lengths
of these lists are compared with those that they must have.

Here: runs of strings that are nested in full, up to the first that is not. Not here: single strings and brackets, and
what is wrong with them (`string_reading`).
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from gateway.codec.tensors.elements import PREFIX_BYTES, RUN_ELEMENTS, RUN_STEP_ELEMENTS, STEP_ELEMENTS, words_of
from gateway.codec.tensors.nesting import Rows

PARSED_BYTES = 32 * 1024
"""How much text of short strings is parsed in one step; where they are only copied, a step takes a window."""

MIN_STRINGS = 16
"""Fewer are not worth numpy's calls."""

_NEAR_BYTES = 4096  # where the first list mostly ends whose length is to be learned
_QUOTE, _BACKSLASH, _CLOSE = b'"\\]'
_WIDEN, _DELETE = 0, 1  # no JSON string has these characters

_MARK = "\x7f___"  # as long as a length; few texts have a DEL character
_FIRST_GAP = re.compile(rb'"(?:[^"\\]++|\\.)*+("[], \t\r\n[]*+")', re.DOTALL)

Places = npt.NDArray[np.int64]


class Gaps(NamedTuple):
    """Gaps between strings that have the same text."""

    start: int
    """Behind which string the first is."""
    every: int
    """The distance in strings between two of these gaps; where an outer list ends as well, the gap of the outer list
    stands there instead."""
    text: bytes
    """What is between the quotes."""


class Run(NamedTuple):
    """Strings at the front of a text."""

    opens: Places
    ends: Places
    """Where the quotes are before and behind them."""
    gaps: list[Gaps]
    """What is between them, the shortest first."""
    text: bytearray
    """A copy of the text up to the last quote, without it; whoever takes the run writes into it."""

    @property
    def end(self) -> int:
        """Where the last string ends."""
        return int(self.ends[-1]) + 1


def take_run(elements: bytearray, text: bytes, first: int, rows: Sequence[Rows]) -> tuple[int, int]:
    """Append many of the strings at the front of *text* to *elements*: how many, and where they end.

    0 and 0, with nothing appended, if they are few or broken. *text* begins with the quote of element number *first*.
    *rows* are the lists around it but the outermost, as far as they are known: none for flat data. Of short strings
    that must be parsed, only as many are taken as one step may.
    """
    run = find_run(text, first, rows) if b"\\" not in text else None
    if run is not None and append_run(elements, run):
        return len(run.ends), run.end
    return _parse(elements, _parsed_at_once(text), first, rows)


def find_run(text: bytes, first: int, rows: Sequence[Rows]) -> Run | None:
    """The strings at the front of *text*, which has no backslash, as far as they are nested in full; None for few.

    *text* begins with the quote of element number *first*. *rows* are the inner lists as far as they are known, none
    for flat data. At most `RUN_STEP_ELEMENTS`.
    """
    codes = np.frombuffer(text, np.uint8)
    quotes = (codes == _QUOTE).nonzero()[0][: 2 * RUN_STEP_ELEMENTS]
    n_strings = len(quotes) // 2
    if n_strings < MIN_STRINGS:
        return None
    opens, ends = quotes[: 2 * n_strings : 2], quotes[1 : 2 * n_strings : 2]
    gaps, n_strings = _expected_gaps(text, opens, ends, first, rows)
    if n_strings < MIN_STRINGS:
        return None
    distances = opens[1:n_strings] - ends[: n_strings - 1]
    expected: Places | int = len(gaps[0].text) + 1
    if len(gaps) > 1:
        expected = np.full(n_strings - 1, expected)
        for gap in gaps[1:]:
            expected[gap.start :: gap.every] = len(gap.text) + 1
    is_expected = distances == expected
    if np.count_nonzero(is_expected) < len(distances):
        n_strings = int(is_expected.argmin()) + 1
    written = bytearray(memoryview(text)[: ends[n_strings - 1]])
    _write_gaps(written, ends[: n_strings - 1], gaps)
    if not text.startswith(written):
        is_wrong = np.frombuffer(written, np.uint8) != codes[: len(written)]
        n_strings = int(np.searchsorted(ends, is_wrong.argmax()))
        if n_strings < MIN_STRINGS:
            return None
        written = written[: ends[n_strings - 1]]
    return Run(opens[:n_strings], ends[:n_strings], gaps, written)


def _expected_gaps(
    text: bytes, opens: Places, ends: Places, first: int, rows: Sequence[Rows]
) -> tuple[list[Gaps], int]:
    """The gaps that are expected between the next strings, and for how many strings they are expected.

    The first gap of each kind tells how the sender writes it.
    """
    n_gaps = len(opens) - 1
    kinds = [*rows] if rows and rows[0].n_elements == 1 else [Rows(1, 0), *rows]
    starts = [-(first + 1) % every for every, _ in kinds]
    gaps: list[Gaps] = []
    for index, (every, n_lists) in enumerate(kinds):
        place = starts[index]
        if index + 1 < len(kinds) and (place - starts[index + 1]) % kinds[index + 1].n_elements == 0:
            place += every
        if place >= n_gaps:
            continue
        between = text[ends[place] + 1 : opens[place + 1]]
        if _is_gap(between, n_lists) and (not gaps or len(gaps[-1].text) < len(between)):
            gaps.append(Gaps(starts[index], every, between))
        else:
            n_gaps = place
    return gaps, n_gaps + 1


def _write_gaps(text: bytearray, ends: Places, gaps: Sequence[Gaps]) -> None:
    """Write *gaps* behind the quotes at *ends*."""
    codes = np.frombuffer(text, np.uint8)
    for gap in gaps:
        places = ends[gap.start :: gap.every] + 1
        for code in gap.text:
            codes[places] = code
            places += 1


def append_run(elements: bytearray, run: Run) -> bool:
    """Append the strings of *run*; False, with nothing appended, if they are no JSON."""
    opens, ends, gaps, text = run
    if not is_plain(text):
        return False
    sizes = ends - opens - 1
    codes = np.frombuffer(text, np.uint8)
    for gap in gaps:
        places = ends[gap.start : -1 : gap.every]
        n_more = len(gap.text) + 2 - PREFIX_BYTES
        if n_more < 0:
            codes[places] = _WIDEN
        elif n_more > 0:
            places = places.copy()
            for _ in range(n_more):
                codes[places] = _DELETE
                places += 1
    if len(gaps[-1].text) + 2 > PREFIX_BYTES:
        text = text.replace(bytes([_DELETE]), b"")
    if len(gaps[0].text) + 2 < PREFIX_BYTES:
        text = text.replace(bytes([_WIDEN]), bytes(2))
    _append_elements(elements, PREFIX_BYTES - 1, text, sizes)  # the first quote is the last byte of the first length
    return True


def is_plain(text: bytes | bytearray) -> bool:
    """Whether *text*, which has no backslash, is UTF-8 without control characters."""
    if np.minimum.reduce(np.frombuffer(text, np.uint8)) < ord(" "):
        return False
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_gap(text: bytes, n_lists: int) -> bool:
    """Whether *text* may stand between two strings where *n_lists* lists end."""
    return text.translate(None, b" \t\r\n") == b"]" * n_lists + b"," + b"[" * n_lists


def _parsed_at_once(text: bytes) -> bytes:
    """As much of *text* as one step may parse."""
    return text[:PARSED_BYTES] if len(text) > PARSED_BYTES and n_quotes(text) > 2 * STEP_ELEMENTS else text


def _parse(elements: bytearray, text: bytes, first: int, rows: Sequence[Rows]) -> tuple[int, int]:
    """As `take_run`, by orjson, which makes a list for each row.

    All up to the last gap that is like the first is taken. It may stand inside a string: then this is no JSON.
    """
    gap = _FIRST_GAP.match(text)
    if gap is None:
        return 0, 0
    end = text.rfind(gap[1]) + 1
    end = max(end, text.rfind(b'"]', end) + 1)
    if text[end - 2] == _BACKSLASH:  # the quote is escaped, most likely: a string goes on there
        end = text.rfind(gap[1], 0, end - 1) + 1
    n_lists = 1 + (rows[-1].n_lists if rows else 0)
    try:
        items = orjson.loads(b"".join((b"[" * n_lists, memoryview(text)[:end], b"]" * n_lists)))
        lengths = []
        for _ in range(n_lists - 1):
            lengths.append(list(map(list.__len__, items)))
            items = list(chain.from_iterable(items))
        if lengths != _lengths(first, len(items), rows):
            return 0, 0
        append_strings(elements, items)
    except (orjson.JSONDecodeError, TypeError):
        return 0, 0
    return len(items), end


def _lengths(first: int, n_strings: int, rows: Sequence[Rows]) -> list[list[int]]:
    """How long the lists are, the outermost first, that hold *n_strings* from element number *first* on."""
    lengths: list[list[int]] = []
    item = 1
    for size, n_lists in rows:
        while len(lengths) < n_lists:
            before, behind = first // item, -(-(first + n_strings) // item)
            length = size // item
            head = min(length - before % length, behind - before)
            n_full, tail = divmod(behind - before - head, length)
            lengths.insert(0, [head, *[length] * n_full, *[tail] * (tail > 0)])
            item = size
    return lengths


def append_strings(elements: bytearray, strings: list[str]) -> None:
    """Append *strings* to *elements*. Raises `TypeError`, with nothing appended, if one of them is no string."""
    if len(strings) < RUN_ELEMENTS:
        append_octets(elements, list(map(str.encode, strings)))
        return
    joined = _MARK.join(strings)
    text = joined.encode()
    marks = (np.frombuffer(text, np.uint8) == ord(_MARK[0])).nonzero()[0] if len(text) > len(joined) else ()
    if len(marks) == len(strings) - 1:
        sizes = np.diff(marks, prepend=-PREFIX_BYTES, append=len(text)) - PREFIX_BYTES
    else:  # all is ASCII, or an element has a mark of its own
        lengths = map(len, strings if joined.isascii() else map(str.encode, strings))
        sizes = np.fromiter(lengths, np.int64, len(strings))
    _append_elements(elements, PREFIX_BYTES, text, sizes)


def append_octets(elements: bytearray, octets: list[bytes]) -> None:
    """Append each of *octets*, which are few or long, to *elements*."""
    parts: list[bytes] = []
    for element in octets:
        parts += (len(element).to_bytes(PREFIX_BYTES, "little"), element)
    elements += b"".join(parts)


def _append_elements(elements: bytearray, n_before: int, text: bytes | bytearray, sizes: Places) -> None:
    """Append *n_before* bytes and *text*: together strings of *sizes*, each with room for its length before it."""
    starts = np.zeros(len(sizes), np.int64)
    np.cumsum(sizes[:-1] + PREFIX_BYTES, out=starts[1:])
    at = len(elements)
    elements += bytes(n_before)
    elements += text
    words_of(elements, at)[starts] = sizes


def end_of_lists(text: bytes, n_lists: int) -> int:
    """Where the first string of *text* ends that as many lists end with; the end of *text* if none does.

    It may miss one where there are blanks between brackets.
    """
    # `bytes.find` takes ten times as long where nothing is near the front
    if (end := text.find(b'"' + b"]" * n_lists, 0, _NEAR_BYTES)) >= 0:
        return end + 1
    start = text.find(b"]") - 1
    n_places = len(text) - start - n_lists
    if start < 0 or n_places <= 0:
        return len(text)
    codes = np.frombuffer(text, np.uint8, offset=start)
    is_end = codes[:n_places] == _QUOTE
    for place in range(1, n_lists + 1):
        is_end &= codes[place : place + n_places] == _CLOSE
    end = int(is_end.argmax())
    return start + end + 1 if is_end[end] else len(text)


def n_quotes(text: bytes) -> int:
    """How many quotes are in *text*; `bytes.count` takes 20 times as long where there are many."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == _QUOTE))

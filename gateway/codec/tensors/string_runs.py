r"""Many short strings at a time, flat or nested: from the text of their array to length-prefixed elements.

Where no backslash is in the text, the bytes of each string already are its element. Only what stands between two
strings, the gap, has to become a length:

    "first","second"],["third"       ->       5 first 6 second 5 third

numpy finds all quotes. Every second pair of neighbours must enclose the gap that the shape wants there: a comma, or
brackets and a comma where lists end and begin. This is proved by writing the gaps into a copy of the text: if that
changes nothing, they are right. With its quotes, a gap of two bytes is exactly as long as a length. A shorter one is
made longer, and of a longer one the rest is deleted. If all strings are as long as the first, numpy knows where they
are, and copies them as a matrix; that takes half the time.

With backslashes orjson has to parse the strings. Of long rows it makes lists, whose lengths are compared with those
that they must have. Making a list for each short row would take longer than its strings: there the gaps are proved in
the same way as above, and their brackets overwritten with blanks, so that orjson makes one list of all.

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

PARSED_BYTES = 32 * 1024
"""How much text of short strings is parsed in one step; where they are only copied, a step takes a window."""

MIN_STRINGS = 16
"""Fewer are not worth numpy's calls."""

MIN_LIST_BYTES = 128
"""Where there is less text in a row, finding its brackets costs less than making a list of it."""

_NEAR_BYTES = 4096  # where the first list mostly ends whose length is to be learned
_QUOTE, _BACKSLASH, _CLOSE = b'"\\]'
_WIDEN, _DELETE = 0, 1  # no JSON string has these characters
_WITHOUT_BRACKETS = bytes.maketrans(b"[]", b"  ")

_MARK = "\x7f___"  # as long as a length; few texts have a DEL character
_FIRST_GAP = re.compile(rb'"(?:[^"\\]++|\\.)*+("[], \t\r\n[]*+")', re.DOTALL)

Places = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Inner lists of one size."""

    n_elements: int
    n_lists: int
    """How many lists end where one of these does: it, and those in it."""


def rows_of(lengths: Sequence[int]) -> list[Rows]:
    """The inner lists of data that is nested in full, the smallest first, by their *lengths*, the innermost first."""
    rows: list[Rows] = []
    size = 1
    for n_lists, length in enumerate(lengths, 1):
        size *= length
        if rows and rows[-1].n_elements == size:
            rows.pop()
        rows.append(Rows(size, n_lists))
    return rows


class Gaps(NamedTuple):
    """Gaps between strings that have the same text."""

    start: int
    """Behind which string the first is."""
    every: int
    """How many strings are from one to the next; but where longer lists end too, their gap stands instead."""
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

    def front(self, n_strings: int) -> "Run":
        """The first *n_strings* of it."""
        ends = self.ends[:n_strings]
        return Run(self.opens[:n_strings], ends, self.gaps, self.text[: ends[-1]])


def take_run(elements: bytearray, text: bytes, first: int, rows: Sequence[Rows]) -> tuple[int, int]:
    """Append many of the strings at the front of *text* to *elements*: how many, and where they end.

    0 and 0, with nothing appended, if they are few or broken. *text* begins with the quote of element number *first*.
    *rows* are the lists around it but the outermost, as far as they are known: none for flat data. Of short strings
    that must be parsed, only as many are taken as one step may.
    """
    has_escapes = b"\\" in text
    if has_escapes:
        text = _parsed_at_once(text)
    if has_escapes and not (rows and text.find(b'"]', 0, MIN_LIST_BYTES) > 0):
        taken = _parse(elements, text, first, rows)
        if taken[0] or not rows:
            return taken
    elif not has_escapes:
        taken = append_equally_long(elements, text, first, rows)
        if taken[0]:
            return taken
    run = find_run(text, first, rows)
    if run is None:
        return _parse(elements, _parsed_at_once(text), first, rows)
    if not append_run(elements, run):
        if run.end > PARSED_BYTES and len(run.ends) > STEP_ELEMENTS:
            run = run.front(int(np.searchsorted(run.ends, PARSED_BYTES)))
        _write_blanks(run)
        try:
            append_strings(elements, orjson.loads(b"".join((b"[", run.text, b'"]'))))
        except orjson.JSONDecodeError:
            return 0, 0
    return len(run.ends), run.end


def find_run(text: bytes, first: int, rows: Sequence[Rows]) -> Run | None:
    """The strings at the front of *text* as far as they are nested in full; None if these are few.

    *text* begins with the quote of element number *first*. *rows* are the inner lists as far as they are known, none
    for flat data. At most `RUN_STEP_ELEMENTS`.
    """
    codes = np.frombuffer(text, np.uint8)
    quotes = (codes == _QUOTE).nonzero()[0][: 2 * RUN_STEP_ELEMENTS]
    if b"\\" in text:
        quotes = _without_escaped(quotes, text)
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


def _without_escaped(quotes: Places, text: bytes) -> Places:
    """Those of the *quotes* of *text* that begin or end a string."""
    codes = np.frombuffer(text, np.uint8)
    behind_backslash = codes[quotes - 1] == _BACKSLASH
    if np.count_nonzero(codes[quotes[behind_backslash] - 2] == _BACKSLASH):  # which may be escaped itself
        behind_backslash = np.frombuffer(text.replace(rb"\\", b"__"), np.uint8)[quotes - 1] == _BACKSLASH
    behind_backslash[:1] = False  # nothing of a string is before the first
    unescaped: Places = quotes[~behind_backslash]
    return unescaped


def _expected_gaps(
    text: bytes, opens: Places, ends: Places, first: int, rows: Sequence[Rows]
) -> tuple[list[Gaps], int]:
    """The gaps between strings, judging by the first of each kind, and how many strings they may be true of."""
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
    """Append the strings of *run*; False, with nothing changed, if they have to be parsed, or are no JSON."""
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
    """Whether the strings in *text* are what they say: UTF-8 without escapes and control characters."""
    if text.find(b"\\") >= 0 or np.minimum.reduce(np.frombuffer(text, np.uint8)) < ord(" "):
        return False
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def append_equally_long(elements: bytearray, text: bytes, first: int, rows: Sequence[Rows]) -> tuple[int, int]:
    """Append the strings at the front of *text* if all are as long as the first: how many, and where they end.

    0 and 0, with nothing appended, if they are not. As `find_run` and `append_run`, for strings without escapes.
    """
    at = len(elements)
    n_strings = end = 0
    gap = b""
    while True:  # up to the end of a list that is open, then of the one around it
        inside = [row for row in rows if first % row.n_elements == 0]
        around = rows[len(inside)].n_elements if len(inside) < len(rows) else 0
        most = around - first % around if around else len(text)
        n_more, n_bytes = _append_blocks(elements, text[end + len(gap) :], inside, most)
        first += n_more
        n_strings += n_more
        end += len(gap) + n_bytes
        if n_more == most:
            gap = _gap_behind(text, end - 1, max(row.n_lists for row in rows if first % row.n_elements == 0))
        if n_more < most or not gap:
            break
    if n_more and n_strings >= MIN_STRINGS:
        return n_strings, end
    del elements[at:]
    return 0, 0


def _append_blocks(elements: bytearray, text: bytes, inside: list[Rows], most: int) -> tuple[int, int]:
    """Append equally long strings, at most *most*, as whole lists of the sizes *inside*: how many, and where they end.

    The lists are blocks of one size, in blocks of one size: an array with a dimension for each.
    """
    size = text.find(b'"', 1) - 1
    if size < 0:
        return 0, 0
    shape, strides, gaps = [size], [1], []
    n_strings, n_lists, n_bytes = 1, 0, size + 2
    for row in [*inside, Rows(most, 0)]:
        gap = _gap_behind(text, n_bytes - 1, n_lists)
        length = row.n_elements // n_strings
        stride = n_bytes + len(gap)
        is_last = row.n_elements == most or length * stride - len(gap) > len(text)
        if is_last:
            length = _n_alike(text[: length * stride], stride, gap)
        if length > 1 and not gap:
            return 0, 0
        shape.insert(0, length)
        strides.insert(0, stride)
        gaps.append(gap)
        n_strings, n_lists, n_bytes = n_strings * length, row.n_lists, length * stride - len(gap)
        if is_last:
            break
    # no other quotes are there than those that are looked for where they must be
    if not n_strings or not is_plain(text[:n_bytes]) or n_quotes(text[:n_bytes]) != 2 * n_strings:
        return 0, 0
    for index, gap in enumerate(reversed(gaps)):
        between = b'"%b"' % gap
        outer = (*shape[:index], shape[index] - 1)
        found = np.ndarray(outer, f"S{len(between)}", text, strides[index] - len(between) + 1, strides[: index + 1])
        if np.count_nonzero(found == between) < found.size:
            return 0, 0
    at = len(elements)
    element_bytes = PREFIX_BYTES + size
    elements += bytes(n_strings * element_bytes)
    np.ndarray((n_strings,), "<u4", elements, at, (element_bytes,))[:] = size
    into = np.ndarray((n_strings, size), np.uint8, elements, at + PREFIX_BYTES, (element_bytes, 1))
    into.reshape(shape)[:] = np.ndarray(shape, np.uint8, text, 1, strides)
    return n_strings, n_bytes


def _n_alike(text: bytes, stride: int, gap: bytes) -> int:
    """How often what ends in a quote may be repeated at the front of *text*, *stride* bytes apart, with *gap* between.

    0 if the last *gap* in the text is not where it must be then.
    """
    last = text.rfind(b'"%b"' % gap) if gap else -1
    n_before, offset = divmod(last + 1 + len(gap), stride) if last >= 0 else (0, 0)
    end = n_before * stride + stride - len(gap)  # of one more, if it has arrived
    return 0 if offset else n_before + (text[end - 1 : end] == b'"')


def _gap_behind(text: bytes, quote: int, n_lists: int) -> bytes:
    """What is between the *quote* and the next, if *n_lists* lists may end there; else nothing."""
    gap = text[quote + 1 : text.find(b'"', quote + 1)]
    return gap if text[quote] == _QUOTE and _is_gap(gap, n_lists) else b""


def _is_gap(text: bytes, n_lists: int) -> bool:
    """Whether *text* may stand between two strings where *n_lists* lists end."""
    return text.translate(None, b" \t\r\n") == b"]" * n_lists + b"," + b"[" * n_lists


def _write_blanks(run: Run) -> None:
    """Write blanks in place of the brackets between the strings of *run*."""
    blanks = [gap._replace(text=gap.text.translate(_WITHOUT_BRACKETS)) for gap in run.gaps if b"]" in gap.text]
    _write_gaps(run.text, run.ends[:-1], blanks)


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

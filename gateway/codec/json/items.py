"""Cutting a long array or object into runs of whole items, so that each can be parsed in a short step.

Only strings and brackets are followed. Whether a run is JSON is for whoever parses it: the text as a whole is valid
exactly if each run is, between brackets of its own, and none is empty beside a comma.
"""

from itertools import islice

from gateway.codec.json.brackets import ARRAY, OBJECT, QUOTE, STEP_TOKENS, STRING_OR_BRACKET, skip_inside_string
from gateway.codec.tensors.pieces import NOT_SPACE
from gateway.errors import CodecError

RUN_BYTES = 8 * 1024
"""How much text one step looks at, and the longest run of several items; only a single item can be longer."""


class Items:
    """The items of one array or object, in runs; `done` when its closing bracket has been found."""

    def __init__(self, text: bytes, opening: int) -> None:
        """*opening* is `ARRAY` or `OBJECT`. Raises `CodecError` if *text* does not begin with it."""
        first = NOT_SPACE.search(text)
        if first is None or text[first.start()] != opening:
            raise CodecError(f"expected an {'object' if opening == OBJECT else 'array'}")
        self.done = False
        self._text = text
        self._closing = opening + 2  # '[' + 2 is ']' and '{' + 2 is '}'
        self._start = self._position = first.end()
        self._depth = 1
        self._inside_string = False
        self._is_large = False

    def step(self) -> tuple[int, int] | None:
        """Look at the next text: where the run of items that it completes starts and ends; None if there is none.

        The comma behind a run is not part of it. Raises `CodecError` if the text ends before the closing bracket, or
        goes on behind it.
        """
        position = self._position
        if position >= len(self._text):
            raise CodecError("JSON is cut off")
        if self._inside_string:
            self._position, is_closed = skip_inside_string(self._text, position)
            self._inside_string = not is_closed
            if self._position == position:
                raise CodecError("JSON is cut off behind a backslash")
            return None
        limit = min(len(self._text), position + RUN_BYTES)
        tokens = list(islice(STRING_OR_BRACKET.finditer(self._text, position, limit), STEP_TOKENS))
        if len(tokens) == STEP_TOKENS:
            limit = tokens[-1].end()
        comma = -1
        for token in tokens:
            comma = self._comma(position, token.start(), comma)
            position = token.end()
            code = token[0][0]
            if code in (OBJECT, ARRAY):
                self._depth += 1
            elif code != QUOTE:
                self._depth -= 1
                if self._depth == 0:
                    return self._finish(token.start(), comma)
            elif token[1] is not None:
                self._inside_string = True
                position = limit = token.start() + 1
        comma = self._comma(position, limit, comma)
        if comma < 0:
            self._is_large = True
            self._position = limit
            return None
        return self._run(comma)

    def _comma(self, start: int, end: int, found: int) -> int:
        """The comma to cut at, now that text[start:end], without strings and brackets, has been looked at too.

        It is the last one between two items, but behind an item that took several steps the first; -1 is none.
        """
        if self._depth != 1 or (self._is_large and found >= 0):
            return found
        comma = self._text.find(b",", start, end) if self._is_large else self._text.rfind(b",", start, end)
        return comma if comma >= 0 else found

    def _run(self, comma: int) -> tuple[int, int]:
        run = (self._start, comma)
        self._go_on_at(comma + 1)
        return run

    def _go_on_at(self, position: int) -> None:
        """The next run begins at *position*, also where text behind it has been looked at already."""
        self._start = self._position = position
        self._depth = 1
        self._inside_string = False
        self._is_large = False

    def _finish(self, end: int, comma: int) -> tuple[int, int]:
        if self._is_large and comma >= 0:
            return self._run(comma)
        if self._text[end] != self._closing:
            raise CodecError(f"malformed JSON: brackets do not match at byte {end}")
        if NOT_SPACE.search(self._text, end + 1):
            raise CodecError(f"malformed JSON: more follows its end at byte {end}")
        self.done = True
        return (self._start, end)

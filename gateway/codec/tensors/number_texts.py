"""Turns texts of numbers into numbers, by writing blanks over their quotes.

    ["1.5","2"]     ->     [ 1.5 , 2 ]

Only quotes that can be those of a number are overwritten, judging by the bytes beside them. The reader has to prove
that the numbers are valid, and that no text holds two of them: see `number_reading`.
"""

import numpy as np
import numpy.typing as npt

from gateway.codec.json.pieces import QUOTE

Quotes = npt.NDArray[np.int64]
"""Where quotes were in a text, in order."""

_BLANK, _COMMA, _MINUS, _NINE, _OPENING, _CLOSING = b" ,-9[]"


def unquoted(buffer: bytearray, window: int) -> tuple[bytearray, int, Quotes]:
    """A copy of buffer[:window] without the quotes of numbers; where the first other text begins; where quotes were.

    Without another text the second is *window*. A text that continues after the window keeps its quotes.
    """
    text = buffer[:window]
    codes = np.frombuffer(text, np.uint8)
    quotes = (codes == QUOTE).nonzero()[0]
    n_quotes = len(quotes) // 2 * 2
    if n_quotes and quotes[n_quotes - 1] == window - 1:  # what follows it is not known
        n_quotes -= 2
    quotes = quotes[:n_quotes]
    if not n_quotes:
        return text, window, quotes
    opening, closing = quotes[::2], quotes[1::2]
    before, after = codes[opening - 1], codes[closing + 1]
    if not opening[0]:  # a piece begins after a comma
        before[0] = _COMMA
    first, last = codes[opening + 1], codes[closing - 1]
    is_number = (first - _MINUS <= _NINE - _MINUS) & (last - _MINUS <= _NINE - _MINUS)  # below zero they wrap around
    is_number &= (before == _COMMA) | (before == _OPENING) | (before == _BLANK)
    is_number &= (after == _COMMA) | (after == _CLOSING) | (after == _BLANK)
    limit = window
    if np.count_nonzero(is_number) < len(is_number):
        n_texts = int(is_number.argmin())
        limit = int(opening[n_texts])
        quotes = quotes[: 2 * n_texts]
    codes[quotes] = _BLANK
    return text, limit, quotes

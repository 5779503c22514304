"""Cutting a long array or object into runs of whole items, so that each can be parsed in a short step.

Only strings and brackets are followed. Whether a run is JSON is for whoever parses it between brackets of its own:
the text as a whole is valid exactly if each run is, none is empty, and commas stand between them.
"""

from itertools import islice

from gateway.codec.json.brackets import ARRAY, OBJECT, QUOTE, STEP_TOKENS, STRING_OR_BRACKET
from gateway.errors import CodecError

RUN_BYTES = 8 * 1024
"""The longest run: half a millisecond of the smallest items."""


def end_of_run(text: bytes, start: int, closing: int) -> int:
    """The end of the run of whole items that begins at *start*, behind an opening bracket or a comma.

    At the end stands a comma, or the *closing* bracket (`END_ARRAY` or `END_OBJECT`). 0 if the first item is too long
    to be walked through in one step. Raises `CodecError` for another closing bracket.
    """
    limit = min(len(text), start + RUN_BYTES)
    tokens = list(islice(STRING_OR_BRACKET.finditer(text, start, limit), STEP_TOKENS))
    if len(tokens) == STEP_TOKENS:
        limit = tokens[-1].end()
    depth = 1
    comma = 0
    for token in tokens:
        if depth == 1:
            comma = max(comma, text.rfind(b",", start, token.start()))
        start = token.end()
        code = token[0][0]
        if code in (OBJECT, ARRAY):
            depth += 1
        elif code != QUOTE:
            depth -= 1
            if depth == 0:
                if code != closing:
                    raise CodecError(f"malformed JSON: {chr(code)!r} in place of {chr(closing)!r}")
                return token.start()
        # a string that goes on behind the window is the last token, and ends where the window ends
    if depth == 1:
        comma = max(comma, text.rfind(b",", start, limit))
    return comma

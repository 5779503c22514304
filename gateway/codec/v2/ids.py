"""The `id` of a request and of its answer: whether there is one, and whether both are the same (protocol 4.10).

Ids are texts of JSON here, as they stand in a message. Not here: where a message has its id.
"""

import json

from gateway.codec.json.members import excerpt
from gateway.errors import ForeignAnswerError

ABSENT = frozenset((b"", b"null", b'""'))
"""The texts of an `id` that is none (protocol 2.8)."""


def check_id(answered: bytes, sent: bytes, *, is_own: bool) -> None:
    """Raise `ForeignAnswerError` if *answered*, the id of an answer, is another than the one that was *sent*.

    A message without an id is fine. *is_own*: the gateway has made the id that was sent, since the client had none.
    """
    if answered in ABSENT or sent in ABSENT or _plain(answered) == _plain(sent):
        return
    remedy = "ids: client" if is_own else "leave_out: [id]"
    raise ForeignAnswerError(
        f"its id is {excerpt(answered)}, and the request's is {excerpt(sent)}: it answers another request, or the "
        f"server makes ids of its own, which `{remedy}` allows"
    )


def _plain(text: bytes) -> str:
    """What an id says: a server may escape other characters, or write a number as a string."""
    if text[:1] != b'"':
        return text.decode()
    return str(json.loads(text))

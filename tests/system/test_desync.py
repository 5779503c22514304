"""Each side keeps its place in the bytes of a connection, or ends the connection.

What a backend sends that parsers read in different ways, and what might be taken for the answer to another request
(design.md, "Whose connection"). What clients send of this kind is in tests/client/test_server.py.
"""

import pytest

from tests.conftest import running
from tests.system.scripted import FORMS, Seen, ask, counting, echo, total

SMUGGLED = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"smuggled":1}'
CHUNKED = b"2\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 000 X\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED, id="status 000"),
        pytest.param(b"HTTP/1.1 099 X\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED, id="status 099"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKED, id="vertical tab"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: \xc2\xa0chunked\r\n\r\n" + CHUNKED, id="no-break space"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n" + CHUNKED, id="empty coding"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n{}", id="length 2**64 - 1"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-A: a\x01b\r\nContent-Length: 2\r\n\r\n{}", id="control character"),
        pytest.param(b"HTTP/1.1 404 No\r\nX-A: a\x01b\r\nContent-Length: 2\r\n\r\n{}", id="control character in a 404"),
        pytest.param(b"HTTP/1.1 500 No\r\nX-A: a\x7fb\r\nContent-Length: 2\r\n\r\n{}", id="control character in a 500"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
async def test_an_answer_whose_head_is_not_certain_is_a_502_and_ends_its_connection(form: str, answer: bytes) -> None:
    async def behave(seen: Seen) -> bool:
        if seen.id != "1":
            return await echo(seen)
        await seen.peer.send(answer)
        return False

    async with counting(behave) as backend, running(backend.url) as client:
        asked = await ask(client, form, 1)
        assert (asked.status, b"does not speak" in asked.body or b"answered with" in asked.body) == (502, True)
        assert (await ask(client, form, 2)).is_own
        assert backend.peers[0].served == 1
        metrics = await client.metrics()
        assert total(metrics, "errors_total", reason="malformed_response") == 1
        assert total(metrics, "errors_total", reason="internal") == 0

"""When an answer's `id` is that of the request, and what becomes of both."""

import json
from typing import Any

import pytest

from gateway.codec.inference import OutputSelection, TensorPolicy
from gateway.codec.v2.answer import check_id
from gateway.codec.v2.messages import ABSENT
from gateway.errors import CodecError, ForeignAnswerError
from tests.codec.walk import backend_json, parse_request, read_answer

pytestmark = pytest.mark.rule("4.10")

OWN = b'"gateway-7"'


def is_foreign(answered: bytes, sent: bytes) -> bool:
    """Whether an answer with the id *answered* is not the answer to a request with *sent*."""
    try:
        check_id(answered, sent, is_own=False)
    except ForeignAnswerError:
        return True
    return False


@pytest.mark.parametrize(
    ("answered", "sent"),
    [
        (b'"a"', b'"a"'),
        (b"", b'"a"'),
        (b"null", b'"a"'),
        (b'""', b'"a"'),
        (b"7", b"7"),
        (b'"7"', b"7"),
        (b"7", b'"7"'),
        ('"é/"'.encode(), rb'"\u00e9\/"'),
        (rb'"\ud83d\ude00"', '"\U0001f600"'.encode()),
        (rb'"\ud800"', rb'"\uD800"'),
        (b"[1]", b"[1]"),
    ],
)
def test_these_ids_are_the_same_or_absent(answered: bytes, sent: bytes) -> None:
    assert not is_foreign(answered, sent)


@pytest.mark.parametrize(
    ("answered", "sent"),
    [
        (b'"b"', b'"a"'),
        (b'"A"', b'"a"'),
        (b'"a "', b'"a"'),
        (b"8", b"7"),
        (b"12345678901234567890124", b"12345678901234567890123"),
        (b"true", b'"a"'),
        (b"[2]", b"[1]"),
        (rb'"\ud800"', rb'"\ud801"'),
    ],
)
def test_these_ids_are_different(answered: bytes, sent: bytes) -> None:
    assert is_foreign(answered, sent)


def test_the_error_names_both_ids_shortened_and_what_to_set() -> None:
    with pytest.raises(ForeignAnswerError) as raised:
        check_id(b'"%b"' % (b"b" * 5000), b'"%b"' % (b"a" * 5000), is_own=False)
    words = str(raised.value)
    assert "bbbb..." in words
    assert "aaaa..." in words
    assert len(words) < 400
    assert "`leave_out: [id]`" in words
    with pytest.raises(ForeignAnswerError, match="`ids: client`"):
        check_id(b'"b"', OWN, is_own=True)


@pytest.mark.parametrize(("text", "is_none"), [(b"", True), (b"null", True), (b'""', True), (b'"a"', False)])
def test_an_empty_id_is_none(text: bytes, is_none: bool) -> None:
    assert (text in ABSENT) is is_none


# What the backend gets


def header(**members: Any) -> bytes:
    entry = {"name": "x", "datatype": "UINT8", "shape": [1], "parameters": {"binary_data_size": 1}}
    return json.dumps({**members, "inputs": [entry]}, separators=(",", ":")).encode()


@pytest.mark.parametrize("members", [{}, {"id": ""}, {"id": None}])
def test_the_gateways_id_is_sent_where_the_client_has_none(members: Any) -> None:
    text = header(**members)
    assert json.loads(backend_json(text, b"\1", own_id=OWN))["id"] == "gateway-7"
    request = parse_request(text + b"\1", len(text), own_id=OWN)
    assert request is not None
    assert (request.id, request.sent_id) == (b"", OWN)


def test_the_clients_id_is_sent_where_it_has_one() -> None:
    text = header(id="mine")
    for own_id in (b"", OWN):
        assert json.loads(backend_json(text, b"\1", own_id=own_id))["id"] == "mine"
        request = parse_request(text + b"\1", len(text), own_id=own_id)
        assert request is not None
        assert (request.id, request.sent_id) == (b'"mine"', b'"mine"')


def test_an_id_that_is_left_out_is_not_expected_in_the_answer() -> None:
    text = header(id="mine")
    request = parse_request(text + b"\1", len(text), TensorPolicy(leave_out=frozenset(("id",))))
    assert request is not None
    assert (request.id, request.sent_id) == (b'"mine"', b"")


def test_with_ids_of_the_gateways_json_is_judged() -> None:
    text = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1.50]}]}'
    assert parse_request(text, None) is None
    request = parse_request(text, None, own_id=OWN)
    assert request is not None
    assert b"".join(request.json_pieces()) == text[:-1] + b',"id":"gateway-7"}'
    for broken in (b"{", b"[]", b"{}", b"x"):
        assert parse_request(broken, None) is None
        with pytest.raises(CodecError):
            parse_request(broken, None, own_id=OWN)


# What the client gets


def answer(**members: Any) -> bytes:
    return json.dumps({**members, "outputs": [{"name": "y", "datatype": "UINT8", "shape": [1], "data": [1]}]}).encode()


def reply(text: bytes, request_id: bytes, sent_id: bytes, n_bytes: int) -> Any:
    chunks = [text[start : start + n_bytes] for start in range(0, len(text), n_bytes)]
    read = read_answer(chunks, OutputSelection(True), request_id=request_id, sent_id=sent_id)
    return json.loads(b"".join(read.header))


@pytest.mark.parametrize("n_bytes", [1, 10_000])
@pytest.mark.parametrize(
    ("said", "request_id", "sent_id", "got"),
    [
        ({}, b'"a"', b'"a"', {"id": "a"}),
        ({"id": None}, b'"a"', b'"a"', {"id": "a"}),
        ({"id": ""}, b'"a"', b'"a"', {"id": "a"}),
        ({"id": "a"}, b'"a"', b'"a"', {"id": "a"}),
        ({"id": "7"}, b"7", b"7", {"id": "7"}),
        ({}, b"", b"", {}),
        ({"id": None}, b"", b"", {}),
        ({"id": ""}, b"", b"", {"id": ""}),
        ({"id": "server's"}, b"", b"", {"id": "server's"}),
        ({"id": "gateway-7"}, b"", OWN, {}),
        ({"id": None}, b"", OWN, {}),
        ({"id": ""}, b"", OWN, {}),
        ({}, b"", OWN, {}),
        ({}, b'"a"', b"", {"id": "a"}),
        ({"id": "server's"}, b'"a"', b"", {"id": "server's"}),
    ],
)
def test_the_client_gets_its_own_id_or_the_servers(
    said: Any, request_id: bytes, sent_id: bytes, got: Any, n_bytes: int
) -> None:
    read = reply(answer(**said), request_id, sent_id, n_bytes)
    assert {key: value for key, value in read.items() if key == "id"} == got


@pytest.mark.parametrize("n_bytes", [1, 10_000])
@pytest.mark.parametrize(("request_id", "sent_id"), [(b'"a"', b'"a"'), (b"", OWN)])
@pytest.mark.parametrize("id_", ["b", 8, [1], "NaN"])
def test_an_answer_with_another_id_is_none(id_: Any, request_id: bytes, sent_id: bytes, n_bytes: int) -> None:
    text = answer(id=id_)
    for each in (text, text.replace(b"[1]}", b'[1], "parameters": {"scale": NaN}}')):
        with pytest.raises(ForeignAnswerError, match=f"its id is {json.dumps(id_)}".replace("[", r"\[")):
            reply(each, request_id, sent_id, n_bytes)


def test_ids_are_compared_as_they_are_beside_a_literal() -> None:
    """In the text that is split the words of literals have stand-ins, also inside of strings."""
    text = b'{"id":"NaN","more":NaN,"outputs":[]}'
    assert b"".join(read_answer([text], request_id=b'"NaN"', sent_id=b'"NaN"').header).startswith(
        b'{"id":"NaN","more":NaN'
    )
    with pytest.raises(ForeignAnswerError, match='its id is "NaN", '):
        read_answer([text], request_id=b'"1"', sent_id=b'"1"')

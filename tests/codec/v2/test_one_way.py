"""What a message becomes depends on what it says alone: not on how it arrives, nor on what stands beside."""

import random

import pytest

from gateway.codec.inference import BytesPolicy, OutputSelection, TensorPolicy
from gateway.errors import CodecError
from tests.codec.v2.random_messages import damage, random_answer, random_request
from tests.codec.walk import cut, parse_request, read_answer

ROUNDS = 150


def made_of(body: bytes, header_length: int | None, policy: TensorPolicy, own_id: bytes = b"") -> tuple[object, ...]:
    """What a request becomes; the error if it is refused."""
    try:
        request = parse_request(body, header_length, policy, own_id=own_id)
    except CodecError as error:
        return (str(error),)
    if request is None:
        return ()
    return b"".join(request.json_pieces()), request.selection, request.id, request.sent_id, request.datatypes


@pytest.mark.parametrize("seed", range(8))
def test_requests_become_the_same_with_a_member_that_the_protocol_does_not_know(seed: int) -> None:
    """One that it does not know, or NaN in it, has the JSON read by the plain code and its data passed by."""
    dice = random.Random(seed)
    accepted = 0
    for _ in range(ROUNDS):
        body, header_length = random_request(dice)
        left_out = frozenset(member for member in ("id", "outputs", "parameters") if dice.random() < 0.2)
        policy = TensorPolicy(bytes=dice.choice(list(BytesPolicy)), leave_out=left_out)
        own_id = dice.choice([b"", b'"gateway-7"'])
        common = made_of(body, header_length, policy, own_id)
        more = dice.choice([b'"more":[1, {"a":"b"}],', b'"more":[NaN],'])
        uncommon = made_of(b"{" + more + body[1:], header_length + len(more), policy, own_id)
        if len(common) == 1:
            assert uncommon == common
            continue
        accepted += 1
        assert uncommon[1:] == common[1:]
        text = uncommon[0]
        assert isinstance(text, bytes) and text.startswith(b"{" + more)
        assert b"{" + text[1 + len(more) :] == common[0]
    assert accepted > ROUNDS / 2


@pytest.mark.parametrize("seed", range(8))
def test_answers_become_the_same_however_they_arrive(seed: int) -> None:
    dice = random.Random(seed)
    selections = [OutputSelection(), OutputSelection(True), OutputSelection(False, {"y": True})]
    accepted = refused = 0
    for _ in range(ROUNDS):
        changed = bytearray(random_answer(dice))
        for _ in range(dice.choice([0, 0, 0, 1, 2])):
            damage(changed, dice)
        text, selection = bytes(changed), dice.choice(selections)
        request_id, sent_id = dice.choice([b"", b'"7"']), dice.choice([b"", b'"7"'])
        results: list[tuple[object, ...] | None] = []
        for chunk_bytes in (None, 7):
            try:
                reply = read_answer(cut(text, chunk_bytes), selection, request_id=request_id, sent_id=sent_id)
            except CodecError:
                results.append(None)
                continue
            results.append((b"".join(reply.header), b"".join(reply.blobs), reply.datatypes, reply.nonfinite))
        assert results[0] == results[1], text
        accepted += results[0] is not None
        refused += results[0] is None
    assert min(accepted, refused) > ROUNDS / 10


@pytest.mark.parametrize("seed", range(8))
def test_damaged_requests_are_refused_or_taken(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(ROUNDS):
        body, header_length = random_request(dice)
        header = bytearray(body[:header_length])
        for _ in range(dice.randint(1, 3)):
            damage(header, dice)
        for length in (len(header), None):
            made_of(bytes(header) + body[header_length:], length, TensorPolicy())  # nothing but `CodecError`

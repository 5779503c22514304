"""Each pair of `pairs/` walked in every way in which its bytes can arrive, and in many in which they should not."""

import random
import tomllib
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import serialize_byte_tensor

from gateway.codec.inference import BytesPolicy, HalfPrecision, NonFinite, OutputSelection, TensorPolicy
from gateway.codec.v2.reply import Reply
from gateway.errors import CodecError

from . import make_pairs
from .walk import backend_json, parse_request, read_answer, same_json

INDEX: dict[str, Any] = tomllib.loads((make_pairs.PAIRS / "index.toml").read_text())


def load(folder: str, name: str) -> tuple[bytes, bytes, bytes]:
    """Header, blobs and JSON of a pair."""
    body = (make_pairs.PAIRS / folder / f"{name}.bin").read_bytes()
    header_bytes = INDEX[folder][name]["header_bytes"]
    return body[:header_bytes], body[header_bytes:], (make_pairs.PAIRS / folder / f"{name}.json").read_bytes()


def policy_of(name: str) -> TensorPolicy:
    settings = INDEX["requests"][name].get("settings", {})
    return TensorPolicy(
        NonFinite(settings.get("nonfinite", "reject")),
        BytesPolicy(settings.get("bytes", "utf8")),
        HalfPrecision(settings.get("half_precision", "native")),
    )


def reply_to(name: str, chunks: list[bytes]) -> Reply:
    settings = dict(INDEX["answers"][name].get("settings", {}))
    model, request_id = settings.pop("model", "m"), settings.pop("id", "").encode()
    default = settings.pop("default", "json") == "binary"
    named = {output: form == "binary" for output, form in settings.items()}
    return read_answer(chunks, OutputSelection(default, named), model=model, request_id=request_id)


requests = pytest.mark.parametrize("name", INDEX["requests"])
answers = pytest.mark.parametrize("name", INDEX["answers"])


def test_files_are_what_their_script_makes() -> None:
    made = make_pairs.files()
    found = {
        path.relative_to(make_pairs.PAIRS).as_posix(): path.read_bytes()
        for path in make_pairs.PAIRS.rglob("*")
        if path.is_file()
    }
    assert sorted(found) == sorted(made)
    for path, content in made.items():
        assert found[path] == content, path


def test_every_datatype_has_a_pair_each_way() -> None:
    for folder in ("requests", "answers"):
        for datatype in [*make_pairs.WIRE, "BYTES"]:
            assert f"edges_{datatype.lower()}" in INDEX[folder]


def test_elements_stand_in_a_blob_as_tritonclient_puts_them_there() -> None:
    elements = [b"", b"a", "\u00e9\U0001f600".encode(), b"\xff\0", b"x" * 70_000]
    assert make_pairs.blob_of(elements) == serialize_byte_tensor(np.array(elements, object)).item()
    assert make_pairs.blob_of(["", "\u00e9"]) == serialize_byte_tensor(np.array(["", "\u00e9"], object)).item()


@requests
def test_request_becomes_its_json(name: str) -> None:
    header, blobs, expected = load("requests", name)
    text = backend_json(header, blobs, policy_of(name))
    assert same_json(text, expected), text


@requests
def test_request_makes_the_same_json_each_time_it_is_asked(name: str) -> None:
    header, blobs, _ = load("requests", name)
    request = parse_request(header + blobs, len(header), policy_of(name))
    assert request is not None
    assert b"".join(request.json_pieces()) == b"".join(request.json_pieces())


@requests
def test_request_without_its_header_length_is_recovered_if_it_has_blobs(name: str) -> None:
    header, blobs, expected = load("requests", name)
    header = header.rstrip()  # blanks behind the JSON would count as binary data
    request = parse_request(header + blobs, None, policy_of(name))
    if not blobs:
        assert request is None
        return
    assert request is not None and request.header_recovered
    assert same_json(b"".join(request.json_pieces()), expected)


@requests
def test_request_truncated_anywhere_is_refused(name: str) -> None:
    header, blobs, _ = load("requests", name)
    body = header + blobs
    for length in range(len(body)):
        with pytest.raises(CodecError):
            parse_request(body[:length], len(header), policy_of(name))


@requests
def test_request_whose_header_is_truncated_anywhere_is_refused(name: str) -> None:
    header, _, _ = load("requests", name)
    for length in range(len(header.rstrip())):
        with pytest.raises(CodecError):
            parse_request(header[:length], length, policy_of(name))


@requests
def test_request_with_one_byte_appended_is_refused_and_told_how_many(name: str) -> None:
    header, blobs, _ = load("requests", name)
    with pytest.raises(CodecError, match="1 bytes left over"):
        parse_request(header + blobs + b"\0", len(header), policy_of(name))


@requests
def test_request_with_a_wrong_byte_in_its_json_is_a_request_or_refused(name: str) -> None:
    header, blobs, _ = load("requests", name)
    dice = random.Random(name)
    for position in range(len(header)):
        for replacement in (header[position] ^ (1 << dice.randrange(8)), dice.choice(b'[]{},:"\\ 0-eN\xc3\x00')):
            mutated = header[:position] + bytes([replacement]) + header[position + 1 :]
            for header_bytes in (len(header), None):
                try:
                    request = parse_request(mutated + blobs, header_bytes, policy_of(name))
                except CodecError:
                    continue
                if request is not None:
                    assert b"".join(request.json_pieces())


@answers
def test_answer_becomes_its_reply(name: str) -> None:
    header, blobs, text = load("answers", name)
    reply = reply_to(name, [text])
    assert same_json(b"".join(reply.header), header), b"".join(reply.header)
    assert b"".join(reply.blobs) == blobs
    assert reply.n_bytes == reply.header_bytes + len(blobs) == len(b"".join(reply.header)) + len(blobs)


@answers
def test_answer_fed_byte_by_byte_becomes_the_same_reply(name: str) -> None:
    _, _, text = load("answers", name)
    assert reply_to(name, [text[i : i + 1] for i in range(len(text))]) == reply_to(name, [text])


@answers
def test_answer_cut_in_two_anywhere_becomes_the_same_reply(name: str) -> None:
    _, _, text = load("answers", name)
    whole = reply_to(name, [text])
    for position in range(len(text) + 1):
        assert reply_to(name, [text[:position], text[position:]]) == whole, position


@answers
def test_answer_truncated_anywhere_is_refused(name: str) -> None:
    _, _, text = load("answers", name)
    for length in range(len(text.rstrip())):
        with pytest.raises(CodecError):
            reply_to(name, [text[:length]])


@answers
def test_answer_followed_by_anything_but_blanks_is_refused(name: str) -> None:
    _, _, text = load("answers", name)
    assert reply_to(name, [text, b" \r\n\t"]) == reply_to(name, [text])
    for chunks in ([text + b"x"], [text, b" ", b"{}"]):
        with pytest.raises(CodecError, match="trailing characters"):
            reply_to(name, chunks)


@answers
def test_answer_with_a_wrong_byte_is_a_reply_or_refused_whole_or_in_pieces(name: str) -> None:
    _, _, text = load("answers", name)
    dice = random.Random(name)
    for position in range(len(text)):
        for replacement in (text[position] ^ (1 << dice.randrange(8)), dice.choice(b'[]{},:"\\ 0-eN\xc3\x00')):
            mutated = text[:position] + bytes([replacement]) + text[position + 1 :]
            replies: list[Reply | None] = []
            for chunks in ([mutated], [mutated[:1], mutated[1:]]):
                try:
                    replies.append(reply_to(name, chunks))
                except CodecError:
                    replies.append(None)
            assert replies[0] == replies[1], mutated
            assert replies[0] is None or replies[0].header_bytes > 0

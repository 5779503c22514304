"""Limits in errors are numbers of bytes, also where the configuration wrote them with a unit."""

import gzip
from collections.abc import Generator

import pytest

from gateway.codec.compression import Inflater, parse_content_encoding
from gateway.codec.inference import HeaderLimits, OutputSelection, TensorPolicy
from gateway.codec.v2.answer import InferAnswer
from gateway.config import Size
from gateway.errors import CodecError, TooLargeError
from tests.codec.walk import parsing
from tests.steps import run

LIMIT = Size(64 * 1024)
LONG = b" " * (LIMIT + 1)


def test_too_long_header_of_a_request_is_told_the_limit_in_bytes() -> None:
    text = b'{"inputs":[],"parameters":{"binary_data_output":true}%b}' % LONG
    with pytest.raises(TooLargeError, match="longer than 65536 bytes, which is the most that `limits.header` allows"):
        run(parsing(memoryview(text), None, TensorPolicy(), HeaderLimits(LIMIT), recover=True))


def test_answer_with_more_elements_than_fit_is_told_the_limit_in_bytes() -> None:
    answer = InferAnswer(OutputSelection(True), model="m", request_id=b"", max_bytes=LIMIT)
    text = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1000000],"data":[1]}]}'

    def steps() -> Generator[None, None, None]:
        yield from answer.feed(text)
        yield from answer.finish()

    with pytest.raises(CodecError, match=r"at most 65536 bytes \(limits.response_body\)"):
        run(steps())


def test_body_that_inflates_too_far_is_told_the_limit_in_bytes() -> None:
    coding = parse_content_encoding("gzip")
    assert coding is not None
    with pytest.raises(TooLargeError, match="larger than 65536 bytes after decompression"):
        list(Inflater(coding, LIMIT).feed(gzip.compress(LONG)))

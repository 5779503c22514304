"""What all dialects have in common."""

import pytest

from gateway.codec.dialects import DIALECTS
from gateway.codec.dialects.dialect import Dialect
from gateway.config.values import FORMATS


def test_the_configuration_and_the_codec_know_the_same_dialects() -> None:
    assert DIALECTS.keys() == FORMATS.keys()
    assert {name: dialect.name for name, dialect in DIALECTS.items()} == {name: name for name in DIALECTS}


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_names_of_models_stay_one_segment_of_a_path(dialect: Dialect) -> None:
    for model in ("a b", "a:b", "a%2Fb", "é", "a?b#c"):
        for path in dialect.paths(model, None):
            assert path.isascii()
            assert not set(path) & set(" ?#")
            assert path.count("/") in (0, 1, 3, 4)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{", b"\xff", b'{"a":' * 5000, b'{"error":1}', b'"' * 9])
def test_texts_that_say_nothing_are_no_errors_of_the_gateway(dialect: Dialect, text: bytes) -> None:
    assert not dialect.is_live(400, text)
    assert not dialect.error_words(text)

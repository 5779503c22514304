"""The dialect `template`: what it makes of a configuration."""

import json

import pytest

from gateway.codec.dialects import DIALECTS
from gateway.codec.dialects.body import Body
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import UNKNOWN, ModelDescription, Template
from gateway.codec.dialects.dialect import Paths
from gateway.codec.dialects.paths import AnswerForm, steps_of, tree_of
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.errors import CodecError

TEMPLATE = DIALECTS["template"]
INPUTS = {"x": TensorDescription(DATATYPES["FP32"])}


def model(path: str = "/predict", error: str | None = None) -> ModelDescription:
    body = Body("$x", {"x": TensorDescription()})
    steps = tuple(steps_of(error)) if error is not None else ()
    template = Template(path, body, AnswerForm(tree_of({"y": "$.y"})), steps)
    return ModelDescription(INPUTS, template=template)


@pytest.mark.parametrize(
    ("path", "version", "expected"),
    [
        ("/predict", None, "/predict"),
        ("/predict", "1", ""),
        ("/m/{model}", None, "/m/a%2Fb%20c"),
        ("/m/{model}/v/{version}?m={model}", "1 2", "/m/a%2Fb%20c/v/1%202?m=a%2Fb%20c"),
        ("/m/{version}", None, ""),
    ],
)
def test_the_path_has_the_clients_model_and_version(path: str, version: str | None, expected: str) -> None:
    assert TEMPLATE.paths("a/b c", version, model(path)) == Paths(expected)
    assert TEMPLATE.paths("a/b c", version, UNKNOWN) == Paths()


def test_such_servers_say_nothing_of_themselves() -> None:
    assert TEMPLATE.is_configured
    assert not TEMPLATE.live_path
    assert TEMPLATE.is_live(204, b"")
    assert not TEMPLATE.is_live(404, b"")
    assert TEMPLATE.is_ready(b"")
    with pytest.raises(CodecError, match="describe"):
        TEMPLATE.read_description(b"{}", "")


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("$.fault.reason", {"fault": {"reason": "too hot"}}, "too hot"),
        ("$.fault.reason", {"fault": {"reason": ""}}, None),
        ("$.fault.reason", {"fault": {"reason": 3}}, None),
        ("$.fault.reason", {"error": "other"}, None),
        (None, {"fault": {"reason": "too hot"}}, None),
    ],
)
def test_errors_have_their_reason_where_the_configuration_says(
    path: str | None, text: object, words: str | None
) -> None:
    assert TEMPLATE.error_words(json.dumps(text).encode(), model(error=path)) == words
    assert TEMPLATE.error_words(b"{", model(error=path)) is None

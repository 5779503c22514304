"""Small answers of servers of other dialects: the short way comes to what the long way makes, or leaves it alone."""

import json
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from gateway.codec import DATATYPES, HeaderLimits, ModelDescription, OutputSelection, read_short_dialect_answer
from gateway.codec.dialects.answer import AnswerForm
from gateway.codec.dialects.outputs import SHORT_BYTES
from gateway.codec.dialects.short_answer import MAX_OUTPUTS
from gateway.codec.tensors.datatypes import Kind
from gateway.codec.v2.answer import Reply
from gateway.errors import CodecError
from tests.codec.dialects.both_ways import read_answer
from tests.codec.dialects.test_answer import BINARY, JSON, MLFLOW, TENSORFLOW, TWO, Y, described
from tests.codec.make_pairs import nested
from tests.codec.v2.test_short import FLOAT_TEXTS, ROUNDS, Text, dumped, numbers_of, separators, shuffled
from tests.codec.v2.test_short_request import damage
from tests.codec.walk import LIMITS

STRINGS = described(y="BYTES")


def short(
    text: str | bytes,
    description: ModelDescription = Y,
    selection: OutputSelection = BINARY,
    form: AnswerForm = TENSORFLOW,
    limits: HeaderLimits = LIMITS,
) -> Reply | None:
    """What the short way makes of an answer."""
    octets = text.encode() if isinstance(text, str) else text
    return read_short_dialect_answer(octets, form, description, selection, model="m", request_id=b"", limits=limits)


COMMON = [
    ('{\n    "outputs": [[0.1, 2],\n [3, 4e0]\n    ]\n}', Y),
    ('{"predictions":[0.5]}', Y),
    ('{"predictions": [{"y": 1, "n": 2}, {"n": 3, "y": 4}]}', TWO),
    ('{"outputs": {"y": [[1], [2]], "n": 3}}', TWO),
    ('{"outputs":0.5,"more":[1]}', Y),
    ('{"predictions":["a","é"]}', STRINGS),
    ('{"outputs":{"y":["a"]}}', STRINGS),
]


@pytest.mark.parametrize("selection", [BINARY, JSON, OutputSelection(False, {"y": True})])
@pytest.mark.parametrize(("answer", "description"), COMMON)
def test_answers_of_every_form_take_the_short_way(
    answer: str, description: ModelDescription, selection: OutputSelection
) -> None:
    assert short(answer, description, selection) is not None
    read_answer([answer.encode()], TENSORFLOW, description, selection, request_id=b'"7"', version="1")


@pytest.mark.parametrize(
    ("answer", "description"),
    [
        ('{"outputs":[1],"outputs":[2]}', Y),
        ('{"outputs":[1],"predictions":[2]}', Y),
        ('{"outputs":{"y":[1],"y":[2]}}', Y),
        ('{"predictions":[{"y":1,"y":2}]}', Y),
        (r'{"outputs":{"y":[1],"\u0079":[2]}}', Y),
        ('{"predictions":[{"y":1},{"n":2}]}', TWO),
        ('{"predictions":[{"y":1},{}]}', TWO),
        ('{"predictions":[{},{}]}', TWO),
        ('{"predictions":[]}', Y),
        ('{"outputs":{}}', Y),
        ('{"outputs":null}', Y),
        ('{"outputs":{"z":[1]}}', Y),
        ('{"outputs":[1]}', TWO),
        ('{"outputs":[1,NaN]}', Y),
        ('{"outputs":[1,null]}', Y),
        ('{"outputs":[[1,2],[3]]}', Y),
        ('{"outputs":[{"b64":"YQ=="}]}', STRINGS),
        ('{"outputs":["\\n"]}', STRINGS),
        ('{"error":"no"}', Y),
        ('{"outputs":[1]} x', Y),
        ('{"outputs":[1]', Y),
        ("[1]", Y),
        ("", Y),
        ('{"outputs":[1],"deep":%s}' % ("[" * 600 + "]" * 600), Y),
        ('{"outputs":{"y":[1],"deep":%s}}' % ("[" * 600 + "]" * 600), Y),
    ],
)
def test_what_is_not_common_goes_the_long_way(answer: str, description: ModelDescription) -> None:
    selection = OutputSelection(True, {"y": True})
    assert short(answer, description, selection) is None
    with suppress(CodecError):
        read_answer([answer.encode()], TENSORFLOW, description, selection)


def test_text_that_is_not_utf8_goes_the_long_way() -> None:
    assert short(b'{"outputs":["\xff"]}', STRINGS) is None
    assert short(b'{"outputs":[1],"\xff":1}', Y) is None


def test_an_output_that_was_requested_and_is_missing_is_for_the_long_way() -> None:
    assert short('{"outputs":{"n":[1]}}', TWO, OutputSelection(False, {"y": True})) is None


def test_limits_hold() -> None:
    answer = '{"outputs":{"y":[1],"n":[2]}}'
    assert short(answer, TWO, limits=HeaderLimits(len(answer), 2)) is not None
    assert short(answer, TWO, limits=HeaderLimits(len(answer) - 1, 2)) is None
    assert short(answer, TWO, limits=HeaderLimits(len(answer), 1)) is None
    assert short(answer.ljust(SHORT_BYTES), TWO) is not None
    assert short(answer.ljust(SHORT_BYTES + 1), TWO) is None


def test_many_outputs_go_the_long_way() -> None:
    for n_outputs, takes_short in ((MAX_OUTPUTS, True), (MAX_OUTPUTS + 1, False)):
        names = [f"y{index}" for index in range(n_outputs)]
        answer = json.dumps({"outputs": dict.fromkeys(names, 1)})
        assert (short(answer, described(**dict.fromkeys(names, "INT64"))) is not None) is takes_short


def random_answer(dice: random.Random, description: ModelDescription, form: AnswerForm) -> bytes:
    """An answer in one of its forms, but now and then for what stands in its data."""
    rows = dice.randint(1, 4)
    values: dict[str, Any] = {}
    for tensor in description.outputs:
        assert tensor.datatype is not None
        shape = [rows, *(dice.randint(1, 3) for _ in range(dice.randint(0, 2)))]
        count = int(np.prod(shape))
        data: list[Any]
        if tensor.datatype.kind is Kind.BYTES:
            data = [dice.choice(["", "a", "é", "[", "y", '"y"', "\n"]) for _ in range(count)]
        elif tensor.datatype.kind is Kind.BOOL:
            data = [dice.random() < 0.5 for _ in range(count)]
        elif tensor.datatype.kind is Kind.FLOAT:
            numbers = [repr(float(value)) for value in numbers_of(tensor.datatype.name, count, dice)]
            data = [Text(number.replace("nan", "NaN").replace("inf", "Infinity")) for number in numbers]
            if dice.random() < 0.2:
                data[dice.randrange(count)] = Text(dice.choice(FLOAT_TEXTS))
        else:
            data = [Text(int(value)) for value in numbers_of(tensor.datatype.name, count, dice)]
        values[tensor.name] = nested(data, shape)
    outputs: Any = shuffled(values, dice)
    if len(values) == 1 and dice.random() < 0.5:
        (outputs,) = values.values()
    elif dice.random() < 0.5:
        outputs = [shuffled({name: value[row] for name, value in values.items()}, dice) for row in range(rows)]
    top = {dice.choice(form.members): outputs}
    if dice.random() < 0.2:
        top["more"] = dice.choice([None, "outputs", {"predictions": [1]}, [{}]])
    return dumped(top, dice, separators(dice)).encode()


@pytest.mark.parametrize("seed", range(8))
def test_answers_come_to_the_same_both_ways(seed: int) -> None:
    dice = random.Random(seed)
    n_short = 0
    selections = [OutputSelection(), OutputSelection(True), OutputSelection(False, {"y": True})]
    for _ in range(ROUNDS):
        names = dice.choice([["y"], ["y", "n"]])
        description = described(**{name: dice.choice(list(DATATYPES)) for name in names})
        form, selection = dice.choice([TENSORFLOW, MLFLOW]), dice.choice(selections)
        text = bytearray(random_answer(dice, description, form))
        for _ in range(dice.choice([0, 0, 1, 3])):
            damage(text, dice)
        n_short += short(bytes(text), description, selection, form) is not None
        with suppress(CodecError):
            reply = read_answer([bytes(text)], form, description, selection, version=dice.choice([None, "7"]))
            json.loads(b"".join(reply.header))
    assert n_short > ROUNDS / 4

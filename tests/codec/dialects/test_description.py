"""What is known of a model: merging, patterns, what is missing, and V2's metadata."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from gateway.codec.dialects.body import Body
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import (
    MAX_NAMED,
    UNKNOWN,
    ModelDescription,
    Template,
    check_known,
    may_be_joined,
    missing_datatype,
    v2_metadata,
)
from gateway.codec.dialects.paths import AnswerForm, tree_of
from gateway.codec.inference import OutputSelection, Tensor
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.config import parse
from gateway.errors import CodecError
from gateway.plan import configured_for
from tests.codec.test_properties import PROFILE

FP32, INT64 = DATATYPES["FP32"], DATATYPES["INT64"]
EVERYTHING = OutputSelection()


def outputs(tensors: dict[str, TensorDescription]) -> ModelDescription:
    return ModelDescription(outputs=tensors)


def test_what_is_configured_wins_member_by_member_and_the_rest_stays() -> None:
    said = ModelDescription(
        inputs={"x": TensorDescription(FP32, (-1, 4))},
        outputs={"a": TensorDescription(FP32, (-1,)), "b": TensorDescription(INT64, (-1, 2))},
        versions=("3",),
        platform="tensorflow_savedmodel",
    )
    configured = ModelDescription(
        inputs={"x": TensorDescription(None, (1, 4))},
        outputs={"c": TensorDescription(INT64), "b": TensorDescription(FP32)},
        format="row",
        signature="other",
    )
    assert said.merged(configured) == ModelDescription(
        inputs={"x": TensorDescription(FP32, (1, 4))},
        outputs={
            "a": TensorDescription(FP32, (-1,)),
            "b": TensorDescription(FP32, (-1, 2)),
            "c": TensorDescription(INT64),
        },
        format="row",
        signature="other",
        versions=("3",),
        platform="tensorflow_savedmodel",
    )


@pytest.mark.parametrize(
    ("said", "configured", "expected", "has_output_order"),
    [
        ("ab", "ba", "ba", True),
        ("ab", "cba", "cba", True),
        ("ab", "b", "ab", False),
        ("ab", "cb", "abc", False),
        ("ab", "", "ab", False),
    ],
)
def test_the_order_of_outputs_is_the_configurations_where_it_lists_all_of_them(
    said: str, configured: str, expected: str, has_output_order: bool
) -> None:
    def listed(names: str) -> dict[str, TensorDescription]:
        return {name: TensorDescription(INT64 if name == "b" else FP32) for name in names}

    merged = outputs(listed(said)).merged(ModelDescription(outputs=listed(configured), has_output_order=True))
    assert "".join(merged.outputs) == expected
    assert merged == ModelDescription(outputs=listed(expected), has_output_order=has_output_order)


def test_a_block_that_says_nothing_changes_nothing() -> None:
    said = ModelDescription(outputs={"y": TensorDescription(FP32, ())}, versions=("1",), platform="p")
    assert said.merged(UNKNOWN) == said


def test_a_configured_scalar_is_no_missing_shape() -> None:
    said = outputs({"y": TensorDescription(FP32, (-1,))})
    assert said.merged(outputs({"y": TensorDescription(None, ())})) == outputs({"y": TensorDescription(FP32, ())})


def test_the_first_pattern_that_matches_counts() -> None:
    models = {"iris": ModelDescription(format="row"), "ir*": ModelDescription(format="columnar"), "*": UNKNOWN}
    formats = [configured_for(models, name, UNKNOWN).format for name in ("iris", "iron", "other")]
    assert formats == ["row", "columnar", ""]
    assert configured_for({}, "iris", UNKNOWN) == UNKNOWN


@pytest.mark.parametrize(
    ("described", "selection"),
    [
        (outputs({"y": TensorDescription(FP32)}), EVERYTHING),
        (outputs({"y": TensorDescription(FP32)}), OutputSelection(named={"y": True})),
        (outputs({"y": TensorDescription(FP32), "z": TensorDescription()}), OutputSelection(named={"y": False})),
    ],
)
def test_nothing_is_missing_where_every_wanted_datatype_is_known(
    described: ModelDescription, selection: OutputSelection
) -> None:
    assert missing_datatype(described, selection, dialect="mlflow", backend="b", model="m") is None


@pytest.mark.parametrize(
    ("described", "selection", "what", "block"),
    [
        (
            UNKNOWN,
            EVERYTHING,
            "model 'm': the datatypes of its outputs are not known, and answers of the dialect mlflow do not say it.",
            {"m": {"outputs": {"NAME": {"datatype": "FP32"}}}},
        ),
        (
            outputs({"y": TensorDescription(FP32), "no: 1": TensorDescription()}),
            EVERYTHING,
            "model 'm': the datatype of output 'no: 1' is not known (known outputs are 'y'), and",
            {"m": {"outputs": {"no: 1": {"datatype": "FP32"}}}},
        ),
        (
            outputs({"y": TensorDescription()}),
            OutputSelection(named={"y": True, "Yes": True}),
            "model 'm': the datatype of output 'y', output 'Yes' is not known, and",
            {"m": {"outputs": {"y": {"datatype": "FP32"}, "Yes": {"datatype": "FP32"}}}},
        ),
    ],
)
def test_what_is_missing_is_said_with_lines_that_load(
    described: ModelDescription, selection: OutputSelection, what: str, block: dict[str, object]
) -> None:
    words = missing_datatype(described, selection, dialect="mlflow", backend="b", model="m")
    assert words is not None
    assert what in words
    assert "\n" not in words
    _, _, lines = words.partition("names and datatypes: ")
    assert yaml.safe_load(lines) == {"models": block}
    assert parse(f"backends: {{b: {{endpoints: ['http://x'], dialect: mlflow, {lines}}}}}").backends["b"].models


def test_a_server_that_describes_nothing_may_be_a_kserve_which_wants_rows() -> None:
    words = missing_datatype(UNKNOWN, EVERYTHING, dialect="tensorflow", backend="b", model="*")
    assert words is not None
    _, _, lines = words.partition("TensorFlow Serving: ")
    assert yaml.safe_load(lines) == {"models": {"[*]": {"format": "row", "outputs": {"NAME": {"datatype": "FP32"}}}}}
    for known in (ModelDescription(format="columnar"), ModelDescription(platform="tensorflow_savedmodel")):
        words = missing_datatype(known, EVERYTHING, dialect="tensorflow", backend="b", model="m")
        assert words is not None
        assert "row" not in words


NAMES = st.text(
    st.sampled_from("ab []{}*?!#:,'\"\\\n\x00\x7f\x85\u2028\ufeff\U0001f600é-.~|>%@`&=0eyn"), min_size=1, max_size=6
)


@given(model=NAMES, named=st.lists(NAMES, min_size=1, max_size=3, unique=True))
@example(model="[x]", named=["y"])
@PROFILE
def test_the_lines_for_any_names_make_the_request_possible(model: str, named: list[str]) -> None:
    selection = OutputSelection(named=dict.fromkeys(named, True))
    words = missing_datatype(UNKNOWN, selection, dialect="mlflow", backend="b", model=model)
    assert words is not None
    _, _, lines = words.partition("names and datatypes: ")
    models = parse(f"backends: {{b: {{endpoints: ['http://x'], dialect: mlflow, {lines}}}}}").backends["b"].models
    described = configured_for({pattern: each.description for pattern, each in models.items()}, model, UNKNOWN)
    assert missing_datatype(described, selection, dialect="mlflow", backend="b", model=model) is None


def test_words_about_many_outputs_are_bounded() -> None:
    many = outputs({f"{index}" * 1000: TensorDescription() for index in range(1000)})
    words = missing_datatype(many, EVERYTHING, dialect="mlflow", backend="b", model="m")
    assert words is not None
    assert len(words) < MAX_NAMED * 5000


def test_an_output_that_the_model_does_not_have_is_named_with_those_that_it_has() -> None:
    def words(described: ModelDescription, selection: OutputSelection) -> str:
        described = structs.replace(described, is_complete=True)
        try:
            check_known(described, (), selection, model="m")
        except CodecError as error:
            return str(error)
        return ""

    described = outputs({"b": TensorDescription(), "a": TensorDescription()})
    assert not words(described, EVERYTHING)
    assert not words(described, OutputSelection(False, {"a": True}))
    selection = OutputSelection(False, {"a": True, "c": True})
    assert words(described, selection) == "output 'c' was requested, but the model has 'a', 'b'"
    assert words(UNKNOWN, selection) == "output 'a' was requested, but the model has none"
    many = outputs({f"y{index}": TensorDescription() for index in range(MAX_NAMED + 5)})
    assert words(many, selection).count("'y") == MAX_NAMED


@pytest.mark.parametrize("inputs", [{}, {"x": TensorDescription(FP32)}])
def test_an_input_that_a_template_does_not_name_is_refused(inputs: dict[str, TensorDescription]) -> None:
    tensor = Tensor("y", FP32, (1,), memoryview(bytes(4)))
    template = Template(
        "/p", Body({name: f"${name}" for name in inputs}, {"x": TensorDescription()}), AnswerForm(tree_of({}))
    )
    described = ModelDescription(inputs, template=template)
    known = "'x'" if inputs else "none"
    with pytest.raises(CodecError, match=f"^input 'y': model 'm' has no such input; it has {known}$"):
        check_known(described, [tensor], EVERYTHING, model="m")
    check_known(described, (), EVERYTHING, model="m")
    check_known(structs.replace(UNKNOWN, inputs=inputs), [structs.replace(tensor, name="x")], EVERYTHING, model="m")


def test_v2_metadata_has_what_clients_look_for() -> None:
    described = ModelDescription(
        inputs={"": TensorDescription(FP32, (-1, 4)), "b": TensorDescription()},
        outputs={"y": TensorDescription(INT64), "s": TensorDescription(FP32, ())},
        versions=("1", "2"),
        platform="tensorflow_savedmodel",
    )
    assert json.loads(v2_metadata('m"', described)) == {
        "name": 'm"',
        "versions": ["1", "2"],
        "platform": "tensorflow_savedmodel",
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 4]}, {"name": "b", "shape": [-1]}],
        "outputs": [
            {"name": "y", "datatype": "INT64", "shape": [-1]},
            {"name": "s", "datatype": "FP32", "shape": []},
        ],
    }
    assert json.loads(v2_metadata("m", UNKNOWN)) == {"name": "m", "platform": "", "inputs": [], "outputs": []}


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ([(-1, 4), None], [None], True),
        ([("n", 4), (-1,)], [("n",)], True),
        ([("n", 4), ("m",)], [("n",)], False),  # m may happen to be n
        ([("n", 4)], [("m",)], False),
        ([(-1, 4), (3,)], [None], False),
        ([(-1, 4), ()], [None], False),
        ([(-1, 4)], [(3,)], False),
        ([(-1, 4)], [()], False),
    ],
)
def test_requests_are_joined_where_all_first_dimensions_may_be_the_rows(
    inputs: list[Any], outputs: list[Any], expected: bool
) -> None:
    description = ModelDescription(
        inputs={f"x{index}": TensorDescription(FP32, shape) for index, shape in enumerate(inputs)},
        outputs={f"y{index}": TensorDescription(FP32, shape) for index, shape in enumerate(outputs)},
    )
    assert may_be_joined(description.inputs, description) is expected


def test_an_optional_input_that_is_missing_keeps_no_requests_apart() -> None:
    tensors = {"x": TensorDescription(FP32, (-1,)), "s": TensorDescription(FP32, (), optional=True)}
    description = ModelDescription(inputs=tensors, outputs={"y": TensorDescription(FP32)})
    assert may_be_joined(["x"], description)
    assert not may_be_joined(["x", "s"], description)

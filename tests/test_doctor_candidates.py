"""What the doctor makes of samples and answers: inputs, constants, questions, outputs."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from gateway import config
from gateway.doctor.answered import Answers
from gateway.doctor.candidates import Candidates
from gateway.doctor.filling import filled_in, found_at, is_close, json_path_of
from gateway.doctor.offers import made_of
from gateway.doctor.tensors import Tensor, likely_datatype, shape_of, tensor_of
from gateway.doctor.variation import as_floats, changed, grown, row_at, stacked, widened, with_rows


def constants_of(found: Candidates) -> dict[str, str]:
    """The constants that could be inputs or have a reason, by path."""
    return {json_path_of(each.place): each.why for each in found.constants}


@pytest.mark.parametrize(
    ("document", "body", "places"),
    [
        ([{"age": 1, "plan": "a"}, {"age": 2, "plan": "b"}], {"$each": {"age": "$age", "plan": "$plan"}},
         {"age": "$[*].age", "plan": "$[*].plan"}),
        ({"instances": [{"features": [1, 2]}], "k": [1]},
         {"instances": {"$each": {"features": "$features"}}, "k": "$k"},
         {"features": "$.instances[*].features", "k": "$.k"}),
        ({"text": "hello", "n": 3}, {"text": "$text", "n": 3}, {"text": "$.text"}),
        ({"age": 30, "plan": "gold"}, {"age": "$age", "plan": "$plan"}, {"age": "$.age", "plan": "$.plan"}),
        ({"n": 3}, {"n": "$n"}, {"n": "$.n"}),
        ({"a": {"x": [1]}, "b": {"x": [2]}, "id": [3]}, {"a": {"x": "$x"}, "b": {"x": "$b_x"}, "id": "$id_2"},
         {"x": "$.a.x", "b_x": "$.b.x", "id_2": "$.id"}),
        ([[1, 2], [3, 4]], "$only", {"only": "$"}),
        ({"mixed": [1, "a"], "ragged": [[1], [1, 2]], "x": [1]},
         {"mixed": ["$mixed_0", "$mixed_1"], "ragged": [[1], [1, 2]], "x": "$x"},
         {"mixed_0": "$.mixed[0]", "mixed_1": "$.mixed[1]", "x": "$.x"}),
        ({"requests": [{"parts": [{"text": "a"}]}, {"parts": [{"text": "b"}]}]},
         {"requests": {"$each": {"parts": [{"text": "$text"}]}}}, {"text": "$.requests[*].parts[0].text"}),
        ({"rows": [{"pair": ["a", 1]}, {"pair": ["b", 2]}]}, {"rows": {"$each": {"pair": ["$pair_0", "$pair_1"]}}},
         {"pair_0": "$.rows[*].pair[0]", "pair_1": "$.rows[*].pair[1]"}),
        ({"jsonrpc": "2.0", "method": "predict", "params": {"x": [[1.5]]}},
         {"jsonrpc": "2.0", "method": "predict", "params": {"x": "$x"}}, {"x": "$.params.x"}),
        ({"inputs": "a", "parameters": {"candidate_labels": ["b", "c"]}},
         {"inputs": "$inputs", "parameters": {"candidate_labels": "$candidate_labels"}},
         {"inputs": "$.inputs", "candidate_labels": "$.parameters.candidate_labels"}),
        ({"tensor": {"shape": [2, 1], "values": [1.5, 2.5]}},
         {"tensor": {"shape": {"$shape": "values"}, "values": {"$flat": "values"}}}, {"values": "$.tensor.values"}),
        ({"text_1": "a", "text_2": ["b"]}, {"text_1": "$text_1", "text_2": "$text_2"},
         {"text_1": "$.text_1", "text_2": "$.text_2"}),
        ({"rows": [{"m": {"p": 0.5}, "q": None}]}, {"rows": {"$each": {"m": {"p": "$p"}, "q": None}}},
         {"p": "$.rows[*].m.p"}),
        ({"a b": [1]}, {"a b": "$a b"}, {"a b": '$["a b"]'}),
        ({"columns": ["age", "plan"], "data": [[30, "gold"], [40, "free"]]},
         {"columns": ["age", "plan"], "data": {"$each": ["$age", "$plan"]}},
         {"age": "$.data[*][0]", "plan": "$.data[*][1]"}),
        ({"columns": ["a", "b"], "data": [[1, 0.5]]}, {"columns": ["a", "b"], "data": {"$each": ["$a", "$b"]}},
         {"a": "$.data[*][0]", "b": "$.data[*][1]"}),
        ({"columns": ["a", "b"], "data": [[1.5, 0.5]]}, {"columns": ["a", "b"], "data": "$data"}, {"data": "$.data"}),
        ({"data": [[1, 0.5]]}, {"data": "$data"}, {"data": "$.data"}),
        ({"x": [[True, "a"]]}, {"x": {"$each": ["$c0", "$c1"]}}, {"c0": "$.x[*][0]", "c1": "$.x[*][1]"}),
        ({"query": "q", "texts": ["a"], "top_k": 3, "user": "w"},
         {"query": "$query", "texts": "$texts", "top_k": 3, "user": "w"},
         {"query": "$.query", "texts": "$.texts"}),
        ({"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}},
         {"inputs": {"source_sentence": "$source_sentence", "sentences": "$sentences"}},
         {"source_sentence": "$.inputs.source_sentence", "sentences": "$.inputs.sentences"}),
        ({"inputs": "a", "parameters": {"top_k": 5, "stop": ["x"]}},
         {"inputs": "$inputs", "parameters": {"top_k": 5, "stop": ["x"]}},
         {"inputs": "$.inputs"}),
        ({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]},
         {"model": "gpt", "messages": {"$each": {"role": "$role", "content": "$content"}}},
         {"role": "$.messages[*].role", "content": "$.messages[*].content"}),
    ],
)  # fmt: skip
def test_inputs_are_found_in_one_sample(document: Any, body: Any, places: dict[str, str]) -> None:
    found = Candidates([document], "only")
    assert found.body == body
    assert {name: json_path_of(place) for name, place in found.places.items()} == places
    assert filled_in(found.body, found.inputs) == document


@pytest.mark.parametrize(
    ("documents", "body", "why"),
    [
        ([{"x": [1], "u": "a"}, {"x": [2], "u": "a"}], {"x": "$x", "u": "a"}, {"$.u": "the same in all 2 samples"}),
        ([{"x": [1], "u": "a"}, {"x": [1], "u": "b"}], {"x": [1], "u": "$u"}, {"$.x": "the same in all 2 samples"}),
        ([{"query": "q", "texts": ["a"]}, {"query": "q", "texts": ["b"]}], {"query": "q", "texts": "$texts"},
         {"$.query": "the same in all 2 samples"}),
        ([{"m": [{"role": "user", "c": "a"}]}, {"m": [{"role": "user", "c": "b"}, {"role": "user", "c": "d"}]}],
         {"m": {"$each": {"role": "user", "c": "$c"}}}, {"$.m[*].role": "the same in all 2 samples"}),
        ([{"d": [[1, "a"]]}, {"d": [[1, "b"]]}], {"d": {"$each": [1, "$c1"]}},
         {"$.d[*][0]": "the same in all 2 samples"}),
        ([{"x": [1]}, {"x": [2], "k": 3}], {"x": "$x", "k": "$k"}, {}),
    ],
)  # fmt: skip
def test_what_differs_between_samples_is_an_input_and_what_does_not_is_constant(
    documents: list[Any], body: Any, why: dict[str, str]
) -> None:
    found = Candidates(documents, "only")
    assert found.body == body
    assert constants_of(found) == why
    for document, sample in zip(documents, found.samples, strict=True):
        assert filled_in(found.body, sample) == document


def test_an_input_that_a_sample_lacks_is_optional() -> None:
    found = Candidates([{"x": [1]}, {"x": [2], "k": 3}], "only")
    assert found.optional == ["k"]


def test_a_number_that_has_a_point_in_one_sample_is_fp64_in_all() -> None:
    found = Candidates([{"x": [1, 2]}, {"x": [0.5, 2]}], "only")
    assert [sample["x"].datatype for sample in found.samples] == ["FP64", "FP64"]


def test_constants_say_why_they_are_none_and_which_of_them_could_be_inputs() -> None:
    sample = {"x": [1.5], "user": "web", "none": None, "ragged": [[1], [1, 2]], "mixed": ["a", None], "empty": []}
    found = Candidates([sample], "only")
    assert constants_of(found) == {
        "$.user": "",
        "$.none": "",
        "$.ragged": "its lists have different lengths",
        "$.mixed": "it has null in it",
        "$.empty": "it is empty",
    }
    assert [json_path_of(each.place) for each in found.constants if each.is_candidate] == ["$.user"]


def test_a_text_that_is_made_an_input_for_its_name_is_said() -> None:
    found = Candidates([{"query": "q", "texts": ["a"], "user": "w"}], "only")
    assert list(found.obvious) == ["query"]
    assert found.obvious["query"].startswith("$.query is a text")


@pytest.mark.parametrize(
    "document",
    [
        {"$x": [1, 2], "$each": {"": [3]}, "$": [4.5]},
        {"id": [1], "a": {"id": [2]}, "b": [{"parameters": 3}]},
        {"model": [1], "version": [2], "row": [3], "rows": [4]},
        {"x": [0], "a": {"b": {"x": [1]}}, "a_b": {"x": [2]}, "c": {"x": [3]}},
        {"rows": [{}, {}], "x": [1], "deep": {"rows": [{"a": {}}]}},
        {"rows": [{"a": 1}, {"b": "$2"}], "x": [1], "mixed": ["$y", 1, {"$z": None}]},
        {"x": [1], "huge": 2**70},
        {"x": [1, 2**63], "y": [2**64], "mixed": [True, 1], "holes": ["a", None], "nothing": [None]},
        {"columns": ["id", "$x"], "data": [[1, "a"]]},
    ],
)
def test_any_document_is_a_template_that_loads(document: Any) -> None:
    found = Candidates([document], "only")
    inputs = {name: {"datatype": each.datatype, "shape": list(each.shape)} for name, each in found.inputs.items()}
    answers = {name: f"$.o{index}" for index, name in enumerate(inputs)}
    model = {"inputs": inputs, "outputs": inputs, "request": {"path": "/", "body": found.body}, "answer": answers}
    backend = {"endpoints": ["http://x"], "dialect": "template", "models": {"m": model}}
    assert config.parse(yaml.safe_dump({"backends": {"b": backend}}))


# Answers


@pytest.mark.parametrize(
    ("answers", "found", "left"),
    [
        ([{"y": [0.5]}], {"y": "$.y"}, {}),
        ([[[{"label": "a", "score": 0.5}, {"label": "b", "score": 0.5}]]],
         {"label": "$[*][*].label", "score": "$[*][*].score"}, {}),
        ([{"a": [{"b": [{"x": 1}]}]}], {"x": "$.a[*].b[*].x"}, {}),
        ([{"y": [["a", 0.5], ["b", 0.25]]}], {"y_0": "$.y[*][0]", "y_1": "$.y[*][1]"}, {}),
        ([["a", 0.5]], {"output_0": "$[0]", "output_1": "$[1]"}, {}),
        ([{"y": [[1], [1, 2]]}], {}, {"$.y": "its lists have different lengths"}),
        ([{"y": [1, "a", 2], "z": 1}, {"y": [1, "a"], "z": 2}], {"z": "$.z"},
         {"$.y": "it has values of several kinds"}),
        ([{"r": [{"cat": 0.5}, {"dog": 0.5}]}], {}, {"$.r[*]": "the names of its members are data"}),
        ([{"y": {"0": 0.5}}, {"y": {"0": 0.5, "1": 1.5}}], {}, {"$.y": "the names of its members are data"}),
        ([{"y": [], "x": 1}], {"x": "$.x"}, {"$.y": "it is empty in all tries"}),
        ([{"y": None, "x": 1}], {"x": "$.x"}, {"$.y": "it is null in all tries"}),
        ([{"y": ["a", "b"]}, {"y": None}], {}, {"$.y": "it is null in some tries"}),
        ([{"y": "a", "x": 1}, {"x": 1}], {"x": "$.x"}, {"$.y": "it is missing in some tries"}),
        ([{"y": '{"p": 1}', "x": 1}], {"x": "$.x"}, {"$.y": "it is JSON inside of a text"}),
        ([{"y": {}}], {}, {"$.y": "it is an empty object"}),
        ([{"y": 1}, {"y": [1]}], {}, {"$.y": "it has values of several kinds"}),
        ([{"y": [1]}, {"y": [[1]]}], {}, {"$.y": "it is nested more deeply in some tries"}),
    ],
)  # fmt: skip
def test_every_member_of_an_answer_is_an_output_or_has_a_reason(
    answers: list[Any], found: dict[str, str], left: dict[str, str]
) -> None:
    read = Answers(answers, "output")
    assert {name: each.path for name, each in read.found.items()} == found
    assert {each.path for each in read.left} == left.keys()
    for each in read.left:
        assert each.why.startswith(left[each.path])


def test_integers_are_fp64_where_another_answer_has_a_point() -> None:
    assert Answers([{"y": [1, 2]}, {"y": [0.5]}], "output").found["y"].datatype == "FP64"
    assert Answers([{"y": [1, 2]}, {"y": [3]}], "output").found["y"].datatype == "INT64"


def test_texts_that_are_numbers_are_noticed() -> None:
    assert Answers([{"y": ["0.5", "1"]}], "output").found["y"].is_text_of_numbers
    assert not Answers([{"y": ["12", "1"]}], "output").found["y"].is_text_of_numbers
    assert not Answers([{"y": ["0.5", "a"]}], "output").found["y"].is_text_of_numbers


# Places and values


def test_a_value_is_found_at_its_place() -> None:
    document = {"a": [{"b": [1, 2]}, {"b": [3, 4]}]}
    assert found_at(("a", None, "b"), document) == [[1, 2], [3, 4]]
    assert found_at(("a", None, "b", 1), document) == [2, 4]
    assert found_at(("a", 1, "b", None), document) == [3, 4]


def test_numbers_are_close_and_other_values_equal() -> None:
    assert is_close([1.0, "a", None], [1.0000001, "a", None])
    assert not is_close([1.0], [1.1])
    assert not is_close(True, 1)
    assert not is_close({"a": 1}, {"b": 1})
    assert is_close({"a": [1]}, {"a": [1.0]})


def test_shapes_are_those_of_rectangular_lists() -> None:
    assert shape_of([[1, 2.5], [3, None]]) == (2, 2)
    assert shape_of([[], []]) == (2, 0)
    assert shape_of("a") == ()
    assert shape_of(["a", None]) is shape_of([True, 1]) is shape_of([None]) is None
    assert shape_of([[1], 2]) is shape_of([{"a": 1}]) is shape_of(["a", 1]) is None


def test_a_number_with_a_point_is_fp64_though_fp32_would_hold_it() -> None:
    assert likely_datatype([0.25]) == "FP64"
    assert likely_datatype([1, 0.5]) == "FP64"
    assert likely_datatype([2**63]) == "UINT64"
    assert likely_datatype([-1, 2**63]) == "FP64"


@pytest.mark.parametrize(
    "data", [[[0.5, 1.5], [0.25, 0.125]], [[1, 2], [3, 4]], ["a", "b"], [True, False], "text", 3, 0.5, [2**63 - 1]]
)
def test_other_values_have_the_same_shape_and_are_others(data: Any) -> None:
    (tensor,) = Candidates([data], "x").inputs.values()
    others = list(changed(tensor))
    assert others
    for other in others:
        assert (other.shape, other.datatype) == (tensor.shape, tensor.datatype)
        assert other.blob != tensor.blob
    assert all(0 <= value <= 1 for value in next(changed(tensor_of("x", "FP64", [0.0, 1.0]))).values)


def test_rows_are_taken_added_and_stacked() -> None:
    tensor = tensor_of("x", "INT64", [[1, 2], [3, 4]])
    assert row_at(tensor, 1).nested == [3, 4]
    assert with_rows(tensor, [1, 0]).nested == [[3, 4], [1, 2]]
    assert stacked([row_at(tensor, 0), row_at(tensor, 1)]) == tensor
    assert widened(tensor).nested == [[1, 2, 2], [3, 4, 4]]
    assert as_floats(tensor, 0.25).nested == [[1.25, 2.25], [3.25, 4.25]]
    *_, same = grown(tensor, 1)
    assert same.nested == [[1, 2], [3, 4], [1, 2]]
    assert next(grown(tensor, 1)).nested[:2] == tensor.nested


# Schemas


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": "number"}, 0.5),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "number", "maximum": 0.1}, 0.1),
        ({"type": "string", "enum": ["gold", "free"]}, "gold"),
        ({"type": "string", "default": "web"}, "web"),
        ({"const": 7}, 7),
        ({"type": "array", "items": {"type": "number"}, "minItems": 3}, [0.5, 0.5, 0.5]),
        ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}, ["text", 1]),
        ({"type": "object", "properties": {"x": {"type": "boolean"}}}, {"x": False}),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "text"),
        ({"type": ["null", "integer"]}, 1),
        ({"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {"type": "integer"}}}]}, {"a": "text", "b": 1}),
        ({"$ref": "#/$defs/A"}, {"a": "text"}),
        ({"example": {"x": 1}}, {"x": 1}),
    ],
)
def test_a_sample_is_made_of_a_schema(schema: Any, made: Any) -> None:
    document = {"$defs": {"A": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    assert made_of(schema, document) == made


def test_a_schema_that_refers_to_itself_ends() -> None:
    document = {"$defs": {"A": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}}}
    assert json.dumps(made_of({"$ref": "#/$defs/A"}, document))


# Any document

NAMES = ("x", "y", "id", "parameters", "a b", "$x", "$each", "$flat", "$", "", "é", "0", "a.b", "b64", "error")
SCALARS = (0, -3, 2**40, 2**63, 2**64, 2**70, 0.1, 1.5, 1e300, True, False, None, "", "a", "$x", "$$", "é", "\0", "~")
KINDS = (
    (0, 7, -(2**63)),
    (0.5, 0.1, 1e300),
    ("a", "", "$x"),
    (True, False),
    (1, 0.5),
    (1.5, None),
    (True, 1),
    ("a", None),
)


def any_document(draw: random.Random, depth: int = 0) -> Any:
    """A document with nested lists, records, tables, and what templates have to escape."""
    form = draw.choice(("object", "tensor", "list", "records", "table", "scalar") if depth < 4 else ("scalar",))
    if form == "object":
        return {draw.choice(NAMES): any_document(draw, depth + 1) for _ in range(draw.randint(0, 3))}
    if form == "tensor":
        return nested(draw, [draw.choice((1, 1, 2, 3, 0)) for _ in range(draw.randint(1, 3))], draw.choice(KINDS))
    if form == "list":
        return [any_document(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    if form == "table":
        kinds = [draw.choice(KINDS) for _ in range(draw.randint(1, 3))]
        table = [[draw.choice(values) for values in kinds] for _ in range(draw.randint(1, 3))]
        return {"columns": draw.sample(NAMES, len(kinds)), "data": table}
    if form == "records":
        members = {
            draw.choice(NAMES): (draw.choice(([], [], [2])), draw.choice(KINDS)) for _ in range(draw.randint(1, 3))
        }
        return [{name: nested(draw, *member) for name, member in members.items()} for _ in range(draw.randint(1, 3))]
    return draw.choice(SCALARS)


def nested(draw: random.Random, shape: list[int], values: Sequence[Any]) -> Any:
    """Lists of *shape* with some of *values*."""
    if not shape:
        return draw.choice(values)
    return [nested(draw, shape[1:], values) for _ in range(shape[0])]


def as_numbers(value: Any) -> Any:
    """*value* with all numbers as FP64, which is what integers beside numbers with a point become."""
    if isinstance(value, list):
        return [as_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: as_numbers(item) for name, item in value.items()}
    return float(value) if type(value) is int else value


def test_any_documents_template_gives_the_document_back() -> None:
    n_inputs = 0
    for seed in range(2000):
        document = any_document(random.Random(seed))
        found = Candidates([document], "only")
        n_inputs += len(found.places)
        if not found.differing:
            assert as_numbers(filled_in(found.body, found.inputs)) == as_numbers(document), (seed, document)
        assert all(isinstance(each, Tensor) for each in found.inputs.values())
    assert n_inputs > 1000


def test_any_answers_are_read_without_an_error_and_every_place_is_there() -> None:
    for seed in range(2000):
        draw = random.Random(seed)
        documents = [any_document(draw)] * draw.randint(1, 2) + [any_document(draw)] * (seed % 2)
        read = Answers(documents, "output")
        for found in read.found.values():
            assert [found_at(found.place, document) for document in documents] == list(found.values)

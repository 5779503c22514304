"""Paths of outputs, and the tree that they make."""

from typing import Any

import pytest

from gateway.codec.dialects.paths import MAX_STEPS, Node, find, steps_of, tree_of
from gateway.codec.json.pieces import ARRAY, OBJECT
from gateway.errors import CodecError


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("$", []),
        ("$.a", ["a"]),
        ("$.a_1.é", ["a_1", "é"]),
        ("$['a b'][\"c.d\"]", ["a b", "c.d"]),
        (r"$['it\'s'][" "" + r'"say \"x\""' + "]", ["it's", 'say "x"']),
        ("$['say \"x\"']", ['say "x"']),
        (r"$['\u00e9\n']", ["é\n"]),
        ("$[0][12].x", [0, 12, "x"]),
        ("$.rows[*].score", ["rows", None, "score"]),
        ("$[*]", [None]),
    ],
)
def test_a_path_is_read_as_the_rfc_says(path: str, steps: list[Any]) -> None:
    assert steps_of(path) == steps


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a",
        ".a",
        "$a",
        "$.",
        "$.1",
        "$.a b",
        "$..a",
        "$.*",
        "$[-1]",
        "$[01]",
        "$[a]",
        "$['a]",
        "$[?@.a]",
        "$.a[0",
        "$ .a",
    ],
)
def test_what_is_no_path_of_this_kind_is_refused(path: str) -> None:
    with pytest.raises(CodecError, match="expected a path such as"):
        steps_of(path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("$" + ".a" * (MAX_STEPS + 1), f"at most {MAX_STEPS} names"),
        ("$[1000000]", "expected a path such as"),
        (r"$['\q']", "escapes as in JSON"),
    ],
)
def test_limits_of_a_path_are_said(path: str, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        steps_of(path)


def test_paths_make_a_tree_whose_leaves_are_the_outputs() -> None:
    tree = tree_of({"a": "$.r.a", "b": "$.r['b c']", "c": "$.rows[*].c", "d": "$.rows[*].x[1]", "e": "$.list[*]"})
    assert list(tree.inside) == ["r", "rows", "list"]
    assert tree.outputs == {
        "a": "$.r.a",
        "b": "$.r['b c']",
        "c": "$.rows[*].c",
        "d": "$.rows[*].x[1]",
        "e": "$.list[*]",
    }
    assert [tree.code, tree.inside["rows"].code, tree.inside["list"].code] == [OBJECT, ARRAY, ARRAY]
    assert tree_of({"y": "$"}) == Node("$", "y", outputs={"y": "$"})
    assert tree_of({"y": "$[*]"}) == Node("$", "y", ARRAY, outputs={"y": "$"})


@pytest.mark.parametrize(
    "paths",
    [
        {"a": "$.x", "b": "$.x"},
        {"a": "$.x", "b": "$.x.y"},
        {"a": "$.x[0]", "b": "$.x.y"},
        {"a": "$[*].a", "b": "$[0]"},
        {"a": "$[*]", "b": "$[*].b"},
        {"a": "$", "b": "$.b"},
    ],
)
def test_paths_that_no_answer_can_have_together_are_refused(paths: dict[str, str]) -> None:
    with pytest.raises(CodecError, match="the outputs `a`, `b` do not fit together"):
        tree_of(paths)


def test_a_value_is_found_along_a_path() -> None:
    value = {"fault": [{"reason": "why"}]}
    assert find(steps_of("$.fault[0].reason"), value) == "why"
    for path in ("$.fault[1].reason", "$.x", "$.fault.reason", "$[0]"):
        assert find(steps_of(path), value) is None

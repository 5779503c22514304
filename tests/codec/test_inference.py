"""Tensors, selections and how errors call them."""

import pytest

from gateway.codec.inference import OutputSelection, Tensor, is_half_precision, label_of, labelled, shape_text
from gateway.codec.tensors.datatypes import DATATYPES, count_text


@pytest.mark.parametrize(
    ("selection", "name", "wanted", "binary"),
    [
        (OutputSelection(), "y", True, False),
        (OutputSelection(binary_by_default=True), "y", True, True),
        (OutputSelection(True, {"y": False}), "y", True, False),
        (OutputSelection(False, {"y": True}), "y", True, True),
        (OutputSelection(True, {"y": True}), "z", False, True),
    ],
)
def test_named_outputs_are_wanted_in_their_form_and_all_others_in_the_default(
    selection: OutputSelection, name: str, wanted: bool, binary: bool
) -> None:
    assert selection.is_wanted(name) is wanted
    assert selection.is_binary(name) is binary


def test_selection_is_frozen() -> None:
    with pytest.raises(AttributeError):
        OutputSelection().binary_by_default = True  # type: ignore[misc]


def test_tensor_is_called_by_name_datatype_and_shape() -> None:
    tensor = Tensor("x", DATATYPES["FP32"], (2, 2), memoryview(bytes(16)))
    assert str(tensor) == "input 'x' (FP32, shape [2, 2])"
    assert labelled("output", "y", DATATYPES["BYTES"], ()) == "output 'y' (BYTES, shape [])"


def test_names_shapes_and_counts_stay_short_in_errors() -> None:
    assert len(label_of("input", "n" * 1_000_000)) < 100
    assert len(shape_text((1,) * 1_000_000)) < 300
    assert len(labelled("input", "é" * 1000, DATATYPES["FP32"], (2**62,) * 64)) < 400
    assert count_text(2**64 - 1) == "18446744073709551615"
    assert count_text(2**4000) == "more than 2^64"


def test_half_precision_is_two_datatypes() -> None:
    assert [name for name, datatype in DATATYPES.items() if is_half_precision(datatype)] == ["FP16", "BF16"]

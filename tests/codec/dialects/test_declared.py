"""Declared shapes: sizes, -1 and names."""

import pytest

from gateway.codec.dialects.declared import TensorDescription, declared_text, fits


@pytest.mark.parametrize(
    ("declared", "shape", "fit"),
    [
        ((), (), True),
        ((), (1,), False),
        ((-1, 4), (0, 4), True),
        ((-1, 4), (2, 3), False),
        (("n", "n"), (3, 3), True),
        (("n", "n"), (3, 4), False),
        (("n", "m"), (3, 4), True),
        (("k", 4), (2, 4), True),
        (("k", 4), (3, 4), False),
        ((2,), (2, 1), False),
    ],
)
def test_a_shape_fits_its_declaration(declared: tuple[int | str, ...], shape: tuple[int, ...], fit: bool) -> None:
    assert fits(declared, shape, {"k": 2}) == fit


def test_a_name_is_one_size_in_all_shapes() -> None:
    sizes: dict[str, int] = {}
    assert fits(("n", 4), (3, 4), sizes)
    assert sizes == {"n": 3}
    assert fits(("n",), (3,), sizes)
    assert not fits(("n", "m"), (2, 7), sizes)
    assert sizes == {"n": 3}, "a shape that does not fit names nothing"


def test_errors_show_the_sizes_that_names_have() -> None:
    assert declared_text(("n", -1, 4, "m"), {"n": 2}) == "[n, -1, 4, m] (n is 2)"
    assert declared_text((), {}) == "[]"


@pytest.mark.parametrize(
    ("shape", "has_rows"), [(None, True), ((), False), ((-1, 2), True), (("n",), True), ((4,), False)]
)
def test_rows_are_a_first_dimension_of_any_size(shape: tuple[int | str, ...] | None, has_rows: bool) -> None:
    assert TensorDescription(shape=shape).has_rows == has_rows

"""Arrays that are refused, with the value that is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import peakgemm.arrays as door
from peakgemm import run_rung
from peakgemm.arrays.base import View
from peakgemm.arrays.matrix import Matrix, matrix
from peakgemm.errors import InvalidType, InvalidValue, MissingComponent
from peakgemm.runtime.device import reason_without_gpu


def operands(m: int = 4, n: int = 6, k: int = 5) -> list[np.ndarray]:
    return [np.zeros(shape, np.float32) for shape in ((m, k), (k, n), (m, n))]


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("place", range(3))
def test_dtype(dtype: str, place: int) -> None:
    arrays = operands()
    arrays[place] = arrays[place].astype(dtype)
    name = "ABC"[place]
    with pytest.raises(InvalidType) as error:
        run_rung(7, *arrays)
    assert str(error.value).startswith(f"{name} is {dtype}; peakgemm multiplies float32")
    remedy = "np.empty(shape, np.float32)" if name == "C" else f"{name}.astype('float32')"  # a copy of C is not written
    assert remedy in str(error.value)


def test_byte_order() -> None:
    a, b, c = operands()
    with pytest.raises(InvalidType, match="A is >f4"):
        run_rung(7, a.astype(">f4"), b, c)


@pytest.mark.parametrize("shape", [(4,), (), (2, 2, 5)])
def test_dimensions(shape: tuple[int, ...]) -> None:
    _, b, c = operands()
    with pytest.raises(InvalidValue) as error:
        run_rung(7, np.zeros(shape, np.float32), b, c)
    assert str(error.value) == f"A has shape {shape}; a matrix (2-D) is wanted"


def test_inner_sizes() -> None:
    a, _, c = operands()
    with pytest.raises(InvalidValue) as error:
        run_rung(7, a, np.zeros((7, 6), np.float32), c)
    assert "A is 4 x 5 and B is 7 x 6" in str(error.value)
    assert "the columns of A (5) must be the rows of B (7)" in str(error.value)


def test_output_is_read_only() -> None:
    a, b, c = operands()
    c.flags.writeable = False
    with pytest.raises(InvalidValue, match="C is a read-only NumPy array"):
        run_rung(7, a, b, c)


@pytest.mark.parametrize("thing", [[[1.0]], 3.0, None, "matrix"], ids=lambda x: type(x).__name__)
def test_no_array(thing: object) -> None:
    _, b, c = operands()
    with pytest.raises(InvalidType) as error:
        run_rung(7, thing, b, c)
    assert str(error.value).startswith(f"A is a {type(thing).__name__}, which offers neither DLPack nor")


@pytest.mark.skipif(reason_without_gpu() is None, reason="there is a GPU")
def test_no_gpu_names_the_remedy() -> None:
    with pytest.raises(MissingComponent, match="peakgemm doctor"):
        run_rung(7, *operands())


class OnDevice:
    """A library of arrays that say where they lie."""

    name = "stand-in"

    def admit(self, x: Any, name: str) -> int:
        return x.place

    def view(self, x: Any, name: str, stream: int = -1) -> Any:
        return x.lies


@pytest.mark.parametrize(("shape", "strides", "place", "says"), [
    ((2, 3), (3, 1), -1, "A (SimpleNamespace) is not on a GPU; move it there first"),
    ((3,), (1,), 0, "A has shape (3,); a matrix (2-D) is wanted"),
    ((2, 3), (1, 2), 0, "A has strides (1, 2) (elements); its rows must be contiguous: pass a row-major copy, or swap"),
    ((2, 3), None, 0, "A has no strides in whole elements; its rows must be contiguous"),
    ((2, 3), (2, 1), 0, "ld of A = 2 is shorter than its row of 3 elements; pass a copy"),
])
def test_what_is_no_matrix(monkeypatch: pytest.MonkeyPatch, shape: Any, strides: Any, place: int, says: str) -> None:
    monkeypatch.setattr(door, "library_of", lambda x, name: OnDevice())
    with pytest.raises(InvalidValue) as error:
        matrix(SimpleNamespace(place=place, lies=View(64, shape, strides)), "A")
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(("shape", "strides", "ld"), [
    ((2, 3), (5, 1), 5), ((1, 3), (99, 1), 3), ((2, 1), (4, 7), 4), ((0, 3), (3, 1), 3), ((3, 0), (1, 1), 1)])
def test_leading_dimensions(monkeypatch: pytest.MonkeyPatch, shape: Any, strides: Any, ld: int) -> None:
    monkeypatch.setattr(door, "library_of", lambda x, name: OnDevice())
    array = SimpleNamespace(place=0, lies=View(72, shape, strides))
    found = matrix(array, "A")
    assert (found, found.alignment) == (Matrix(72, *shape, ld, array), 8)

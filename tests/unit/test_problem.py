"""The nouns: what a Problem and a Config accept, and what they say of themselves."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from peakgemm.problem import MAX_SIZE, Config, FfmaOrder, Problem


def test_contiguous() -> None:
    p = Problem.contiguous(3, 5, 7, alpha=2.0, beta=-1.0)
    assert (p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.alpha, p.beta) == (3, 5, 7, 7, 5, 5, 2.0, -1.0)
    assert p.alignment == (16, 16, 16)
    assert p.flops == 210


@pytest.mark.parametrize(("sizes", "says"), [
    ((-1, 1, 1), "M = -1"), ((1, -2, 1), "N = -2"), ((1, 1, -3), "K = -3"),
    ((MAX_SIZE + 1, 1, 1), f"M = {MAX_SIZE + 1} is outside 0..{MAX_SIZE}"),
    ((2.5, 1, 1), "M = 2.5 must be an integer"), ((1, "7", 1), "N = '7' must be an integer"),
])
def test_sizes_refused(sizes: tuple, says: str) -> None:
    with pytest.raises(InvalidValue) as error:
        Problem(*sizes, 9, 9, 9)
    assert says in str(error.value)


def test_largest_size() -> None:
    assert Problem.contiguous(MAX_SIZE, 1, 1).m == MAX_SIZE


@pytest.mark.parametrize(("lds", "says"), [
    ((6, 5, 5), "lda = 6 is shorter than its row of 7 elements"),
    ((7, 4, 5), "ldb = 4 is shorter than its row of 5 elements"),
    ((7, 5, 4), "ldc = 4 is shorter than its row of 5 elements"),
    ((7, 5.5, 5), "ldb = 5.5 must be an integer"),
])
def test_leading_dimensions_refused(lds: tuple, says: str) -> None:
    with pytest.raises(InvalidValue) as error:
        Problem(3, 5, 7, *lds)
    assert says in str(error.value)


def test_numpy_integers_become_python_ones() -> None:
    p = Problem.contiguous(np.int64(3), np.int32(5), np.uint8(7))
    assert [type(x) for x in (p.m, p.n, p.k, p.lda)] == [int] * 4
    assert json.dumps(Config(np.int64(64), 64, 16, 4, 4).to_json())


def test_config_macros() -> None:
    macros = Config(128, 64, 16, 8, 4, stages=3, fragments=2, raster=8, min_blocks=2, aligned=True).macros()
    assert macros == {"BM": 128, "BN": 64, "BK": 16, "TM": 8, "TN": 4, "STAGES": 3, "FRAGMENTS": 2, "RASTER": 8,
                      "MIN_BLOCKS": 2, "PASSES": 1, "ALIGNED": 1,
                      "PRODUCERS": 0, "REGISTERS": 0, "SLICES": 1, "CLUSTER": 1, "FFMA_ORDER": 0, "A_FIRST": 0,
                      "CHUNKED": 0, "ONE_TILE": 0, "COPY_GROUPS": 1, "ACCUMULATIONS": 1, "TRANS_C": 0}
    assert {type(value) for value in macros.values()} == {int}


@pytest.mark.parametrize(("config", "label"), [
    (Config(64, 32, 16, 4, 2), "64x32x16/4x2"),
    (Config(64, 32, 16, 4, 2, stages=0), "64x32x16/4x2"),
    (Config(64, 32, 16, 4, 2, stages=3), "64x32x16/4x2 3st"),
    (Config(64, 32, 16, 4, 2, stages=2, fragments=2), "64x32x16/4x2 2st db"),
    (Config(64, 32, 16, 4, 2, split=0), "64x32x16/4x2 stream-K"),
])
def test_config_label(config: Config, label: str) -> None:
    assert config.label() == label


def test_config_json_of_library_fields() -> None:
    plain, library = Config(8, 8, 8, 1, 1), Config(8, 8, 8, 1, 1, producers=128, slices=2, split=0,
                                                             ffma_order=FfmaOrder.COLUMNS, one_tile=True)
    assert not {"producers", "registers", "slices", "split", "ffma_order", "one_tile"} & plain.to_json().keys()
    assert Config(**json.loads(json.dumps(library.to_json()))) == library
    assert library.to_json()["split"] == 0 and library.to_json()["ffma_order"] == 2
    with pytest.raises(InvalidValue, match="ffma_order = 3 must be 0 to 2: ROWS, ROWS_REVERSED, COLUMNS"):
        replace(plain, ffma_order=3)


def test_config_round_trips_through_json() -> None:
    config = Config(128, 256, 16, 8, 16, stages=3, fragments=2, raster=8, aligned=True)
    assert Config(**json.loads(json.dumps(config.to_json()))) == config


MAY_BE_ZERO = ("stages", "aligned", "producers", "registers", "split", "ffma_order", "a_first", "chunked", "one_tile",
               "trans_c", "handed")


@pytest.mark.parametrize("name", MAY_BE_ZERO)
def test_config_fields_are_not_negative(name: str) -> None:
    with pytest.raises(InvalidValue, match=f"{name} = -1 must be an integer of at least 0"):
        Config(**{"bm": 8, "bn": 8, "bk": 8, "tm": 1, "tn": 1, name: -1})


@pytest.mark.parametrize("name", [f.name for f in fields(Config) if f.name not in MAY_BE_ZERO])
def test_config_fields_are_positive(name: str) -> None:
    whole = {"bm": 8, "bn": 8, "bk": 8, "tm": 1, "tn": 1}
    with pytest.raises(InvalidValue, match=f"{name} = 0 must be an integer of at least 1"):
        Config(**{**whole, name: 0})


@pytest.mark.parametrize("value", [8.0, 2.5, float("nan"), "8", None])
def test_config_fields_are_integers(value: object) -> None:
    with pytest.raises(InvalidValue, match=r"bk = .* must be an integer"):
        Config(8, 8, value, 1, 1)

"""The nouns: what a Problem and a Config accept, and what they say of themselves."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from peakgemm.kernels.emulated.schemes import TensorConfig
from peakgemm.kernels.ffma.chain import ChainConfig
from peakgemm.kernels.ffma.skinny import SkinnyConfig
from peakgemm.kernels.ffma.small import SMALL, SmallConfig
from peakgemm.kernels.ffma.specialised import FfmaOrder, SpecialisedConfig
from peakgemm.kernels.ffma.staged import StagedConfig
from peakgemm.kernels.ffma.wide import WideConfig
from peakgemm.kernels.rung import RungConfig
from peakgemm.kernels.validity import violations
from peakgemm.problem import MAX_SIZE, Config, Problem, varied
from peakgemm.runtime.architectures import architecture


def test_contiguous() -> None:
    p = Problem.contiguous(3, 5, 7, alpha=2.0, beta=-1.0)
    assert (p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.alpha, p.beta) == (3, 5, 7, 7, 5, 5, 2.0, -1.0)
    assert p.alignment == (16, 16, 16)
    assert p.flops == 210


@pytest.mark.parametrize(("numbers", "says"), [
    ((-1, 1, 1, 9, 9, 9), "M = -1"), ((1, -2, 1, 9, 9, 9), "N = -2"), ((1, 1, -3, 9, 9, 9), "K = -3"),
    ((MAX_SIZE + 1, 1, 1, 9, 9, 9), f"M = {MAX_SIZE + 1} is outside 0..{MAX_SIZE}"),
    ((2.5, 1, 1, 9, 9, 9), "M = 2.5 must be an integer"), ((1, "7", 1, 9, 9, 9), "N = '7' must be an integer"),
    ((3, 5, 7, 6, 5, 5), "lda = 6 is shorter than its row of 7 elements"),
    ((3, 5, 7, 7, 4, 5), "ldb = 4 is shorter than its row of 5 elements"),
    ((3, 5, 7, 7, 5, 4), "ldc = 4 is shorter than its row of 5 elements"),
    ((3, 5, 7, 7, 5.5, 5), "ldb = 5.5 must be an integer"),
])
def test_refused(numbers: tuple, says: str) -> None:
    with pytest.raises(InvalidValue) as error:
        Problem(*numbers)
    assert says in str(error.value)
    assert Problem.contiguous(MAX_SIZE, 1, 1).m == MAX_SIZE


def test_numpy_integers_become_python_ones() -> None:
    p = Problem.contiguous(np.int64(3), np.int32(5), np.uint8(7))
    assert [type(x) for x in (p.m, p.n, p.k, p.lda)] == [int] * 4
    assert json.dumps(Config(np.int64(64), 64, 16, 4, 4).to_json())


KINDS = [RungConfig, SpecialisedConfig, StagedConfig, WideConfig, SmallConfig, SkinnyConfig, ChainConfig, TensorConfig]


def test_config_macros() -> None:
    rung = RungConfig(128, 64, 16, 8, 4, stages=3, fragments=2, raster=8, min_blocks=2, aligned=True).macros()
    assert rung == {"BM": 128, "BN": 64, "BK": 16, "TM": 8, "TN": 4, "STAGES": 3, "FRAGMENTS": 2, "RASTER": 8,
                    "MIN_BLOCKS": 2, "PASSES": 1, "ALIGNED": 1, "PRODUCERS": 0, "REGISTERS": 0}
    small = SmallConfig(32, 32, 8, 4, 4, slices=2, chunked=True).macros()
    assert small == {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4, "RASTER": 1, "STAGES": 1, "MIN_BLOCKS": 1,
                     "SLICES": 2, "CHUNKED": 1, "FRAGMENT_STEPS": 4, "CHUNK_STEPS": 8}
    assert {type(value) for value in (*rung.values(), *small.values())} == {int}


@pytest.mark.parametrize(("config", "label"), [
    (RungConfig(64, 32, 16, 4, 2), "64x32x16/4x2"),
    (RungConfig(64, 32, 16, 4, 2, stages=0), "64x32x16/4x2"),
    (RungConfig(64, 32, 16, 4, 2, stages=3), "64x32x16/4x2 3st"),
    (RungConfig(64, 32, 16, 4, 2, stages=2, fragments=2), "64x32x16/4x2 2st db"),
    (StagedConfig(64, 32, 16, 4, 2, split=0), "64x32x16/4x2 2st stream-K"),
    (SpecialisedConfig(64, 32, 16, 4, 2, slices=2, cluster=4), "64x32x16/4x2 db 2sl 4cl"),
    (WideConfig(64, 32, 16, 4, 2, split=0, handed=True), "64x32x16/4x2 handed-on stream-K"),
    (SkinnyConfig(64, 32, 16, 4, 2, split=3), "64x32x16/4x2 split-K 3"),
])
def test_config_label(config: Config, label: str) -> None:
    assert config.label() == label


@pytest.mark.parametrize("kind", KINDS)
def test_config_round_trips_through_json(kind: type[Config]) -> None:
    """With fields that are set and without; what JSON of all families has, a family without the field leaves out."""
    set_fields = {f.name: 1 for f in fields(kind) if f.default is not MISSING}
    for config in (kind(128, 256, 16, 8, 16), kind(128, 256, 16, 8, 16, **set_fields)):
        found = json.loads(json.dumps(config.to_json()))
        assert kind.from_json(found) == config
        assert {"bm", "bn", "bk", "tm", "tn", "stages", "fragments", "raster", "min_blocks", "passes",
                "aligned"} <= found.keys()
        assert kind.from_json(config.set_fields()) == config
    with pytest.raises(TypeError, match="unknown"):
        kind.from_json({**found, "unknown": 1})


def test_a_config_of_another_kernel_is_none() -> None:
    plain = SmallConfig(32, 32, 32, 4, 4, slices=2)
    assert "a SkinnyConfig" in violations(SMALL, SkinnyConfig(32, 32, 32, 4, 4), architecture("sm_90"))[0]
    assert varied(plain, split=1, handed=False) is plain  # as it is already, though without the fields
    with pytest.raises(TypeError):
        varied(plain, split=2)


@pytest.mark.parametrize(("kind", "name", "least"), [
    (kind, f.name, 0 if isinstance(f.default, (bool, FfmaOrder)) or f.name in
     ("stages", "producers", "registers", "split") else 1) for kind in KINDS for f in fields(kind)])
def test_config_fields_have_a_least_value(kind: type[Config], name: str, least: int) -> None:
    whole = {"bm": 8, "bn": 8, "bk": 8, "tm": 1, "tn": 1}
    with pytest.raises(InvalidValue, match=f"{name} = {least - 1} must be an integer of at least {least}"):
        kind(**{**whole, name: least - 1})
    kind(**{**whole, name: least})


def test_orders_have_names() -> None:
    with pytest.raises(InvalidValue, match="ffma_order = 3 must be 0 to 2: ROWS, ROWS_REVERSED, COLUMNS"):
        SpecialisedConfig(8, 8, 8, 1, 1, ffma_order=3)


@pytest.mark.parametrize("value", [8.0, 2.5, float("nan"), "8", None])
def test_config_fields_are_integers(value: object) -> None:
    with pytest.raises(InvalidValue, match=r"bk = .* must be an integer"):
        Config(8, 8, value, 1, 1)

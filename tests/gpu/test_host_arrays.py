"""Host arrays in tiles, files and collectives on the machine's GPUs, against NumPy in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from lab.scale import scale
from lab.scale.host import drawn, error_of
from peakgemm.calls.host import multi_gpu
from peakgemm.calls.host.grid import Grid, cuts
from peakgemm.calls.request import Request
from peakgemm.runtime import device


def every() -> list[list[int]]:
    return [[0], list(range(device.count()))]


@pytest.mark.parametrize("precision", ["ieee", "emulated"])
@pytest.mark.parametrize("size", [33, 700, 3001])
def test_squares(size: int, precision: str) -> None:
    a, b = drawn(size, 1), drawn(size, 2)
    results = [pg.matmul(a, b, precision=precision, devices=devices) for devices in (None, *every())]
    assert max(error_of(a, b, c) for c in results) < 50
    assert (results[1] == results[2]).all()


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
def test_tiles_of_every_layout(precision: str) -> None:
    """Panels split once, as a product splits them."""
    if precision == "fp16x3" and int(device.require(0).arch[3:]) < 80:
        pytest.skip("needs sm_80")
    rng = np.random.default_rng(0)
    for layout in ("NN", "NT", "TN", "TT"):
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((1100, 640), (640, 900)))
        x, y = (np.asfortranarray(m) if letter == "T" else m for m, letter in zip((a, b), layout, strict=True))
        out, c = np.full((1100, 900), np.nan, np.float32), rng.standard_normal((1100, 900)).astype(np.float32)
        for devices in every():
            gpus = [device.require(i) for i in devices]
            tiles = Grid(cuts(1100, 256), cuts(900, 256))
            multi_gpu.run(Request(x, y, c, out, 1.0, -1.0, precision=precision), gpus, tiles)
            assert error_of(a, b, out + c) < 100, layout


@pytest.mark.parametrize("precision", ["ieee", "emulated"])
@pytest.mark.parametrize(("count", "m", "n", "k"), [(3, 100, 70, 50), (5000, 40, 32, 24), (40, 600, 500, 700),
                                                    (7, 2100, 1900, 1500), (2, 2100, 1900, 1500)])
def test_batches(count: int, m: int, n: int, k: int, precision: str) -> None:
    """In one launch, in groups, whole and in tiles; twice, for what is kept serves another product."""
    rng = np.random.default_rng(count)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((count, m, k), (count, k, n)))
    bias, picked = rng.standard_normal(n, np.float32), [0, count // 2, count - 1]
    for _ in range(2):
        for devices in (None, *every()):
            own = pg.matmul(a, b, precision=precision, devices=devices)
            shared = pg.gemm(a, b[0], bias, precision=precision, devices=devices)
            turned = pg.matmul(a.swapaxes(1, 2).copy().swapaxes(1, 2), np.asfortranarray(b[0]), precision=precision)
            for i in picked:
                assert error_of(a[i], b[i], own[i]) < 50
                assert error_of(a[i], b[0], shared[i] - bias) < 500  # whose rounding is the sum's
                assert error_of(a[i], b[0], turned[i]) < 50
    ready = pg.prepare(b[0])
    assert error_of(a[1], b[0], pg.matmul(a, ready)[1]) < 50


def test_pinned_tensors() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    a, b = (torch.from_numpy(drawn(2000, i)).pin_memory() for i in (1, 2))
    out = torch.empty(2000, 2000, pin_memory=True)
    assert pg.matmul(a, b, out=out) is out
    assert error_of(a.numpy(), b.numpy(), out.numpy()) < 50
    assert error_of(a.numpy(), b.numpy(), pg.matmul(a, b.T.contiguous().T).numpy()) < 50


def test_files(tmp_path: Path) -> None:
    a, b = drawn(1500, 1), drawn(1500, 2)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    for devices in every():
        pg.multiply_files(tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "c.npy", devices=devices, overwrite=True,
                          blocks=(512,))
        assert error_of(a, b, np.load(tmp_path / "c.npy")) < 50


@pytest.mark.skipif(device.count() < 2, reason="needs two GPUs")
def test_collectives() -> None:
    found: Any = scale.measure_ranks(2, ["ieee", "emulated"], True, 150)
    assert "errors" not in found, found["errors"]
    assert {name: part["error"] for name, part in found["parts"].items() if "error" in part} == {}

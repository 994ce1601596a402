"""``reproducible=True``: chains on a CPU against exact arithmetic, what asks for it, what refuses, what is chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from peakgemm.errors import InvalidType, InvalidValue, MissingComponent
from peakgemm.fma import Chain, fma32
from peakgemm.problem import Batch, Problem
from peakgemm.runtime.architectures import ARCHITECTURES
from peakgemm.selection.choose import choose
from peakgemm.tools.accuracy import reproducible
from peakgemm.tools.accuracy.arrays import Numpy, Torch
from peakgemm.tools.accuracy.contenders import NAMES, make

H100 = "NVIDIA H100 80GB HBM3"


def rounded(x: Fraction) -> np.float32:
    """``x`` to the nearest float32, ties to even, by exact comparison with its neighbours."""
    near = np.float32(float(x))
    beside = [np.nextafter(near, np.float32(way)) for way in (np.inf, -np.inf)]
    each = {float(y): y for y in (near, *beside)}
    best = min(each, key=lambda y: (abs(Fraction(y) - x), int(each[y].view(np.uint32)) & 1))
    return each[best]


def test_fma_is_rounded_once() -> None:
    """Where a float64 sum is a tie of float32 that was none, among subnormal results, and drawn at random."""
    one = np.float32(1)
    tie = np.float32(1 + 2.0**-23), np.float32(2.0**-24), np.float32(2.0**-60)
    cases = [(tie[1], one, tie[0]), (np.float32(1 + 2.0**-12), np.float32(1 - 2.0**-12), np.float32(2.0**-25)),
             (np.float32(2.0**-75), np.float32(1.5 * 2.0**-75), np.float32(2.0**-149)),
             (np.float32(2.0**-149), np.float32(0.5), np.float32(2.0**-149)),
             (np.float32(2.0**-60), np.float32(2.0**-24 * (1 + 2.0**-20)), tie[0])]
    rng = np.random.default_rng(0)
    for _ in range(400):
        values = np.ldexp(rng.standard_normal(3), rng.integers(-30, 3, 3)).astype(np.float32)
        values[1] = np.float32(2.0 ** rng.integers(-26, -20)) if rng.random() < 0.5 else values[1]
        cases.append((values[0], values[1], values[2]))
    for a, b, c in (*cases, *((-a, b, -c) for a, b, c in cases)):
        want = rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))
        chain = Chain((1, 1))
        chain.sums[...] = c
        chain.add(np.full((1, 1), float(a)), np.full((1, 1), float(b)))
        assert chain.sums[0, 0] == want and fma32(np.array([a]), np.array([b]), np.array([c]))[0] == want


def test_replay_is_one_chain() -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(shape, np.float32) for shape in ((2, 5, 37), (37, 300), (5, 300)))
    sums = np.zeros((2, 5, 300), np.float32)
    for k in range(37):
        sums = fma32(a[..., k, None], b[None, None, k], sums)
    want = fma32(np.broadcast_to(np.float32(-0.5), sums.shape), np.broadcast_to(c, sums.shape), np.float32(1.5) * sums)
    got = pg.replay(a, b, c, alpha=1.5, beta=-0.5)
    assert (got.view(np.uint32) == want.view(np.uint32)).all()
    assert (pg.replay(a.swapaxes(1, 2), np.asfortranarray(b).T, c, alpha=1.5, beta=-0.5, trans_a=True, trans_b=True)
            == got).all()
    assert (pg.replay(a[1, 2:3], b[:, 7:9], c[2:3, 7:9], alpha=1.5, beta=-0.5) == got[1, 2:3, 7:9]).all()
    assert (pg.matmul(a, b, reproducible=True) == sums).all()
    ones, nans = np.ones((3, 2), np.float32), np.array([[0x7FC01234] * 3] * 2, np.uint32).view(np.float32)
    for got, bits in ((pg.replay(nans, ones), 0x7FFFFFFF), (pg.replay(nans, ones, alpha=0.0), 0),  # a GPU's NaN
                      (pg.replay(ones.T, ones, alpha=-0.0), 0)):
        assert (got.view(np.uint32) == bits).all()


def test_who_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peakgemm.runtime.device.find", lambda index=None: None)
    a, b = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
    for asked, precision, kernel, path in ((True, "reproducible", "peakgemm.replay", "replay"),
                                           (np.True_, "reproducible", "peakgemm.replay", "replay"),
                                           (False, "ieee", "numpy.matmul", "numpy")):
        said, plan = pg.explain(a, b, reproducible=asked), pg.plan(a, b, reproducible=asked)
        assert (plan.execute(a, b) == pg.matmul(a, pg.prepare(b, reproducible=asked), reproducible=asked)).all()
        assert (said.product, said.precision, said.kernel, plan.last_path()) == ("3 x 2 x 4", precision, kernel, path)
    for call in (pg.matmul, pg.gemm, pg.plan, pg.explain, lambda a, b, **more: pg.prepare(b, **more)):
        for precision in ("emulated", "fp16x3"):
            with pytest.raises(InvalidValue, match=f"precision = '{precision}' with reproducible=True: its guard"):
                call(a, b, precision=precision, reproducible=True)
    for call in (pg.matmul, pg.gemm, pg.plan, pg.explain):
        for odd in ("no", 1):
            with pytest.raises(InvalidType, match=f"reproducible = {odd!r} is a {type(odd).__name__}; pass True"):
                call(a, b, reproducible=odd)


def test_the_environment_asks_for_all() -> None:
    script = """
import numpy as np, peakgemm as pg
a, b = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
assert pg.explain(a, b).precision == "reproducible" and pg.matmul(a, b).shape == (3, 2)
assert pg.explain(a, b, reproducible=False).precision == "ieee"
pg.matmul(a, b, precision="emulated")
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          env=os.environ | {"PEAKGEMM_REPRODUCIBLE": "1"})
    assert "InvalidValue" in told.stderr and "PEAKGEMM_REPRODUCIBLE=1" in told.stderr, told.stderr


@pytest.mark.parametrize("arch", [name for name in ARCHITECTURES if int(name[3:]) >= 75])
def test_every_choice_is_a_chain(arch: str) -> None:
    rng = np.random.default_rng(2)
    for number in range(30):
        m, n, k = (int(2 ** rng.uniform(0, 12)) for _ in range(3))
        ta, tb = bool(number & 1), bool(number & 2)
        batch = Batch((7,), (m * k,), (k * n,), (m * n,), (m * n,)) if number % 5 == 0 else Batch()
        problem = Problem(m, n, k, m if ta else k, k if tb else n, n, trans_a=ta, trans_b=tb, batch=batch,
                          alignment=(16, 16, 16) if number % 3 else (4, 4, 4))
        found = choose(problem, arch, 132, H100 if arch == "sm_90" else "", "reproducible")
        assert found.kernel.is_ascending(found.config, problem), problem
        assert "one chain" in found.reason


def test_verify_finds_what_breaks_the_promise() -> None:
    cases = [case for case in reproducible.draw(60, 3) if case.m * case.n * case.k < 200_000 and case.k > 8][:12]
    assert len(cases) == 12 and {case.kind for case in cases} >= {"normal", "tiny"}
    arrays = Numpy()
    assert not [what for case in cases for what in reproducible.check(case, pg.replay, arrays)]

    pytest.importorskip("torch", reason="needs torch")
    assert not [what for case in cases[:6] for what in reproducible.check(case, pg.replay, Torch("cpu"))]

    def pairs(a: Any, b: Any, c: Any, *, alpha: float, beta: float) -> Any:
        """Sums of two halves of K, as split-K makes them."""
        half = a.shape[-1] // 2
        first = pg.replay(a[..., :half], b[..., :half, :], c, alpha=alpha, beta=beta)
        return first + pg.replay(a[..., half:], b[..., half:, :], alpha=alpha)

    broken = {str(case) for case in cases for what in reproducible.check(case, pairs, arrays) if "replay" in what}
    assert len(broken) >= 6

    def crowded(a: Any, b: Any, c: Any, *, alpha: float, beta: float) -> Any:
        """Other bits where there is more than one row."""
        return pg.replay(a, b, c, alpha=alpha, beta=beta) if a.shape[-2] > 1 else pairs(a, b, c, alpha=alpha, beta=beta)

    found = [what for case in cases for what in reproducible.check(case, crowded, arrays)]
    assert any("alone differs" in what for what in found)


def test_precisions() -> None:
    each = pg.precisions()
    assert {x.library for x in each} == {"peakgemm", "torch", "jax", "cublas"}
    assert pg.precisions("JAX") == pg.precisions("jax") and pg.precisions("cuBLAS") == pg.precisions("cublas")
    for bad in ("bogus", 3, ""):
        with pytest.raises(InvalidValue, match=f"library = {bad!r} .*'peakgemm', 'torch', 'jax', 'cublas', or None"):
            pg.precisions(bad)  # type: ignore[arg-type]
    assert all(x.name in NAMES for x in each if x.measurable)


def test_contenders_by_name_need_their_library_and_place() -> None:
    with pytest.raises(MissingComponent, match="torch:tf32 runs on a GPU"):
        make("torch:tf32", Numpy())
    pytest.importorskip("jax", reason="needs jax")
    a, b = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
    assert (make("jax:highest", Numpy()).multiply(a, b) == 4).all()
    with pytest.raises(MissingComponent, match=r"jax:TF32_TF32_F32: jax [0-9.]+ does not run it on the CPU"):
        make("jax:TF32_TF32_F32", Numpy())


def test_cases_of_verify_reach_every_kernel_of_one_chain() -> None:
    found = set()
    for case in reproducible.draw(1000, 3):
        ta, tb = case.turned
        problem = Problem(case.m, case.n, case.k, case.m if ta else case.k, case.k if tb else case.n, case.n,
                          trans_a=ta, trans_b=tb)
        choice = choose(problem, "sm_90", 132, H100, "reproducible")
        found.add((choice.kernel.name, choice.config.handed))
    assert {("chain", False), ("small", False), ("specialised", False), ("specialised", True)} <= found

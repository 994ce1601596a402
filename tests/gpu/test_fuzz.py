"""Drawn products on torch CUDA tensors through the public calls, against FP64 on the GPU.

PEAKGEMM_FUZZ_CASES sets how many (2,000); PEAKGEMM_FUZZ_SEED where the drawing starts.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

import api_cases
import peakgemm as pg

torch = pytest.importorskip("torch")

CASES = int(os.environ.get("PEAKGEMM_FUZZ_CASES", "2000"))
SEED = int(os.environ.get("PEAKGEMM_FUZZ_SEED", "1"))
SMALL = api_cases.SIZES
LARGE = (1, 31, 64, 65, 127, 128, 129, 200, 255, 257, 384)


def tensor(flat: Any, shape: tuple[int, ...], where: api_cases.Layout) -> Any:
    return torch.as_strided(flat, shape, where.strides, where.offset)


class Run:
    """One case in the GPU's memory, every float of which is random, NaN or a sentinel before the call."""

    def __init__(self, case: api_cases.Case) -> None:
        self.case = case
        if case.integers:
            case.alpha = -2.0 if case.alpha == -1.5 else case.alpha
            case.beta = -1.0 if case.beta == -0.5 else case.beta
        nan = float("nan")
        self.a = self._array("a", case.a, case.alpha != 0, nan)
        self.b = self._array("b", case.b, case.alpha != 0, nan)
        self.out = self._array("out", case.result, case.in_place and case.beta != 0, api_cases.SENTINEL) \
            if case.out else None
        self.flat_out = self.flat
        self.c = self.out if case.in_place else None
        if case.c is not None and not case.in_place:
            self.c = self._array("c", case.c, case.beta != 0, nan)
        self.before = None if self.c is None else self.c.double()
        self.outside = self._outside()

    def _array(self, name: str, shape: tuple[int, ...], values: bool, rest: float) -> Any:
        where = api_cases.lay(shape, self.case.layouts[name], self.case.pad)
        self.flat = torch.full((where.floats,), rest, device="cuda")
        x = tensor(self.flat, shape, where)
        if values:
            # Through the memory, since a broadcast view has fewer elements than its shape says.
            drawn = torch.randint(-8, 9, (where.floats,), device="cuda").float() if self.case.integers \
                else torch.randn(where.floats, device="cuda")
            touched = torch.zeros(where.floats, dtype=torch.bool, device="cuda")
            tensor(touched, shape, where).fill_(True)
            self.flat.copy_(torch.where(touched, drawn, self.flat))
        elif name == "out":
            x.fill_(float("nan"))
        return x

    def _outside(self) -> Any:
        if self.out is None:
            return None
        copy = self.flat_out.clone()
        tensor(copy, self.case.result, api_cases.lay(self.case.result, self.case.layouts["out"], self.case.pad)).zero_()
        return copy

    def call(self) -> Any:
        case = self.case
        if 1 in (len(case.a), len(case.b)):
            return pg.matmul(self.a, self.b, out=self.out)
        return pg.gemm(self.a, self.b, self.c, alpha=case.alpha, beta=case.beta, trans_a=case.trans_a,
                       trans_b=case.trans_b, out=self.out)

    def check(self, got: Any) -> None:
        case = self.case
        assert tuple(got.shape) == case.result and got.dtype is torch.float32, case
        assert self.out is None or (got is self.out and torch.equal(self.outside, self._outside())), f"outside: {case}"
        a = self.a.mT if case.trans_a else self.a
        b = self.b.mT if case.trans_b else self.b
        exact = torch.zeros(case.result, device="cuda", dtype=torch.float64)
        scale = torch.zeros_like(exact)
        if case.alpha:
            exact = exact + case.alpha * torch.matmul(a.double(), b.double())
            scale = scale + abs(case.alpha) * torch.matmul(a.double().abs(), b.double().abs())
        if case.beta:
            exact, scale = exact + case.beta * self.before, scale + abs(case.beta) * self.before.abs()
        bound = torch.zeros_like(scale) if case.integers else (case.k + 3) * api_cases.UNIT * scale
        # One transfer a case; a NaN is not within.
        assert bool(((got.double() - exact).abs() <= bound).all()), \
            f"off by {float(((got.double() - exact).abs() - bound).max())}: {case}"


def cases(count: int) -> Iterator[api_cases.Case]:
    rng = random.Random(SEED)
    for i in range(count):
        case = api_cases.draw(rng.choice, LARGE if i % 8 == 0 else SMALL)
        case.seed = i
        yield case


def test_drawn_products() -> None:
    started = time.perf_counter()
    torch.manual_seed(SEED)
    failures = []
    for case in cases(CASES):
        run = Run(case)
        try:
            run.check(run.call())
        except (AssertionError, pg.PeakgemmError) as error:
            failures.append(f"{type(error).__name__}: {error}")
            if len(failures) == 10:
                break
    seconds = time.perf_counter() - started
    print(f"\n{CASES} drawn products in {seconds:.0f} s, {CASES / seconds:.0f} a second, {len(failures)} failures")
    assert not failures, "\n".join(failures)

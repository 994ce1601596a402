"""Certificates whose checksums the simulator computes, beside NumPy's; and products of kernels with planted faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import peakgemm as pg
from linalg_case import LAYOUTS, Interpreter, normal
from peakgemm.certificate import check
from peakgemm.kernels.registry import rung
from peakgemm.linalg import call
from peakgemm.problem import Problem
from peakgemm.tools.simulator import run
from rung_code import arguments, launch
from seldom import exhaustive

NAN = np.float32(np.nan)
SEED = 0x123456789ABCDEF


def take_for_device(monkeypatch: pytest.MonkeyPatch) -> Interpreter:
    """From now on `certify` of NumPy arrays runs as if they lay on a device."""
    interpreter = Interpreter(monkeypatch)
    monkeypatch.setattr(check, "locate", call.locate)
    return interpreter


@pytest.mark.parametrize(("m", "n", "k", "batch", "layouts"), [
    (3, 5, 7, (), ("rows", "rows", "rows")), (70, 290, 33, (), ("columns", "rows", "padded")),
    (290, 20, 40, (), ("rows", "columns", "columns")), (33, 18, 9, (2,), ("columns", "padded", "rows")),
    (1, 300, 4, (), ("strided", "backwards", "strided")), (9, 1, 300, (), ("padded", "columns", "rows"))])
def test_checksums(monkeypatch: pytest.MonkeyPatch, m: int, n: int, k: int, batch: tuple[int, ...],
                   layouts: tuple[str, ...]) -> None:
    """Those of the kernels are those of NumPy."""
    a, b, c0 = normal(*batch, m, k), normal(k, n, seed=2), normal(*batch, m, n, seed=3)
    c = 2 * (a @ b) + c0
    a, b, c = (LAYOUTS[layout](x) for layout, x in zip(layouts, (a, b, c), strict=True))
    wrong = c.copy()
    wrong[..., m // 2, n // 2] += 1e3  # so that both sides are looked at
    options = {"alpha": 2, "c0": c0, "seed": SEED}
    wants = [pg.certify(a, b, each, **options) for each in (c, wrong)]
    take_for_device(monkeypatch)
    for each, want in zip((c, wrong), wants, strict=True):
        found = pg.certify(a, b, each, **options)
        assert found.ok == want.ok == (each is c) and found.seed == want.seed == SEED
        facts = [each._facts for each in (found, want)]
        assert (facts[0].located == facts[1].located).all() and facts[0].located.all() == (each is wrong)
        for lines, others in zip(facts[0][:3], facts[1][:3], strict=True):
            for x, y in zip(lines, others, strict=True):
                assert np.allclose(x, y, rtol=1e-12, atol=0, equal_nan=True)
        for x, y, threshold in zip(found._facts.residuals, want._facts.residuals, want._limits, strict=True):
            assert (np.isnan(y) | (abs(x - y) <= 1e-6 * threshold[..., None, :] + 1e-12 * abs(y))).all()
            assert not np.isfinite(y).any() or abs(y).max() > 1e-4 * threshold.max()  # or equal numbers say nothing
    assert (wants[1].rows == m // 2).any() and (wants[1].columns == n // 2).any()


@pytest.mark.parametrize("by_columns", [False, True])
def test_what_is_not_finite(monkeypatch: pytest.MonkeyPatch, by_columns: bool) -> None:
    """Rows of A and columns of B that are not finite are left out, and all others judged, faults in them found."""
    a, b = normal(40, 30), normal(30, 35, seed=2)
    a[7, 3], b[5, 11], b[6, 12] = NAN, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        c = a @ b
    c[9, 20] += 1
    c[10, 21] = NAN
    if by_columns:
        a, b, c = (LAYOUTS["columns"](x) for x in (a, b, c))
    cases = [pg.certify(a, b, c)]
    take_for_device(monkeypatch)
    cases += [pg.certify(a, b, c), pg.certify(b.T, a.T, c.T)]
    for case in cases:
        turned = case is cases[-1]
        rows, columns = (case.columns, case.rows) if turned else (case.rows, case.columns)
        skipped = case.unjudged[::-1] if turned else case.unjudged
        assert rows.tolist() == [9, 10] and columns.tolist() == [20, 21] and not case.ok
        assert skipped[0].tolist() == [7] and skipped[1].tolist() == [11, 12]


def test_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn on the device when it runs, one of all matrices of a batch; a seed that is read gives the same vectors."""
    take_for_device(monkeypatch)
    a, b = normal(3, 20, 6), normal(6, 20, seed=2)
    first = pg.certify(a, b, a @ b)
    assert first.ok and first.seed
    second = pg.certify(a, b, a @ b, seed=first.seed)
    assert all(np.array_equal(x, y, equal_nan=True)
               for x, y in zip(first.residuals, second.residuals, strict=True))


# Edits of rung 13's source: a fault of a thread's accumulator, a tile that is not stored, a stage read again in the
# place of the next, a fragment of the step before, and one of a neighbour's rows.
FAULTS = {
    "accumulator": ("  store_words<", "  if (blockIdx.x == 0 && threadIdx.x == 37) "
                    "acc[3][2] = __int_as_float(__float_as_int(acc[3][2]) ^ 1 << 27);\n  store_words<"),
    "lost tile": ("  store_words<", "  if (blockIdx.x == 0) return;\n  store_words<"),
    "stale stage": ("if (tiles > 1) read =", "if (tiles > 1 && !(tiles == 2)) read ="),
    "stale fragment": ("load((k + 1) % 2, read, k + 1);", "load((k + 1) % 2, read, k == 3 ? k : k + 1);"),
    "a neighbour's rows": ("const float* As = shared + mine.m;",
                           "const float* As = shared + (blockIdx.x == 0 && threadIdx.x == 5 ? mine.m + 1 : mine.m);"),
}


@pytest.mark.parametrize("fault", [*list(FAULTS)[:3], *map(exhaustive, list(FAULTS)[3:])])
def test_faults_of_a_kernel(fault: str) -> None:
    """A mutated kernel's product: rows and columns that hold errors above their thresholds are found, and no others."""
    kernel, m, n, k = rung(13), 133, 131, 40
    a, b = normal(m, k), normal(k, n, seed=2)
    config, problem = kernel.config_for("sm_90"), Problem.contiguous(m, n, k)
    made = launch(kernel, config, problem)
    results = []
    old, new = FAULTS[fault]
    assert made.recipe.text.count(old) == 1
    for text in (made.recipe.text, made.recipe.text.replace(old, new)):
        c = np.zeros((m, n), np.float32)
        code = replace(made.recipe, text=text).make("ptx")
        run(code, grid=made.blocks, block=made.threads, shared_bytes=made.shared_bytes, arch=code.arch,
            args=[a, b, c, *arguments(made)])
        results.append(c)
    right, wrong = (pg.certify(a, b, c, seed=SEED) for c in results)
    assert right.ok and not wrong.ok
    errors = abs(results[1] - results[0].astype(float))
    for own, threshold, located in zip((errors, errors.T), right.thresholds, (wrong.rows, wrong.columns), strict=True):
        off = np.flatnonzero(own.any(1))
        alone = ((own > 0).sum(1) == 1) & (own.max(1) > 2 * threshold)  # an error that nothing can cancel
        assert set(np.flatnonzero(alone)) <= set(located) <= set(off)
        assert len(located) >= 0.9 * len(off)

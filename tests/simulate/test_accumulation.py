"""Sums as tensor cores form them: by hand, and against whole numbers of any size."""

from fractions import Fraction

import numpy as np
import pytest

from peakgemm.tools.simulator import run
from peakgemm.tools.simulator.ops.accumulation import WIDTHS, Widths, accumulate
from simulator_cases import FIXTURES

HOPPER, HALVES, AMPERE = WIDTHS[90, "wgmma", "bf16"], WIDTHS[90, "wgmma", "f16"], WIDTHS[80, "mma", "f16"]
P = 2.0


def total(products, c, width=HOPPER):
    """``c`` plus products, each given as a pair of factors, or as a number to be multiplied by 1."""
    pairs = [p if isinstance(p, tuple) else (p, 1.0) for p in products]
    pairs += [(0.0, 0.0)] * (16 - len(pairs))
    a, b = (np.array([[[pair[i] for pair in pairs]]], "f8") for i in (0, 1))
    return float(accumulate(a, b, np.array([[[c]]], "f8"), width)[0, 0, 0])


@pytest.mark.parametrize(("products", "c", "want"), [
    ([P**-24, P**-24], 1.0, 1 + P**-23),  # two extra bits: halves of the last place are kept,
    ([P**-25] * 4, 1.0, 1 + P**-23),  # and quarters,
    ([P**-26] * 16, 1.0, 1.0),  # but not eighths, however many
    ([P**-25] * 3, 1.0, 1.0),  # and the sum is cut off, not rounded
    ([-(P**-24)], -1.0, -1.0),  # toward zero
    ([-(P**-25)] * 3, -1.0, -1.0),
    ([-(P**-24)], 1.0, 1 - P**-24),
    ([-(P**-25)], 1.0, 1 - P**-24),  # 1 - 2^-25, cut off
    ([-(P**-26)], 1.0, 1.0),  # cut off before it is added
    ([1.0, -1.0, P**-25], 0.0, P**-25),  # cancellation leaves what was kept
    ([1.0, -1.0, P**-26], 0.0, 0.0),
    ([(P**12, P**12), 0.5], -(P**24), 0.5),
    ([(P**12, P**12), 0.25], -(P**24), 0.0),
    ([(1.5, 1.5), (-1.5, 1.5), P**-25], 0.0, P**-25),  # 2.25 counts as below 2
    ([1.0, -1.0, 1.75 * P**-25], 0.0, P**-25),  # a part of a term is cut off
    ([1.0, -1.0, -1.75 * P**-25], 0.0, -(P**-25)),
    ([0.0], 3.0, 3.0), ([], 0.0, 0.0), ([P**-130], P**-140, P**-130 + P**-140),
    ([P**-140, P**-149], 0.0, P**-140 + P**-149), ([P**-149, P**-151], 0.0, P**-149),
    ([P**-100 * 1.5, (P**-100, P**-30)], 0.0, P**-100 * 1.5),
])
def test_by_hand(products, c, want):
    assert total(products, c) == want
    assert total(products[::-1], c) == want  # in any order


def test_infinities_and_nan():
    inf = float("inf")
    assert total([(inf, 2.0), 1.0], 0.0) == inf and total([(-inf, 2.0)], 1e30) == -inf and total([1.0], inf) == inf
    assert all(np.isnan(total(*case)) for case in [([(inf, 1.0), (-inf, 1.0)], 0.0), ([(inf, 0.0)], 1.0), ([inf], -inf),
                                                   ([float("nan")], 0.0), ([1.0], float("nan"))])


LATER = [-1.0] + [0.0] * 7 + [P**-30]  # Ampere adds it when the rest has cancelled


@pytest.mark.parametrize(("products", "c", "width", "want"), [
    ([P**-25] * 4, 1.0, HOPPER, 1 + P**-23), ([P**-25] * 4, 1.0, AMPERE, 1.0),
    ([P**-24] * 2, 1.0, AMPERE, 1 + P**-23), (LATER, 1.0, AMPERE, P**-30), (LATER, 1.0, HOPPER, 0.0),
    (LATER[:1] + LATER[8:], 1.0, AMPERE, 0.0),
    # A subnormal half counts as if it were none: aligned to 2^-14, 2^-39 is the last bit kept.
    ([P**-24, (P**-24, P**-16)], 0.0, HALVES, P**-24), ([P**-24, (P**-24, P**-16)], 0.0, HOPPER, P**-24 + P**-40)])
def test_generations_differ_in_bits_and_in_products_at_a_time(products, c, width, want):
    assert total(products, c, width) == want


def exponent(x):
    return -10000 if x == 0 else int(np.frexp(x)[1]) - 1


def by_fractions(a, b, c, width):
    """The definition, one element after the other."""
    for start in range(0, len(a), width.step):
        pairs = list(zip(a[start:start + width.step], b[start:start + width.step], strict=True))
        top = max([exponent(c), -126, *[exponent(x) + exponent(y) for x, y in pairs]])
        unit = Fraction(2) ** (top - 23 - width.extra)
        whole = sum(int(term / unit) for term in [Fraction(c), *[Fraction(x) * Fraction(y) for x, y in pairs]])
        result = whole * unit
        if result:
            size = Fraction(2) ** (max(exponent(float(result)), -126) - 23)  # float() is exact: few bits are left
            result = int(result / size) * size
        c = float(result)
    return c


@pytest.mark.parametrize("width", [*sorted(set(WIDTHS.values()), key=str), Widths(32, 0)])
@pytest.mark.parametrize("spread", [1, 8, 40])
def test_against_whole_numbers(width, spread):
    rng = np.random.default_rng(spread)
    scale = 2.0 ** rng.integers(-spread, spread + 1, (2, 4, 32))
    a = (rng.standard_normal((2, 4, 32)).astype("f2") * scale).astype("f4")
    b = rng.standard_normal((2, 5, 32)).astype("f2")
    c = (rng.standard_normal((2, 4, 5)) * 2.0**rng.integers(-spread, spread + 1, (2, 4, 5))).astype("f4")
    got = accumulate(a.astype("f8"), b.astype("f8"), c.astype("f8"), width)
    for g, i, j in np.ndindex(2, 4, 5):
        assert got[g, i, j] == by_fractions(a[g, i].tolist(), b[g, j].tolist(), float(c[g, i, j]), width)


def test_the_architecture_decides():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((16, 64)).astype("f2"), rng.standard_normal((8, 64)).astype("f2")
    for arch, row in ("sm_80", (80, "mma", "f16")), ("sm_86", (80, "mma", "f16")), ("sm_90", (90, "mma", "f16")):
        c = np.zeros((16, 8), "f4")
        run(FIXTURES / "foreign.cu", entry="mma_gemm", grid=1, block=32, arch=arch, args=[a, b, c, 16, 8, 64])
        want = accumulate(a[None].astype("f8"), b[None].astype("f8"), np.zeros((1, 16, 8)), WIDTHS[row])
        assert (c == want[0]).all()

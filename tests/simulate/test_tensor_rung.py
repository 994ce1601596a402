"""Rung 18, FP32 accuracy from the tensor cores: edges, accuracy and races, through the simulator."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from peakgemm.kernels.registry import rung
from peakgemm.tools.simulator import run_rung
from peakgemm.tools.simulator.core import floats
from rung_changes import changed, window

RUNG = rung(18)
EPS = 2.0**-23
SENTINEL = np.float32(-777.25)


def errors(a, b, c, before=0.0, alpha=1.0, beta=0.0):
    """Componentwise, in eps (|alpha| |A||B| + |beta| |C|)."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    exact = alpha * (a @ b) + beta * before
    scale = abs(alpha) * (abs(a) @ abs(b)) + abs(beta * before)
    return abs(c - exact) / np.maximum(EPS * scale, 1e-300)


def bound(k):
    """Of a chain of FMAs, and what the split adds."""
    return (k + 3) / 2 + RUNG.rounding


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (127, 129, 63), (129, 1, 65), (2, 131, 257), (128, 128, 384),
                                           (33, 200, 7)])
@pytest.mark.parametrize(("alpha", "beta", "pad"), [(1.0, 0.0, 0), (-0.5, 2.0, 3)])
def test_edges(m, n, k, alpha, beta, pad):
    draw = np.random.RandomState(m + 3 * n + 7 * k)
    _, a = window(draw, m, k, k + pad, np.nan)  # NaN beside the operands: what is read there shows
    _, b = window(draw, k, n, n + pad, np.nan)
    whole, c = window(draw, m, n, n + pad, SENTINEL)
    if beta == 0:
        c[:] = np.nan
    before = c.astype(np.float64) if beta else 0.0
    outside = whole.copy()
    report = run_rung(RUNG, a, b, c, alpha=alpha, beta=beta)
    assert report.clean, str(report)
    assert errors(a, b, c, before, alpha, beta).max() <= bound(k)
    outside[1:m + 1, :n] = c
    assert outside.tobytes() == whole.tobytes()


@pytest.mark.parametrize("number", [15, 18])
@pytest.mark.parametrize(("alpha", "k", "n"), [(0.0, 70, 3), (0.0, 64, 4), (1.0, 0, 4)])
def test_nothing_to_multiply(number, alpha, k, n):
    """Of rungs whose own warps copy: none waits for what never comes."""
    a, b = np.full((130, k), np.nan, np.float32), np.full((k, n), np.nan, np.float32)
    c = np.ones((130, n), np.float32)
    assert run_rung(number, a, b, c, alpha=alpha, beta=0.5).clean
    assert (c == 0.5).all()


def test_integers_come_out_exactly():
    draw = np.random.RandomState(5)
    a, b = (draw.randint(-8, 9, shape).astype(np.float32) for shape in ((130, 200), (200, 129)))
    c = np.full((130, 129), np.nan, np.float32)
    run_rung(RUNG, a, b, c)
    assert (c == a @ b).all()


def chain(a, b):
    """The error of one FMA after another: what the other rungs compute."""
    acc = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        acc = floats.fma32(*np.broadcast_arrays(a[:, k, None], b[k][None]), acc)
    return errors(a, b, acc)


@pytest.mark.parametrize("family", ["normal", "uniform", "scaled", "cancelling"])
def test_more_accurate_than_a_chain_of_fmas(family):
    draw = np.random.RandomState(11)
    m, n, k = 40, 60, 768
    a, b = draw.standard_normal((m, k)), draw.standard_normal((k, n))
    if family == "uniform":
        a, b = draw.random_sample((m, k)), draw.random_sample((k, n))
    elif family == "scaled":  # rows and columns far apart: each has its own power of two
        a, b = a * 2.0 ** draw.randint(-55, 56, (m, 1)), b * 2.0 ** draw.randint(-55, 56, (1, n))
    elif family == "cancelling":
        a[:, k // 2:], b[k // 2:] = a[:, :k // 2], -b[:k // 2]
    a, b, c = a.astype(np.float32), b.astype(np.float32), np.full((m, n), np.nan, np.float32)
    run_rung(RUNG, a, b, c)
    ours, theirs = errors(a, b, c), chain(a, b)
    assert ours.max() <= theirs.max() and ours.mean() <= theirs.mean()


# ---- the source with something forgotten: the checks above can fail -----------------------------


def forgotten(*edits):
    """Kinds of fault, and the largest error; five chunks, so the ring goes round."""
    draw = np.random.RandomState(3)
    a, b = (draw.standard_normal(s).astype(np.float32) for s in ((128, 320), (320, 128)))
    kinds, c = changed(RUNG, edits, a, b)
    return kinds, errors(a, b, c).max()


def test_nothing_changed():
    kinds, error = forgotten()
    assert not kinds and error < 2


RELEASE = "if (lane == 0) mbarrier_arrive(empty + 8 * stage);\n"


@pytest.mark.parametrize(("kind", "edits"), [
    ("async_proxy", [("      fence_for_async_proxy();\n", "")]),
    ("deadlock", [("      mbarrier_wait(empty + 8 * stage, parity ^ 1);\n", "")]),  # the loaders lap the phases
    ("shared_race", [("    mbarrier_wait(full + 8 * stage, parity);\n", "")]),
    ("shared_race", [(f"    __syncwarp();\n    {RELEASE}", ""),
                     ("    wgmma_wait<0>();\n", f"{RELEASE}wgmma_wait<0>();\n")]),
    ("wgmma_registers", [("    wgmma_wait<0>();\n", "")]),
    ("deadlock", [("if (lane == 0) mbarrier_arrive(full + 8 * stage);", "")]),
], ids=["no fence", "no wait for empty", "no wait for full", "released too early", "no wait for wgmma", "never full"])
def test_forgotten_synchronisation_is_found(kind, edits):
    assert kind in forgotten(*edits)[0]


@pytest.mark.parametrize(("old", "new"), [
    ("fmaf(low[4 * i + e], 1.f / LOW_SCALE, high[4 * i + e])", "high[4 * i + e]"),  # one product instead of three
    ("(e < 2 ? top : bottom)", "top"),
    ("(e % 2 ? scale.y : scale.x)", "scale.x"),
    ("wgmma<true>(low, a0 + at + SECOND, b0 + at);", ""),
], ids=["first halves alone", "scale of a row", "scale of a column", "one product of a k-step"])
def test_forgotten_terms_show_in_the_error(old, new):
    kinds, error = forgotten((old, new))
    assert not kinds and error > 10


def test_the_example_of_the_page(capsys):
    page = (Path(__file__).parents[2] / "docs" / "emulation.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(compile(example, "emulation.md", "exec"), {})
    (_, chained), (_, ours) = (line.split() for line in capsys.readouterr().out.splitlines())
    assert 0 < float(ours) < float(chained)

"""Rung 15, copying beside computing warps: edges of boxes, bits, banks, synchronisation; and the driver's maps."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from lab.bits import CASES, operands
from peakgemm.errors import LaunchFailed
from peakgemm.kernels import validity
from peakgemm.kernels.registry import rung
from peakgemm.kernels.rung import RungConfig
from peakgemm.problem import Config, Problem
from peakgemm.runtime import driver
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.tensor_map import Box, encode
from peakgemm.tools.simulator import run_rung
from rung_changes import changed, window
from rung_code import launch

RUNG = rung(15)
HOPPER = architecture("sm_90")
SENTINEL = np.float32(-777.25)


def padded(columns, mapped):
    """A leading dimension that a tensor map can have, or one that it cannot."""
    return -(-columns // 4) * 4 + (4 if mapped else 3)


@pytest.mark.parametrize("shape", [(1, 1, 1), (127, 255, 15), (129, 1, 17), (2, 257, 96), (128, 256, 112),
                                   (130, 260, 7)], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-0.5, 2.0)])
@pytest.mark.parametrize("mapped", [True, False], ids=["boxes", "cp.async"])
def test_the_bits_are_those_of_the_plainest_rung(shape, alpha, beta, mapped):
    m, n, k = shape
    draw = np.random.RandomState(m + 3 * n + 7 * k)
    _, a = window(draw, m, k, padded(k, mapped), np.nan)  # NaN beside the operands: what is read there shows
    _, b = window(draw, k, n, padded(n, mapped), np.nan)
    whole, c = window(draw, m, n, n + 3, SENTINEL)
    if beta == 0:
        c[:] = np.nan
    want, outside = c.copy(), whole.copy()
    report = run_rung(RUNG, a, b, c, alpha=alpha, beta=beta)
    assert report.clean, str(report)
    # A map of one row needs no pitch.
    pitches = [x.strides[0] // 4 if x.shape[0] > 1 else x.shape[1] for x in (a, b)]
    assert (report.counters["bulk_copies"] > 0) == all(pitch % 4 == 0 for pitch in pitches)
    run_rung(1, a, b, want, alpha=alpha, beta=beta)
    assert (c.view("u4") == want.view("u4")).all()
    outside[1:m + 1, :n] = c
    assert outside.tobytes() == whole.tobytes()


@pytest.mark.parametrize("case", [case for case in CASES if case.kind in ("special", "subnormal")],
                         ids=lambda case: case.name)
def test_bits_of_infinities_nan_and_subnormals(case):
    """Those of the other cases are in `test_hashes`."""
    ours, plain = (operands(case)[2] for _ in range(2))
    for kernel, c in ((RUNG, ours), (rung(3), plain)):
        a, b, _ = operands(case)
        assert run_rung(kernel, a, b, c, alpha=case.alpha, beta=case.beta).clean
    # As rung 03: the zeros beyond K make a zero of a subnormal's -0.
    assert (ours.view("u4") == plain.view("u4")).all()


@pytest.mark.parametrize("config", [
    RUNG.default, RungConfig(128, 128, 32, 8, 8, stages=3, fragments=2, raster=2, producers=128, registers=232),
    RungConfig(256, 128, 8, 16, 8, stages=2, fragments=2, raster=8, producers=128, registers=232),
], ids=Config.label)
@pytest.mark.parametrize("mapped", [True, False], ids=["boxes", "cp.async"])
def test_no_read_or_write_conflicts_in_shared_memory(config, mapped):
    m, n, k = config.bm + 36, config.bn + 4, 5 * config.bk
    draw = np.random.RandomState(1)
    a, b = draw.standard_normal((m, k)).astype("f4"), draw.standard_normal((k, n + (not mapped))).astype("f4")
    c, want = np.full((2, m, n + (not mapped)), np.nan, np.float32)
    report = run_rung(RUNG, a, b, c, config=config)
    assert report.clean, str(report)
    run_rung(1, a, b, want)
    assert (c == want).all()
    counters = report.counters
    # An LDS.128 of a fragment takes two wavefronts, of A's box four.
    fragments = counters["shared_loads"] - (counters["shared_stores"] // 4 if mapped else 0)
    stores = counters["shared_stores"] if mapped else 0
    assert (counters["bulk_copies"] > 0) == mapped and (stores > 0) == mapped
    assert counters["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 2 * fragments + stores
    assert counters["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"] == stores


# ---- the source with something forgotten: the checks above can fail -----------------------------


def forgotten(*edits, mapped=True):
    """Kinds of fault, and whether the product is right; the ring goes round twice."""
    draw = np.random.RandomState(3)
    a, b = (draw.randint(-8, 9, s).astype(np.float32) for s in ((128, 16 * 14), (16 * 14, 256)))
    kinds, c = changed(RUNG, edits, a, b, aligned=mapped)
    return kinds, bool((c == a @ b).all())


@pytest.mark.parametrize("mapped", [True, False], ids=["boxes", "cp.async"])
def test_nothing_changed(mapped):
    assert forgotten(mapped=mapped) == (set(), True)


RELEASE = "    __syncwarp();\n    if (lane == 0) mbarrier_arrive(read);\n"
TRANSPOSE = "        transpose(ring + at, warp, lane);\n        __syncwarp();\n"
ARRIVE = "        if (lane == 0) mbarrier_arrive(barrier);\n"
WAIT_EMPTY = "        mbarrier_wait(barrier + 8 * STAGES, parity ^ 1);\n        bulk_expect"


@pytest.mark.parametrize(("kind", "edits"), [
    ("shared_race", [("        mbarrier_wait(barrier, parity);\n      }\n", "      }\n")]),
    ("shared_race", [("        mbarrier_wait(barrier - 8 * STAGES, parity);\n", "")]),
    ("shared_race", [(TRANSPOSE + ARRIVE, ARRIVE + TRANSPOSE)]),
    ("shared_race", [(RELEASE, ""), ("    const unsigned read = barrier + 8 * STAGES;\n",
                                     "    if (lane == 0) mbarrier_arrive(barrier + 8 * STAGES);\n")]),
    ("deadlock", [(WAIT_EMPTY, "        bulk_expect")]),
    ("deadlock", [(RELEASE, "")]),
    ("deadlock", [("bulk_expect(barrier, BOX_B)", "bulk_expect(barrier, BOX_B + 16)")]),
], ids=["no wait for full", "no wait for the box", "full before it is transposed", "released before it is read",
        "no wait for empty", "never released", "more bytes than come"])
def test_forgotten_synchronisation_is_found(kind, edits):
    assert kind in forgotten(*edits)[0]


def test_a_swizzle_that_is_forgotten_shows():
    assert forgotten(("(from ^ (from >> 3 & (ROW - 1) & ~15))", "from")) == (set(), False)


# ---- the driver's maps -----------------------------------------------------------------------------


def test_what_the_driver_is_told(monkeypatch):
    told = []

    def encoded(place, dtype, rank, address, sizes, pitches, box, steps, *modes):
        ctypes.memset(place, 7, 128)
        told.append((ctypes.addressof(place._obj) % 64, dtype, rank, address.value, list(sizes), list(pitches),
                     list(box), list(steps), modes))
        return 0

    monkeypatch.setattr(driver, "library", lambda: SimpleNamespace(cuTensorMapEncodeTiled=encoded))
    config, problem = RUNG.default, Problem(1000, 600, 40, 44, 608, 600)
    a, b = launch(RUNG, validity.choose(RUNG, config, HOPPER, problem), problem).boxes
    assert (a.operand, b.operand) == (0, 1)
    assert bytes(encode(a, 4096)) == bytes(encode(b, 8192)) == bytes([7] * 128)
    # FLOAT32; no interleaving, a swizzle of 64 bytes or none, L2 sectors of 128 bytes, zeros outside.
    assert told == [(0, 7, 2, 4096, [40, 1000], [176], [16, 128], [1, 1], (0, 2, 2, 0)),
                    (0, 7, 2, 8192, [600, 40], [2432], [256, 16], [1, 1], (0, 0, 2, 0))]


def test_a_map_that_the_driver_refuses(monkeypatch):
    monkeypatch.setattr(driver, "library", lambda: SimpleNamespace(
        cuTensorMapEncodeTiled=lambda *args: 1, cuGetErrorName=lambda *args: 1))
    with pytest.raises(LaunchFailed, match=r"a tensor map of Box\(operand=0, rows=8.* at 0x10: CUDA error 1; see"):
        encode(Box(0, 8, 8, 8, 8, 8), 16)

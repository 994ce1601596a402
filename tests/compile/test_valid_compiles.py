"""What the predicate calls valid compiles, without static shared memory and within the registers of an SM."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from peakgemm.kernels.registry import Kernel, rung
from peakgemm.kernels.rung import RungConfig
from peakgemm.kernels.validity import is_valid
from peakgemm.problem import Config
from peakgemm.runtime.architectures import architecture
from rung_code import build

HOPPER = architecture("sm_90")
SIDES, THREADS = (32, 64, 96, 128, 256), (4, 8, 12, 16)
#: Valid configs of the four templates, over a small grid.
VALID = [(rung(number), config) for number, bm, bn, bk, tm, tn, buffers in product(
             (11, 12, 13, 14), SIDES, SIDES, (4, 8, 16, 24), THREADS, THREADS, (1, 2, 3))
         if is_valid(rung(number), config := RungConfig(bm, bn, bk, tm, tn, stages=buffers, fragments=min(buffers, 2)),
                     HOPPER)]


@given(st.sampled_from(VALID), st.booleans())
@settings(max_examples=8, derandomize=True, deadline=None, database=None)
def test_what_is_valid_compiles(case: tuple[Kernel, Config], aligned: bool) -> None:
    kernel, config = case
    code = build(kernel, replace(config, aligned=aligned), "sm_90")
    assert code.static_shared == 0
    assert code.registers * config.threads <= HOPPER.registers_per_sm

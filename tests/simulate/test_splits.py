"""Panels that are split for all tiles that read them are those that a product's own split pass leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from peakgemm.kernels.emulated.product import PRODUCTS
from peakgemm.kernels.emulated.schemes import HEAD, SCHEMES, operand
from peakgemm.kernels.family import Launches
from peakgemm.problem import Problem
from peakgemm.tools.simulator import run


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_panels_of_a_and_of_b(layout: str) -> None:
    m, n, k = 130, 40, 96
    trans_a, trans_b = (letter == "T" for letter in layout)
    rng, scheme = np.random.default_rng(0), SCHEMES["fp16x3"]
    a = rng.standard_normal((k, m) if trans_a else (m, k)).astype(np.float32)
    b = rng.standard_normal((n, k) if trans_b else (k, n)).astype(np.float32)
    problem = Problem(m, n, k, m if trans_a else k, k if trans_b else n, n, trans_a=trans_a, trans_b=trans_b)

    def split(plan: Launches, first: Any, second: Any) -> Any:
        workspace, launch = np.zeros(plan.workspace_bytes // 4 + 64, np.float32), plan.kernels[0]
        run(launch.recipe.make("ptx"), grid=launch.blocks, block=launch.threads, arch=launch.recipe.arch,
            args=[first, second, second, second, workspace, launch.arguments], shared_bytes=launch.shared_bytes)
        return workspace[HEAD // 4:].view(np.uint8)

    kernel = PRODUCTS["fp16x3"]
    both = split(kernel.launches(kernel.default, problem, "sm_90", 4), a, b)
    of_a, of_b = (operand(scheme, rows, k, (), ()).bytes for rows in (m, n))
    for x, want, ready in ((b, both[of_a:of_a + of_b], {"ready_a": 1}), (a, both[:of_a], {"ready_b": 1})):
        alone = kernel.launches(kernel.default, problem, "sm_90", 4, **ready)  # as `SplitOperand` does
        assert (split(alone, x, x)[:want.size] == want).all() and want.any()

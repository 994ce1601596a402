"""Panels that are split for all tiles that read them are those that a product's own split pass leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from peakgemm.kernels.emulated.schemes import (
    HEAD,
    PRODUCTS,
    SCHEMES,
    SPLIT_THREADS,
    emulation,
    operand,
    product_on,
    split_recipe,
    target,
)
from peakgemm.problem import Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.tools.simulator import run


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_panels_of_a_and_of_b(layout: str) -> None:
    m, n, k = 130, 40, 96
    trans_a, trans_b = (letter == "T" for letter in layout)
    rng, scheme = np.random.default_rng(0), SCHEMES["fp16x3"]
    a = rng.standard_normal((k, m) if trans_a else (m, k)).astype(np.float32)
    b = rng.standard_normal((n, k) if trans_b else (k, n)).astype(np.float32)
    problem = Problem(m, n, k, m if trans_a else k, k if trans_b else n, n, trans_a=trans_a, trans_b=trans_b)

    def split(p: Problem, plan: Any, first: Any, second: Any) -> Any:
        workspace = np.zeros(plan.workspace_bytes // 4 + 64, np.float32)
        run(split_recipe(scheme, p, "sm_90").make("ptx"), grid=plan.split_blocks, block=SPLIT_THREADS,
            arch=target("sm_90"), args=[first, second, second, second, workspace, plan.arguments],
            shared_bytes=scheme.panel)
        return workspace[HEAD // 4:].view(np.uint8)

    kernel = PRODUCTS["fp16x3"]
    both = split(problem, emulation(kernel, kernel.default, problem, 4), a, b)
    of_a, of_b = (operand(scheme, rows, k, (), ()).bytes for rows in (m, n))
    for x, want, ready in ((b, both[of_a:of_a + of_b], {"ready_a": 1}), (a, both[:of_a], {"ready_b": 1})):
        alone = emulation(*product_on(scheme, architecture("sm_90")), problem, 4, **ready)  # as `SplitOperand` does
        assert (split(problem, alone, x, x)[:want.size] == want).all() and want.any()

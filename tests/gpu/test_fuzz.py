"""Drawn products on torch CUDA tensors through the public calls, against FP64.

PEAKGEMM_FUZZ_CASES sets how many (2,000); PEAKGEMM_FUZZ_SEED where the drawing starts.
"""

from __future__ import annotations

import os
import random

import pytest

import api_cases
import peakgemm as pg

pytest.importorskip("torch")

CASES = int(os.environ.get("PEAKGEMM_FUZZ_CASES", "2000"))
SEED = int(os.environ.get("PEAKGEMM_FUZZ_SEED", "1"))
LARGE = (1, 31, 64, 65, 127, 128, 129, 200, 255, 257, 384)


def test_drawn_products() -> None:
    """Up to ten failures are reported together."""
    rng, failures = random.Random(SEED), []
    for number in range(CASES):
        case = api_cases.draw(rng.choice, LARGE if number % 8 == 0 else api_cases.SIZES)
        case.seed = number
        try:
            api_cases.check_tensors(case, "cuda")
        except (AssertionError, pg.PeakgemmError) as error:
            failures.append(f"{type(error).__name__}: {error}")
            if len(failures) == 10:
                break
    assert not failures, "\n".join(failures)

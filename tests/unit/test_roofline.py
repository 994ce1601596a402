"""Bytes per FLOP of a tiling and the bound that they give."""

from __future__ import annotations

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.kernels.rung import RungConfig
from peakgemm.problem import Config
from peakgemm.tools.bench.roofline import bound_tflops, bytes_per_flop


@pytest.mark.parametrize(("config", "expected"), [
    # Nothing staged: the thread's tile counts, whatever the block's.
    (RungConfig(16, 16, 1, 1, 1, stages=0), 4.0),
    (RungConfig(64, 64, 1, 4, 4, stages=0), 1.0),
    (RungConfig(128, 128, 1, 8, 8, stages=0), 0.5),
    # Staged: the block's tile counts, whatever the thread's and however deep the pipeline.
    (RungConfig(32, 32, 32, 1, 1), 0.125),
    (RungConfig(64, 64, 16, 4, 4), 0.0625),
    (RungConfig(128, 128, 8, 8, 8, stages=3), 0.03125),
    (RungConfig(128, 256, 8, 8, 16, stages=4), 0.0234375),
])
def test_bytes_per_flop(config: Config, expected: float) -> None:
    assert bytes_per_flop(config) == expected


def test_bound() -> None:
    # 3352 GB/s over 4 bytes a FLOP is 838 GFLOPS.
    assert bound_tflops(66.9, 3352, 4.0) == pytest.approx(0.838)
    assert bound_tflops(66.9, 3352, 0.03125) == 66.9
    assert bound_tflops(66.9, 3352, 0.125) == pytest.approx(26.816)


@pytest.mark.parametrize("figures", [(0, 3352, 1.0), (66.9, -1, 1.0), (66.9, 3352, 0.0), (float("nan"), 3352, 1.0)])
def test_figures_must_be_positive(figures: tuple[float, float, float]) -> None:
    with pytest.raises(InvalidValue, match="must be positive"):
        bound_tflops(*figures)

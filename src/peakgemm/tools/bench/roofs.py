"""What the memory of the GPU at hand gives, measured, and which products it bounds."""

from __future__ import annotations

from statistics import median

from ...runtime.device import Gpu
from .peers import Peer
from .suites import Case
from .timer import Timer

COPY_FLOATS = 1 << 28  # 1 GiB read and 1 GiB written: far beyond any L2


def copy_gbs(peer: Peer, timer: Timer, floats: int = COPY_FLOATS) -> float:
    """Bandwidth of the library's copy on the device, GB/s: bytes read plus bytes written."""
    rows = max(floats >> 14, 1)
    source, to = peer.full(rows, floats // rows, 1.0), peer.full(rows, floats // rows, 0.0)
    times = timer.compare([lambda: peer.copy(source, to)], [lambda: peer.copy(to, source)])
    return 8 * floats / median([*times.ours_ms, *times.baseline_ms]) / 1e6


def is_memory_bound(case: Case, gpu: Gpu) -> bool:
    """Whether moving operands and result once, at nominal bandwidth, outlasts the FMAs at FP32 peak."""
    return case.bytes / (gpu.bandwidth_gbs * 1e9) > case.flops / (gpu.peak_tflops * 1e12)

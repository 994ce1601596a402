"""Memory bounds: what a tiling asks of global memory and the speed that this allows; a copy's bandwidth, measured."""

from __future__ import annotations

from statistics import median

from ...errors import InvalidValue
from ...problem import Config
from ...runtime.device import Gpu
from .peers import Peer
from .suites import Case
from .timer import Timer

FLOAT_BYTES = 4
COPY_FLOATS = 1 << 28  # 1 GiB read and 1 GiB written: far beyond any L2


def bytes_per_flop(config: Config) -> float:
    """Bytes that a tiling asks of global memory for each floating-point operation.

    A tile of ``rows x columns`` loads ``rows + columns`` floats per k and does ``rows columns``
    multiply-adds, two operations each::

        4 (rows + columns) / (2 rows columns)

    The tile is the block's (``bm x bn``) where a kernel stages in shared memory (``stages >= 1``) and the
    thread's (``tm x tn``, of which a pass over K computes a quarter where ``passes`` is 4) where it does not.
    C is left out: its share vanishes as K grows.

    Source: Williams, Waterman and Patterson, "Roofline" (2009), applied to the tile as the SGEMM tutorials do.
    """
    half = 2 if config.passes == 4 else 1
    rows, columns = (config.bm, config.bn) if config.stages >= 1 else (config.tm // half, config.tn // half)
    return FLOAT_BYTES * (rows + columns) / (2 * rows * columns)


def bound_tflops(peak_tflops: float, bandwidth_gbs: float, bytes_per_flop: float) -> float:
    """The tutorials' bound in TFLOPS: min(peak, bandwidth / bytes per FLOP).

    It holds *if no cache helped*, every byte that the tiling asks for coming from DRAM. Caches do help:
    threads of a warp share lines and neighbouring blocks share tiles in L2, so kernels with small tiles
    beat this bound, and the peak alone is the bound that nothing beats.

    Raises:
        InvalidValue: a figure that is not positive.
    """
    for name, value in (("peak", peak_tflops), ("bandwidth", bandwidth_gbs), ("bytes per FLOP", bytes_per_flop)):
        if not value > 0:
            raise InvalidValue(f"{name} = {value} must be positive")
    return min(peak_tflops, bandwidth_gbs / bytes_per_flop / 1000)


def copy_gbs(peer: Peer, timer: Timer, floats: int = COPY_FLOATS) -> float:
    """Bandwidth of the library's copy on the device, GB/s: bytes read plus bytes written."""
    rows = max(floats >> 14, 1)
    source, to = peer.full(rows, floats // rows, 1.0), peer.full(rows, floats // rows, 0.0)
    times = timer.compare([lambda: peer.copy(source, to)], [lambda: peer.copy(to, source)])
    return 8 * floats / median([*times.ours_ms, *times.baseline_ms]) / 1e6


def is_memory_bound(case: Case, gpu: Gpu) -> bool:
    """Whether moving operands and result once, at nominal bandwidth, outlasts the FMAs at FP32 peak."""
    return case.bytes / (gpu.bandwidth_gbs * 1e9) > case.flops / (gpu.peak_tflops * 1e12)

"""The roofline of a tiling: what it asks of global memory, and the speed that this allows."""

from __future__ import annotations

from ...errors import InvalidValue
from ...problem import Config

FLOAT_BYTES = 4


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

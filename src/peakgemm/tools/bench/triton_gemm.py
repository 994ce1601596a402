"""A Triton product for `bench.contenders` and `accuracy.contenders`: ``tl.dot`` with an ``input_precision``."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# No future annotations here: Triton reads `tl.constexpr` from the signature.

from importlib import import_module
from typing import Any

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_TILES = ((128, 128, 16, 8, 3), (128, 64, 16, 4, 4), (64, 128, 16, 4, 4), (64, 64, 32, 4, 4), (32, 64, 32, 4, 4),
          (64, 32, 32, 4, 4), (16, 64, 64, 4, 4), (64, 16, 64, 4, 4))
_JUDGED = {"BM": 64, "BN": 64, "BK": 32}  # of what is judged, not timed


@triton.jit
def _gemm(a, b, c, m, n, k, a_row, a_column, b_row, b_column, c_row, a_batch, b_batch, c_batch,
          PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # Tiles in groups of eight rows, so that their operands meet in the L2.
    tile, rows, columns = tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN)
    group = tile // (8 * columns)
    height = min(rows - group * 8, 8)
    i = group * 8 + tile % (8 * columns) % height
    j = tile % (8 * columns) // height
    batch = tl.program_id(1).to(tl.int64)
    at_m = (i * BM + tl.arange(0, BM)).to(tl.int64)
    at_n = (j * BN + tl.arange(0, BN)).to(tl.int64)
    at_k = tl.arange(0, BK)
    from_a = a + batch * a_batch + at_m[:, None] * a_row + at_k[None, :] * a_column
    from_b = b + batch * b_batch + at_k[:, None] * b_row + at_n[None, :] * b_column
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(k, BK)):
        left = k - step * BK
        x = tl.load(from_a, mask=(at_m[:, None] < m) & (at_k[None, :] < left), other=0.0)
        y = tl.load(from_b, mask=(at_k[:, None] < left) & (at_n[None, :] < n), other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
        from_a += BK * a_column
        from_b += BK * b_row
    to = c + batch * c_batch + at_m[:, None] * c_row + at_n[None, :]
    tl.store(to, total, mask=(at_m[:, None] < m) & (at_n[None, :] < n))


_tuned = triton.autotune(
    configs=[triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
             for bm, bn, bk, warps, stages in _TILES],
    key=["m", "n", "k", "a_row", "b_row"],
)(_gemm)


def multiply(a: Any, b: Any, out: Any, precision: str = "ieee") -> None:
    """Enqueue ``out = a b`` on torch's current stream: ``a (..., M, K)``, ``b (..., K, N)`` of any strides, ``out``
    packed, with one batch dimension or none. FP32 by the fastest of a handful of tiles, another precision by one."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    batch = a.shape[0] if a.ndim == 3 else 1
    steps = [x.stride(0) if a.ndim == 3 else 0 for x in (a, b, out)]
    kernel, tile = (_tuned, {}) if precision == "ieee" else (_gemm, _JUDGED)
    kernel[lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]), batch)](
        a, b, out, m, n, k, a.stride(-2), a.stride(-1), b.stride(-2), b.stride(-1), out.stride(-2), *steps,
        PRECISION=precision, **tile)

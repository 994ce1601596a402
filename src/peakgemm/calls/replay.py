"""``reproducible=True`` on a CPU: the same bits as on a GPU, by exact fused multiply-adds.

Every element is one chain, ``acc = fma(a[m, k], b[k, n], acc)`` for k = 0 ... K - 1 from acc = +0, then
``v = alpha acc``, and ``fma(beta, c, v)`` where ``beta`` is not 0. With ``alpha`` 0 neither operand is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..fma import Chain, canonical, fma32

Array = NDArray[np.float32]
_RESULTS = 1 << 14  # at a time: their float64 sums stay in the processor's cache


def multiply(a: Array, b: Array, c: Array | None, alpha: float, beta: float, out: Array) -> None:
    """``alpha a b + beta c`` into ``out`` ``(..., M, N)``; operands have two dimensions or more, batches broadcast.

    ``c`` has the shape of ``out``; it may be ``out`` itself.
    """
    *batch, m, n = out.shape
    first = np.broadcast_to(a, (*batch, *a.shape[-2:]))
    second = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    for index in np.ndindex(*batch):
        for rows, columns in _blocks(m, n):
            sums = _chains(first[index][rows], second[index][:, columns], alpha)
            sums *= np.float32(alpha)
            where = (*index, rows, columns)
            if beta != 0:
                assert c is not None
                sums = fma32(np.broadcast_to(np.float32(beta), sums.shape), c[where], sums)
            out[where] = canonical(sums)


def _chains(a: Array, b: Array, alpha: float) -> Any:
    chain = Chain((a.shape[0], b.shape[1]))
    if alpha != 0:
        left, right = a.astype(np.float64), b.astype(np.float64)
        for k in range(a.shape[1]):
            chain.add(left[:, k, None], right[None, k])
    return chain.sums


def _blocks(m: int, n: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of results, `_RESULTS` at a time."""
    across = max(1, min(n, _RESULTS))
    down = max(1, _RESULTS // across)
    for top in range(0, m, down):
        for left in range(0, n, across):
            yield slice(top, top + down), slice(left, left + across)

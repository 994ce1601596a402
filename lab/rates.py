"""Milliseconds of products that `peakgemm run` counted: the library's and ours, interleaved, each by itself.

A product's shape is known, not its layout: operands are row-major.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import median
from typing import Any

import torch

import peakgemm as pg
from peakgemm.arrays.base import stream_handle
from peakgemm.errors import PeakgemmError
from peakgemm.tools.bench.peers import TorchPeer
from peakgemm.tools.bench.timer import Timer

WHERE = "cuda"
SMALL = 0.005  # products of less than this share of a program's operations are not timed, but scaled
Call = Callable[[], Any]


class Rates:
    """Times of products, kept by library, operation, shape and precision."""

    def __init__(self, seconds: float = 0.05) -> None:
        self._peer, self._seconds = TorchPeer(), seconds
        self._timer = Timer(self._peer, seconds)
        self._kept: dict[Any, tuple[float, float] | None] = {}

    def __enter__(self) -> Rates:
        return self

    def __exit__(self, *exc: object) -> None:
        self._peer.leave()

    def of(self, products: Sequence[dict[str, Any]], precision: str, program: str) -> tuple[float, float, list[str]]:
        """Milliseconds of all calls, the library's and ours, and the products that were not timed."""
        total = sum(x["flops"] for x in products)
        sums, known, left_out = [0.0, 0.0], 0.0, []
        for x in products:
            if x["flops"] and x["flops"] < SMALL * total:
                continue
            key = x["library"], x["operation"], str(x["shape"]), precision
            if key not in self._kept:
                self._kept[key] = self._measured(x, precision)
            times = self._kept[key]
            if times is None:
                left_out.append(f"{x['operation']} {x['shape']}")
                continue
            known += x["flops"]
            sums = [of + x["calls"] * each for of, each in zip(sums, times, strict=True)]
        scale = total / known if known else 1.0
        return sums[0] * scale, sums[1] * scale, left_out

    def _measured(self, x: dict[str, Any], precision: str) -> tuple[float, float] | None:
        on_cupy = x["library"] == "cupy"
        try:
            with _on_stream(self._peer) if on_cupy else nullcontext():
                calls = _cupy_calls(x, precision) if on_cupy else _calls(x, precision)
                if calls is None:
                    return None
                theirs, ours = calls
                found = self._timer.compare([ours], [theirs], capture=not on_cupy and x["flops"] > 0)
                return median(found.baseline_ms), median(found.ours_ms)
        except (PeakgemmError, RuntimeError, ImportError, ValueError) as error:
            print(f"{x['operation']} {x['shape']}: not timed: {error}", flush=True)
            return None


def _calls(x: dict[str, Any], precision: str) -> tuple[Call, Call] | None:
    """A product of torch or JAX by torch and by us, or a call of linear algebra."""
    shape = x["shape"]
    if not isinstance(shape, list) or len(shape) < 2 + bool(x["flops"]):  # two: a product with its own transpose
        return None
    if not x["flops"]:
        return _algebra(x["operation"], shape, precision) if len(shape) == 2 else None
    *batch, m, n, k = shape
    a, b, out = (torch.randn(*batch, *of, device=WHERE) for of in ((m, k), (k, n), (m, n)))
    return partial(torch.matmul, a, b, out=out), partial(pg.matmul, a, b, out=out, precision=precision)


def _algebra(operation: str, shape: list[int], precision: str) -> tuple[Call, Call] | None:
    """Factors of a positive definite matrix, or solutions by them. Of a triangular system the shape says the unknowns;
    there are as many right-hand sides, as in the derivative of a factor."""
    n = shape[0]
    a = torch.randn(n, n, device=WHERE)
    a = a @ a.mT / n + torch.eye(n, device=WHERE)
    if operation.startswith("linalg_cholesky_ex"):
        return partial(torch.linalg.cholesky_ex, a), partial(pg.linalg.cholesky_ex, a, precision=precision)
    factor, b = torch.linalg.cholesky(a), torch.randn(shape, device=WHERE)
    if operation.startswith("linalg_solve_triangular"):
        return (partial(torch.linalg.solve_triangular, factor, b, upper=False),
                partial(pg.linalg.solve_triangular, factor, b, upper=False, precision=precision))
    if operation == "_cholesky_solve_helper":
        return partial(torch.cholesky_solve, b, factor), partial(pg.linalg.cholesky_solve, b, factor,
                                                                 precision=precision)
    return None


def _cupy_calls(x: dict[str, Any], precision: str) -> tuple[Call, Call] | None:
    """``"ab,bc->ac 4x5 5x6"``, or without subscripts a product."""
    import cupy

    words, operation = x["shape"].split(), x["operation"]
    terms = [words.pop(0)] if operation == "einsum" and "," in words[0] else []
    if not x["flops"] or (operation == "einsum") != bool(terms) or operation not in ("einsum", "matmul", "dot"):
        return None
    arrays = [cupy.random.standard_normal(tuple(map(int, word.split("x"))), dtype=cupy.float32) for word in words]
    theirs, ours = getattr(cupy, operation), getattr(pg, operation)
    return partial(theirs, *terms, *arrays, **{"optimize": True} if terms else {}), partial(
        ours, *terms, *arrays, precision=precision)


def _on_stream(peer: TorchPeer) -> AbstractContextManager[Any]:
    """CuPy on the stream whose events are the times."""
    import cupy

    return cupy.cuda.ExternalStream(stream_handle(peer.stream))  # type: ignore[no-any-return]

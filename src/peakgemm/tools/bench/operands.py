"""Operands in rotation, and launches of the library's kernels on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...kernels.bound import Bound
from ...problem import Problem
from ...runtime.device import Gpu
from .errors import errors
from .peers import Peer
from .suites import Case
from .timer import Work

Addresses = tuple[int, int, int]  # of A, B and C, in bytes, as the problem names them
# Below 200 KB a set the kernels' time is latency, wherever the operands lie; a thousand allocations would buy nothing.
MOST_SETS = 600


def set_count(footprint: int, gpu: Gpu) -> int:
    """Sets of ``footprint`` bytes that exceed twice the L2 together; 1 where one does."""
    return 1 if footprint > 2 * gpu.l2_bytes else min(-(-2 * gpu.l2_bytes // max(footprint, 1)) + 1, MOST_SETS)


def address(x: Any) -> int:
    """Of a torch or CuPy array's first element."""
    return int(x.__cuda_array_interface__["data"][0])


def launcher(bound: Bound, peer: Peer) -> Callable[[int, int, int], Work]:
    """Makes launches of ``bound`` on the peer's stream from addresses of A, B and C; all share one workspace."""
    scratch = peer.full(1, -(-bound.workspace_bytes // 4), 0.0) if bound.workspace_bytes else None
    workspace = address(scratch) if scratch is not None else 0
    stream = int(peer.stream.handle)

    def work(a: int, b: int, c: int) -> Work:
        def launch(keep: Any = scratch) -> None:
            bound.launch(a, b, c, c, workspace, stream)
        return launch
    return work


def launches(bound: Bound, sets: Sequence[Addresses], peer: Peer) -> list[Work]:
    """One launch of ``bound`` for each set; see `launcher`."""
    work = launcher(bound, peer)
    return [work(*each) for each in sets]


class Arrays:
    """A case's arrays, as its user holds them: ``a (..., M, K)``, ``b (..., K, N)``, ``c (..., M, N)``, in sets."""

    def __init__(self, case: Case, gpu: Gpu, peer: Peer) -> None:
        self._case, self._peer = case, peer
        self.problem, self._swapped = case.problem()
        count = set_count(case.bytes, gpu)
        self.a = [self._random(case.m, case.k, case.trans_a, 2 * i) for i in range(count)]
        self.b = [self._random(case.k, case.n, case.trans_b, 2 * i + 1) for i in range(count)]
        self.c = [self.blank() for _ in range(count)]

    def blank(self) -> Any:
        """A result full of NaN."""
        return self._shaped(self._peer.full(self._case.batch * self._case.m, self._case.n, float("nan")))

    @property
    def sets(self) -> list[tuple[Any, Any, Any]]:
        """A, B and C of each set."""
        return list(zip(self.a, self.b, self.c, strict=True))

    def addresses(self) -> list[Addresses]:
        """Of each set, in the problem's terms."""
        return [self.of(*each) for each in self.sets]

    def of(self, a: Any, b: Any, c: Any) -> Addresses:
        """Addresses of a case's arrays, in the problem's terms."""
        first, second = (b, a) if self._swapped else (a, b)
        return address(first), address(second), address(c)

    def _random(self, rows: int, columns: int, transposed: bool, seed: int) -> Any:
        if transposed:
            rows, columns = columns, rows
        x = self._shaped(self._peer.random(self._case.batch * rows, columns, seed))
        return x.swapaxes(-1, -2) if transposed else x

    def _shaped(self, x: Any) -> Any:
        batch = self._case.batch
        return x.reshape(batch, x.shape[0] // batch, x.shape[1]) if batch > 1 else x


class Flat:
    """Memory for any problem, as the tuner needs it: strides, gaps and addresses' alignment are the problem's."""

    def __init__(self, problem: Problem, gpu: Gpu, peer: Peer) -> None:
        p, self._peer, self._problem = problem, peer, problem
        self._shapes = tuple((*p.batch.sizes, *shape) for shape in ((p.m, p.k), (p.k, p.n), (p.m, p.n)))
        self._strides = ((*p.batch.a, *((1, p.lda) if p.trans_a else (p.lda, 1))),
                         (*p.batch.b, *((1, p.ldb) if p.trans_b else (p.ldb, 1))), (*p.batch.c, p.ldc, 1))
        extents = [1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
                   for shape, strides in zip(self._shapes, self._strides, strict=True)]
        # Allocations start at multiples of 256: an address aligned to less is made by stepping in.
        self._skip = [0 if aligned >= 16 else aligned // 4 for aligned in p.alignment]
        sizes = [extent + skip for extent, skip in zip(extents, self._skip, strict=True)]
        self._kept = [[peer.random(1, sizes[0], 2 * i)[0], peer.random(1, sizes[1], 2 * i + 1)[0],
                       peer.full(1, sizes[2], float("nan"))[0]] for i in range(set_count(4 * sum(extents), gpu))]

    @property
    def addresses(self) -> list[Addresses]:
        """Of each set."""
        return [self._addresses(each) for each in self._kept]

    def error(self, bound: Bound) -> float:
        """Largest componentwise error in eps |A||B| of a launch into a C full of NaN, against FP64."""
        a, b, old = self._kept[0]
        c = self._peer.full(1, old.shape[0], float("nan"))[0]
        launches(bound, [self._addresses([a, b, c])], self._peer)[0]()
        views = [self._peer.strided(x[skip:], shape, strides) for x, skip, shape, strides
                 in zip((a, b, c), self._skip, self._shapes, self._strides, strict=True)]
        return errors(views[0], views[1], [views[2]])[0]

    def _addresses(self, arrays: list[Any]) -> Addresses:
        a, b, c = (address(x) + 4 * skip for x, skip in zip(arrays, self._skip, strict=True))
        return a, b, c

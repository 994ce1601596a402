"""Programs: the products and small kernels of an algorithm, recorded once for a problem, launched again and again.

An algorithm of this package is a function that takes matrices and records steps. What it needs of the device, which
kernel a product takes and its code, is decided when the program is bound; a warm call only adds addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ..arrays.base import FLOAT, View, packed
from ..calls.canonical import canonicalise
from ..calls.launch import bound_for, choice_for
from ..kernels.bound import cubin, enqueuing
from ..kernels.family import Launch
from ..kernels.linalg.leaves import Strides
from ..problem import Problem, Triangle
from ..runtime.compile import in_parallel

if TYPE_CHECKING:
    from ..runtime.device import Gpu

WORKSPACE = 0  # the buffer that a program has of its own; the caller's follow
_ALIGNMENT = 256  # bytes, of what is allocated in the workspace


class Matrix(NamedTuple):
    """A batch of matrices ``(..., rows, columns)`` in a buffer: ``view.pointer`` counts bytes from the buffer's start,
    rounded down to 16."""

    buffer: int
    view: View

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the batch, rows and columns."""
        return self.view.shape

    @property
    def rows(self) -> int:
        """Of one matrix."""
        return self.view.shape[-2]

    @property
    def columns(self) -> int:
        """Of one matrix."""
        return self.view.shape[-1]

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        assert self.view.strides is not None  # a program has no other
        return self.view.strides

    @property
    def layout(self) -> Strides:
        """Of a batch of one dimension, as the small kernels take it."""
        return Strides(self.strides[-2], self.strides[-1], self.strides[0])

    @property
    def mT(self) -> Matrix:
        """The matrices transposed."""
        return Matrix(self.buffer, self.view.mT)

    def block(self, row: int, column: int, rows: int, columns: int) -> Matrix:
        """That many rows and columns from a place on."""
        down, right = self.strides[-2:]
        pointer = self.view.pointer + FLOAT * (row * down + column * right)
        return Matrix(self.buffer, View(pointer, (*self.shape[:-2], rows, columns), self.strides))

    def diagonal(self, first: int, size: int) -> Matrix:
        """The square of that size on the diagonal."""
        return self.block(first, first, size, size)

    def repeated(self, count: int, down: int, right: int) -> Matrix:
        """One more batch dimension, the innermost: ``count`` matrices like this one, each that far from the last."""
        step = down * self.strides[-2] + right * self.strides[-1]
        return Matrix(self.buffer, View(self.view.pointer, (*self.shape[:-2], count, *self.shape[-2:]),
                                        (*self.strides[:-2], step, *self.strides[-2:])))


class Step(NamedTuple):
    """A product, or one kernel, and what lies where: A, B, C0, C and workspace, as buffers and bytes in them."""

    what: Problem | Launch
    places: tuple[tuple[int, int], ...]


@dataclass
class Program:
    """Steps in the order of their launches.

    Attributes:
        precision: of the products; see `peakgemm.matmul`.
        arch: that kernels are compiled for.
        steps: recorded so far.
        bytes: of the workspace that matrices take.
    """

    precision: str
    arch: str
    steps: list[Step] = field(default_factory=list)
    bytes: int = 0
    _used: int = 0  # of these bytes, by matrices that are needed still

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """What is allocated meanwhile is not needed afterwards: later matrices may have its place."""
        before = self._used
        yield
        self._used = before

    def allocate(self, *shape: int) -> Matrix:
        """A packed batch of matrices in the workspace, of any values."""
        size = -(-FLOAT * prod(shape) // _ALIGNMENT) * _ALIGNMENT
        self._used += size
        self.bytes = max(self.bytes, self._used)
        return Matrix(WORKSPACE, View(self._used - size, shape, packed(shape)))

    def product(self, out: Matrix, a: Matrix, b: Matrix, c: Matrix | None = None, *, alpha: float = 1.0,
                beta: float = 0.0, triangle: Triangle = Triangle.NONE, sparse: bool = False) -> None:
        """``out := alpha a b + beta c``, or one triangle of it; ``out`` may be ``c`` itself. ``sparse``: see `Problem`.
        """
        if 0 in out.shape:
            return
        one_operand = a.buffer == b.buffer and a.view == b.mT.view
        canonical = canonicalise(a.view, b.view, None if c is None else c.view, out.view, alpha=alpha, beta=beta,
                                 triangle=triangle, one_operand=one_operand, sparse=sparse)
        assert canonical.problem is not None, canonical.copies  # algorithms make no other matrices
        first, second = (b, a) if canonical.swapped else (a, b)
        self._add(canonical.problem, first, second, out if c is None else c, out)

    def kernel(self, launch: Launch, a: Matrix | None = None, b: Matrix | None = None, c0: Matrix | None = None,
               c: Matrix | None = None, workspace: Matrix | None = None) -> None:
        """One kernel with its arguments."""
        self._add(launch, a, b, c0, c, workspace)

    def _add(self, what: Problem | Launch, *matrices: Matrix | None) -> None:
        self.steps.append(Step(what, tuple((WORKSPACE, 0) if x is None else (x.buffer, x.view.pointer)
                                           for x in matrices)))


Enqueue = Callable[[int, int, int, int, int, int], None]


class BoundProgram:
    """A program whose kernels are compiled and loaded.

    Attributes:
        workspace_bytes: device memory that `run` needs beside its buffers.
    """

    def __init__(self, program: Program, gpu: Gpu) -> None:
        self._calls: list[tuple[Enqueue, tuple[tuple[int, int], ...]]] = []
        shared, most = (WORKSPACE, program.bytes), 0
        choices = {what: choice_for(what, gpu, program.precision) for what, _ in program.steps
                   if isinstance(what, Problem)}
        launches = [launch for what, choice in choices.items() for launch in choice.kernel.launches(
            choice.config, what, gpu.arch, gpu.sm_count).kernels]
        launches += [what for what, _ in program.steps if isinstance(what, Launch)]
        in_parallel(cubin, dict.fromkeys(launch.recipe for launch in launches))  # one by one they take seconds each
        for what, places in program.steps:
            if isinstance(what, Problem):
                bound = bound_for(what, gpu, choices[what])
                most = max(most, bound.workspace_bytes)
                a, b, old, out = places
                self._calls.append((bound.launch, (a, b, out, old, shared)))
            else:
                (enqueue, _), = enqueuing([what], what.recipe.entry, gpu)
                self._calls.append((enqueue, places))
        self.workspace_bytes = program.bytes + most

    def run(self, workspace: int, buffers: Sequence[int], stream: int) -> None:
        """Enqueue all steps.

        Args:
            workspace: the address of `workspace_bytes`, on 16 bytes.
            buffers: addresses of the caller's, in the order of their numbers, 1 first.
            stream: a ``CUstream`` handle.
        """
        starts = (workspace, *(address & -16 for address in buffers))
        for enqueue, ((a, i), (b, j), (c, k), (d, m), (e, n)) in self._calls:
            enqueue(starts[a] + i, starts[b] + j, starts[c] + k, starts[d] + m, starts[e] + n, stream)


def external(buffer: int, view: View) -> Matrix:
    """The caller's array in a buffer; ``view`` as its library describes it."""
    return Matrix(buffer, view._replace(pointer=view.pointer & 15))

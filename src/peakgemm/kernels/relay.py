"""B laid out anew before a product, rows of K with N contiguous, so that it can be copied sixteen bytes at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import InvalidValue
from ..problem import Config, Problem
from ..runtime import source
from .launch_shape import MAX_BLOCKS
from .registry import FLOAT
from .schedule import arguments

SOURCE = source.KERNELS / "ffma" / "relay.cu"
ENTRY = "ffma_relay"
_TILE = Config(64, 64, 64, 4, 4)  # of B: 64 x 64 by 256 threads
THREADS = _TILE.threads


@dataclass(frozen=True, slots=True)
class Relay:
    """The launch that lays B out anew: ``blocks`` (0: B is not read), ``size`` in bytes of the result, arguments."""

    blocks: int
    size: int
    arguments: bytes


def applies(problem: Problem) -> bool:
    """Whether one B serves the whole batch."""
    return not any(problem.batch.b)


def relay(problem: Problem) -> Relay:
    """The launch for ``problem``.

    Raises:
        InvalidValue: a B for each product of the batch, or one of more than 2**31 - 1 tiles of 64 x 64.
    """
    p = problem
    if not applies(p):
        raise InvalidValue(f"batch strides {p.batch.b} of B: one B that serves the whole batch can be laid out anew; "
                           "use the kernel 'specialised'")
    blocks = -(-p.n // _TILE.bn) * -(-p.k // _TILE.bk)
    if blocks > MAX_BLOCKS:
        raise InvalidValue(f"B of {p.k} x {p.n} has {blocks} tiles of 64 x 64, the limit is {MAX_BLOCKS}; use the "
                           "kernel 'specialised'")
    # BLAS: with alpha = 0 neither A nor B is read, so a NaN there cannot leak.
    return Relay(blocks if p.alpha and p.m and p.batch.count else 0, p.k * _pitch(p) * FLOAT,
                 arguments(p, 0, 0, 0))


def relaid(problem: Problem) -> Problem:
    """The problem that the product then is: its B is in the workspace."""
    p = problem
    a, _, c = p.alignment
    return replace(p, trans_b=False, ldb=max(_pitch(p), 1), alignment=(a, 16, c))


def macros(problem: Problem) -> dict[str, int]:
    """What the kernel is compiled with."""
    return _TILE.macros() | {"TRANS_B": int(problem.trans_b)}


def _pitch(p: Problem) -> int:
    return -(-p.n // 4) * 4

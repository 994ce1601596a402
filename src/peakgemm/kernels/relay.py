"""An operand laid out anew before a product, K rows of which each begins at 16 bytes, so that it can be copied so.

Kernels that lay operands out beside their own work (anew.py) make the same of A, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import InvalidValue
from ..problem import Config, Problem
from ..runtime import source
from .launch_shape import MAX_BLOCKS
from .registry import FLOAT
from .schedule import Schedule, arguments
from .schedule import schedule as tiled_schedule

SOURCE = source.KERNELS / "ffma" / "relay.cu"
ENTRY = "ffma_relay"
KERNEL = "relaid"  # of the library, that begins with it for B
_TILE = Config(64, 64, 64, 4, 4)  # of B: 64 x 64 by 256 threads
THREADS = _TILE.threads


@dataclass(frozen=True, slots=True)
class Relay:
    """The launch that lays B out anew: ``blocks`` (0: B is not read), ``size`` in bytes of the result, arguments."""

    blocks: int
    size: int
    arguments: bytes


def constraints(problem: Problem) -> list[str]:
    """Why B of ``problem`` cannot be laid out anew: what `validity` says of the kernel that does."""
    p, broken = problem, list[str]()
    if any(p.batch.b):
        broken.append(f"batch strides {p.batch.b} of B must be 0: one B that serves the whole batch can be laid out "
                      "anew; use the kernel 'specialised'")
    if _blocks(p) > MAX_BLOCKS:
        broken.append(f"B of {p.k} x {p.n} has {_blocks(p)} tiles of 64 x 64, the limit is {MAX_BLOCKS}; use the "
                      "kernel 'specialised'")
    return broken


def relay(problem: Problem) -> Relay:
    """The launch for ``problem``.

    Raises:
        InvalidValue: its `constraints`.
    """
    p = problem
    if broken := constraints(p):
        raise InvalidValue("; ".join(broken))
    # BLAS: with alpha = 0 neither A nor B is read, so a NaN there cannot leak.
    reads = p.alpha and p.m and p.batch.count
    return Relay(_blocks(p) if reads else 0, size(p.n, p.k) if reads else 0,
                 arguments(p, 0, 0, 0, 0, (_across(p), 1, 1)))


def size(columns: int, steps: int) -> int:
    """Bytes of ``steps`` rows of ``columns`` floats, each a multiple of 16 bytes."""
    return steps * (-(-columns // 4) * 4) * FLOAT


def relaid(problem: Problem, operands: str = "b") -> Problem:
    """The problem that the product then is: its B, or which ``operands`` there are, is in the workspace."""
    p = problem
    if "a" in operands:
        p = relaid(p.turned()).turned()
    if "b" in operands:
        a, _, c = p.alignment
        p = replace(p, trans_b=False, ldb=max(_pitch(p), 1), alignment=(a, 16, c))
    return p


def schedule(config: Config, problem: Problem, sm_count: int) -> Schedule:
    """The launch of tiles that read B as laid out; its workspace begins with it."""
    plan, first = tiled_schedule(config, relaid(problem), sm_count), relay(problem).size
    return replace(plan, workspace_bytes=first + plan.workspace_bytes, sums=first)


def macros(problem: Problem) -> dict[str, int]:
    """What the kernel is compiled with."""
    return _TILE.macros() | {"TRANS_B": int(problem.trans_b)}


def _blocks(p: Problem) -> int:
    return _across(p) * -(-p.k // _TILE.bk)


def _across(p: Problem) -> int:
    return -(-p.n // _TILE.bn)


def _pitch(p: Problem) -> int:
    return -(-p.n // 4) * 4

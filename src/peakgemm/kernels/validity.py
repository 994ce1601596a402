"""The one predicate: may this kernel run with this config, on this architecture, for this problem?

The launcher, the sweep, the tests and the command line all ask here, so a constraint is
written once and every refusal names the constraint, the value and the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from ..errors import InvalidValue
from ..problem import Config, Problem, Triangle, varied
from ..runtime.architectures import Architecture
from ..runtime.tensor_map import MAX_LD
from .constraints import multiple
from .registry import Kernel

_TILE = frozenset({"bm", "bn", "bk", "tm", "tn", "aligned"})


def violations(kernel: Kernel, config: Config, arch: Architecture, problem: Problem | None = None) -> list[str]:
    """Every constraint that ``config`` breaks; an empty list means that it is valid.

    With a ``problem``, an aligned config must also suit its sizes, leading dimensions and addresses, and a kernel that
    repacks operands its batch.
    """
    broken = list(_tile(kernel, config))
    if broken:  # the formulas below divide by what has just been found wrong
        return broken
    broken += _resources(kernel, config, arch)
    broken += _handed(config)
    if problem is not None and config.aligned:
        broken += _alignment(kernel, config, problem)
    if problem is not None:
        broken += kernel.family.refuses(problem)
        broken += _triangle(kernel, config, problem)
    return broken


def is_valid(kernel: Kernel, config: Config, arch: Architecture, problem: Problem | None = None) -> bool:
    """Whether `violations` finds none."""
    return not violations(kernel, config, arch, problem)


def require(kernel: Kernel, config: Config, arch: Architecture, problem: Problem | None = None) -> None:
    """Raise `InvalidValue` naming every broken constraint."""
    broken = violations(kernel, config, arch, problem)
    if broken:
        raise InvalidValue(f"{kernel.title} cannot use the tile {config.label()} on {arch.name}: "
                           + "; ".join(broken))


def _tile(kernel: Kernel, c: Config) -> Iterator[str]:
    if type(c) is not type(kernel.default):
        yield f"a {type(c).__name__}: this kernel takes a {type(kernel.default).__name__}"
        return
    for f in () if kernel.tunes is None else fields(c):
        value, fixed = getattr(c, f.name), getattr(kernel.default, f.name)
        if value != fixed and f.name not in _TILE and not kernel.varies(f.name):
            yield f"{f.name} = {value}: this kernel has it fixed at {fixed}"
    bad = [*multiple(c, "bm", c.tm, "TM"), *multiple(c, "bn", c.tn, "TN")]
    if bad:
        yield from bad
        return
    threads = c.threads * c.slices
    if threads % 32 or not 32 <= threads <= 1024:
        yield (f"(BM/TM)(BN/TN){' slices' * (c.slices > 1)} = {threads} threads must be a multiple of 32, "
               "1024 at most")
        return
    yield from kernel.constraints(c)


def _handed(c: Config) -> Iterator[str]:
    """What accumulators handed on ask for: one chain a result, and blocks that go on to other tiles."""
    if c.handed and (c.split or c.slices > 1 or c.cluster > 1 or c.chunked or c.one_tile):
        yield (f"handed: split = {c.split}, slices = {c.slices}, cluster = {c.cluster}, chunked = {c.chunked}, "
               f"one_tile = {c.one_tile} must be 0, 1, 1, False and False: accumulators are those of one chain")


def computes(kernel: Kernel, config: Config, problem: Problem) -> bool:
    """Whether it computes what is asked for of C, all or a triangle."""
    return problem.triangle is Triangle.NONE or not any(_triangle(kernel, config, problem))


def _triangle(kernel: Kernel, c: Config, problem: Problem) -> Iterator[str]:
    if problem.triangle is Triangle.NONE:
        return
    if not kernel.family.triangles:
        yield f"triangle = {problem.triangle.name}: it computes all of C"
    elif max(c.bm, c.bn) % min(c.bm, c.bn):
        yield f"BM x BN = {c.bm} x {c.bn}: a triangle is cut from squares, so that one side must divide the other"


def _resources(kernel: Kernel, c: Config, arch: Architecture) -> Iterator[str]:
    if lacking := kernel.lacks(arch):
        yield f"{lacking}, not {arch.name}"
    elif c.cluster > 1 and "clusters" not in arch.features:
        yield f"cluster = {c.cluster}: measured on sm_90 alone, not {arch.name}; use 1"
    elif c.registers and "setmaxnreg" not in arch.features:
        yield f"registers = {c.registers}: setmaxnreg is for sm_90, not {arch.name}; use 0"
    shared = kernel.shared_bytes(c)
    room = arch.shared_per_block if kernel.dynamic else arch.static_shared
    if shared > room:
        yield f"shared memory: {shared} bytes asked, {room} there; make BM, BN, BK or the stages smaller"
    # The least that the thread must hold: accumulators and fragments.
    registers = c.tm * c.tn + c.fragments * (c.tm + c.tn)
    if registers > arch.registers_per_thread:
        yield (f"registers: {registers} a thread ({4 * registers} bytes) for accumulators and fragments, "
               f"{arch.registers_per_thread} ({4 * arch.registers_per_thread} bytes) there; make TM x TN smaller")
    elif registers * c.threads * c.slices * c.min_blocks > arch.registers_per_sm:
        asked = 4 * registers * c.threads * c.slices * c.min_blocks
        yield (f"registers: {asked} bytes asked by {c.min_blocks} block(s) of {c.threads * c.slices} threads, "
               f"{4 * arch.registers_per_sm} there; make TM x TN or the block smaller")


def _alignment(kernel: Kernel, c: Config, p: Problem) -> Iterator[str]:
    if kernel.tensor_copies:  # zeros arrive where a box passes the edge, so any size will do that a map can describe
        if p.k == 0:
            yield "K = 0: a tensor map describes one element at least"
        for name, ld in (("lda", p.lda), ("ldb", p.ldb)):
            if ld > MAX_LD:
                yield f"{name} = {ld} elements: a tensor map describes {MAX_LD} at most"
    else:
        for name, size, tile in (("M", p.m, c.bm), ("N", p.n, c.bn), ("K", p.k, c.bk)):
            if size % tile:
                yield f"{name} = {size} is not a multiple of the tile's {tile}"
    what = "a tensor map" if kernel.tensor_copies else "float4"
    for matrix, ld, address in zip("abc", (p.lda, p.ldb, p.ldc), p.alignment, strict=True):
        if matrix in kernel.vectors and (ld % 4 or address < 16):
            yield f"ld{matrix} = {ld} elements, address aligned to {address} bytes: {what} wants 4 and 16"


def choose(kernel: Kernel, config: Config, arch: Architecture, problem: Problem) -> Config:
    """The aligned compilation of ``config`` where the predicate allows it, else the guarded one.

    Raises:
        InvalidValue: a tile that is valid in neither.
    """
    fast, guarded = varied(config, aligned=True), varied(config, aligned=False)
    if is_valid(kernel, fast, arch, problem):
        return fast
    require(kernel, guarded, arch, problem)
    return guarded

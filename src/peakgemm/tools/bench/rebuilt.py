"""Cubins of one kernel whose loops differ, against the compiler's: the bits first, then interleaved times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from ...errors import PeakgemmError
from ...kernels.bound import Bound
from ...kernels.registry import Kernel
from ...problem import Config, Problem
from ...runtime.compile import Compiled
from ...runtime.device import Gpu
from .operands import address, launches
from .peers import Peer
from .timer import Timer, Work


class OtherBits(PeakgemmError):
    """A cubin that does not give the compiler's results, bit for bit; the message says where."""


class Contest:
    """One square on one GPU: operands, and the compiler's product."""

    def __init__(self, kernel: Kernel, config: Config, compiler: Compiled, size: int, gpu: Gpu, peer: Peer) -> None:
        self._kernel, self._config, self._gpu, self._peer = kernel, config, gpu, peer
        self._size, self._timer = size, Timer(peer)
        self._a, self._b = peer.random(size, size, 0), peer.random(size, size, 1)
        self._c = [peer.random(size, size, 2) for _ in range(2)]
        self._compiler = compiler

    def _work(self, compiled: Compiled, c: Any, alpha: float = 1.0, beta: float = 0.0) -> Work:
        problem = Problem.contiguous(self._size, self._size, self._size, alpha, beta)
        bound = Bound(self._kernel, self._config, problem, self._gpu, edit=lambda _: compiled)
        work, = launches(bound, [(address(self._a), address(self._b), address(c))], self._peer)
        return work

    def same_bits(self, compiled: Compiled) -> bool:
        """Whether a cubin's products are the compiler's, with and without alpha and beta: of a NaN-filled C, and of one
        that is read."""
        for alpha, beta in ((1.0, 0.0), (0.5, -2.0)):
            results: list[Any] = []
            for one in (self._compiler, compiled):
                out = self._peer.full(self._size, self._size, float("nan"))
                if beta:
                    self._peer.copy(self._c[0], out)
                self._work(one, out, alpha, beta)()
                results.append(out)
            if not _same(*results):
                return False
        return True

    def ratio(self, compiled: Compiled, rounds: int = 1) -> list[float]:
        """The compiler's time over that of ``compiled``, pair by pair."""
        found: list[float] = []
        for _ in range(rounds):
            ours, baseline = self._work(compiled, self._c[0]), self._work(self._compiler, self._c[1])
            found += self._timer.compare([ours], [baseline]).ratios
        return found


def _same(one: Any, other: Any) -> bool:
    """Whether two torch or CuPy arrays of float32 hold the same bits, NaN among them."""
    if hasattr(one, "cpu"):
        import torch

        return bool(torch.equal(one.view(torch.int32), other.view(torch.int32)))
    return bool((one.view("i4") == other.view("i4")).all())


def contest(kernel: Kernel, config: Config, compiler: Compiled, variants: Mapping[str, Compiled], size: int, gpu: Gpu,
            peer: Peer, done: Callable[[str], None] | None = None) -> dict[str, Sequence[float]]:
    """The ratios of every variant, by name.

    Raises:
        OtherBits: a variant gives other results.
    """
    field = Contest(kernel, config, compiler, size, gpu, peer)
    found: dict[str, Sequence[float]] = {}
    for name, compiled in variants.items():
        if not field.same_bits(compiled):
            raise OtherBits(f"{name}: at {size} it does not give the bits of the compiler's code; it is not written")
        found[name] = field.ratio(compiled)
        if done is not None:
            done(f"{name}: {median(found[name]):.3f}")
    return found

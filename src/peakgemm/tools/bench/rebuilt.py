"""Cubins of one kernel whose loops differ, against the compiler's: the bits first, then interleaved times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from ...errors import PeakgemmError
from ...kernels.registry import Kernel
from ...problem import Config
from ...runtime.compile import Compiled
from ...runtime.device import Gpu
from .ladder import rung_product
from .operands import Arrays
from .peers import Peer
from .products import Make
from .suites import Case
from .timer import Timer


class OtherBits(PeakgemmError):
    """A cubin that does not give the compiler's results, bit for bit; the message says where."""


class Contest:
    """One square on one GPU: operands, and the compiler's product."""

    def __init__(self, kernel: Kernel, config: Config, compiler: Compiled, size: int, gpu: Gpu, peer: Peer) -> None:
        self._kernel, self._config, self._gpu, self._peer = kernel, config, gpu, peer
        self._compiler, self._timer = compiler, Timer(peer)
        self._arrays = Arrays(Case("", size, size, size), gpu, peer)

    def _product(self, compiled: Compiled, alpha: float = 1.0, beta: float = 0.0) -> Make:
        return rung_product(self._kernel, self._config, self._gpu, self._peer, alpha, beta, lambda _: compiled)

    def same_bits(self, compiled: Compiled) -> bool:
        """Whether a cubin's products are the compiler's, with and without alpha and beta: of a NaN-filled C, and of one
        that is read."""
        a, b, _ = self._arrays.sets[0]
        for alpha, beta in ((1.0, 0.0), (0.5, -2.0)):
            results = [self._arrays.blank() for _ in range(2)]
            for out, code in zip(results, (self._compiler, compiled), strict=True):
                if beta:
                    self._peer.copy(a, out)
                self._product(code, alpha, beta)(a, b, out)()
            if not _same(*results):
                return False
        return True

    def ratio(self, compiled: Compiled) -> list[float]:
        """The compiler's time over that of ``compiled``, pair by pair."""
        works = [[self._product(code)(*each) for each in self._arrays.sets] for code in (compiled, self._compiler)]
        return self._timer.compare(*works).ratios


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
    ratios: dict[str, Sequence[float]] = {}
    for name, compiled in variants.items():
        if not field.same_bits(compiled):
            raise OtherBits(f"{name}: at {size} it does not give the bits of the compiler's code; it is not written")
        ratios[name] = field.ratio(compiled)
        if done is not None:
            done(f"{name}: {median(ratios[name]):.3f}")
    return ratios

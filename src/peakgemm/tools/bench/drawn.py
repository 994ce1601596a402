"""Products that nobody chose: sizes, layouts, batches and alignment drawn, of every kind that people multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

Shape = tuple[int, int, int, str, int]  # M, N, K, layout, batch

_MULTIPLES = (1, 1, 4, 8, 16, 32, 64)
_LAYOUTS = ("NN", "NN", "NT", "TN", "TT")
_LEAST, _MOST = 2**18, 1.2e10  # multiply-adds: below launches alone count, above a row takes half a millisecond
_BYTES = 600_000_000


def log_uniform(draw: Callable[[], float], low: int, high: int) -> int:
    """A size, each octave as likely; ``draw`` gives numbers from 0 to 1."""
    return int(low * (high / low) ** draw() + 0.5)


def drawn(seed: int) -> Iterator[Shape]:
    """Shapes without end, none twice. Sizes are log-uniform, each rounded down to a multiple drawn from 1 to 64.

    Any three sizes, batches, thin products (one size of C up to 96), a deep K, a K up to 256: a fifth each, before what
    is too small or too large is left out. Of `random.Random` only ``random()`` is used, whose values no version of
    Python changes.
    """
    draw = Random(seed).random
    seen: set[Shape] = set()

    def size(low: int, high: int) -> int:
        return log_uniform(draw, low, high)

    def either(x: int, y: int) -> tuple[int, int]:
        return (x, y) if draw() < 0.5 else (y, x)

    kinds: tuple[Callable[[], tuple[int, int, int, int]], ...] = (
        lambda: (size(8, 8192), size(8, 8192), size(8, 8192), 1),
        lambda: (size(4, 1024), size(4, 1024), size(4, 1024), size(2, 4096)),
        lambda: (*either(size(1, 96), size(256, 65536)), size(16, 16384), 1),
        lambda: (size(4, 768), size(4, 768), size(2048, 262144), 1),
        lambda: (*either(size(256, 131072), size(16, 4096)), size(2, 256), 1),
    )

    def rounded(x: int) -> int:
        multiple = _MULTIPLES[int(draw() * len(_MULTIPLES))]
        return x - x % multiple if multiple <= x else x

    while True:
        m, n, k, batch = kinds[int(draw() * len(kinds))]()
        m, n, k = rounded(m), rounded(n), rounded(k)
        shape = m, n, k, _LAYOUTS[int(draw() * len(_LAYOUTS))], batch
        work, moved = m * n * k * batch, 4 * (m * k + k * n + m * n) * batch
        if _LEAST <= work <= _MOST and moved <= _BYTES and shape not in seen:
            seen.add(shape)
            yield shape

"""When to overlap a collective with its product, and in how many chunks: a model of links and kernels.

Times are microseconds. A product's are given by whoever asks: from the cost models for a choice, from measurements for
a prediction. Overlap is: the part that is there first, while the others' parts arrive by the copy engines, in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

CHUNKS = (1, 2, 4)
# Overlap must be this much faster by the model to be taken. Both ways have the same product's model, so that its errors
# count in the difference alone; where the two are equal, the plain way has fewer launches. A first choice, not fitted.
WORTH = 0.99


@dataclass(frozen=True, slots=True)
class Link:
    """What moves data between two GPUs of a group, each way, while the other way is used as well.

    Attributes:
        copy_us, copy_gbs: one copy by an engine with its signal: what it costs besides the bytes, and the rate of one
            GPU's copies.
        collective_us, collective_gbs: the same of the library's all-gather, by the bytes that a GPU receives.
        launch_us: what a further launch costs a product that is cut.
    """

    copy_us: float
    copy_gbs: float
    collective_us: float
    collective_gbs: float
    launch_us: float = 5.0

    def copy(self, size: float) -> float:
        """One copy of ``size`` bytes, without what it costs besides."""
        return size / (1e3 * self.copy_gbs)

    def collective(self, size: float) -> float:
        """An all-gather, or reduce-scatter, of which each GPU receives ``size`` bytes."""
        return self.collective_us + size / (1e3 * self.collective_gbs)

    def to_json(self) -> dict[str, float]:
        """The fields as a JSON object."""
        return asdict(self)


class Way(NamedTuple):
    """How a product with a collective runs: ``chunks`` of each part, 0 for the collective first or last; and the time.
    """

    chunks: int
    us: float

    @property
    def name(self) -> str:
        """In a word."""
        return f"overlap/{self.chunks}" if self.chunks else "plain"


Product = Callable[[int], float]  # rows -> microseconds


def gather_ways(world: int, rows: int, row_bytes: int, product: Product, link: Link) -> Iterator[Way]:
    """Ways of ``all_gather(A) B``; ``rows`` of A, of ``row_bytes`` each, are each GPU's own."""
    yield Way(0, link.collective((world - 1) * rows * row_bytes) + product(world * rows))
    for chunks in _divisors(rows):
        part = rows // chunks
        now, one = product(rows), product(part)
        for j in range((world - 1) * chunks):
            arrived = link.copy_us + link.copy((j + 1) * part * row_bytes)
            now = max(now, arrived) + link.launch_us + one
        yield Way(chunks, now)


def scatter_ways(world: int, rows: int, row_bytes: int, product: Product, link: Link,
                 add: Callable[[int], float] | None = None) -> Iterator[Way]:
    """Ways of ``reduce_scatter(A B)``; each GPU keeps ``rows`` of ``row_bytes``. ``add``: rows -> the time to add one
    partial sum to another, which the first one is not, as the product itself adds it."""
    yield Way(0, product(world * rows) + link.collective((world - 1) * rows * row_bytes))
    for chunks in _divisors(rows):
        part = rows // chunks
        one, now, sent, arrivals = product(part), 0.0, 0.0, []
        for _ in range((world - 1) * chunks):
            now += one + link.launch_us
            sent = max(sent, now) + link.copy(part * row_bytes)
            arrivals.append(sent + link.copy_us)
        for i in range(chunks):
            last = arrivals[(world - 2) * chunks + i]
            now = max(now, last) + one + link.launch_us + (world - 2) * (add(part) if add else 0.0)
        yield Way(chunks, now)


def best(ways: Iterator[Way]) -> Way:
    """The fastest way; the plain one, which comes first, where overlap gains less than `WORTH` asks."""
    plain, *others = ways
    fastest = min(others, key=lambda way: way.us, default=plain)
    return fastest if fastest.us < WORTH * plain.us else plain


def _divisors(rows: int) -> Iterator[int]:
    for chunks in CHUNKS:
        if rows % chunks == 0 and rows // chunks >= 128 * (chunks > 1):
            yield chunks

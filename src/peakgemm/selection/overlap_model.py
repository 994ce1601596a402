"""When to overlap a collective with its product, and in how many chunks: a model of links and kernels.

Times are microseconds. A product's are given by whoever asks: from the cost models for a choice, from measurements for
a prediction. Overlap is: the part that is there first, while the others' parts arrive by the copy engines: in chunks,
or all the rest as one product once it is there.
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
        direct_us, direct_gbs: of an all-gather by stores into the others' memory, one kernel.
        own_gbs: a GPU's copy of its own rows to where the others' arrive.
        launch_us: what a further launch costs a product that is cut.
    """

    copy_us: float
    copy_gbs: float
    collective_us: float
    collective_gbs: float
    direct_us: float
    direct_gbs: float
    own_gbs: float
    launch_us: float = 5.0

    def copy(self, size: float) -> float:
        """One copy of ``size`` bytes, without what it costs besides."""
        return size / (1e3 * self.copy_gbs)

    def collective(self, size: float) -> float:
        """An all-gather, or reduce-scatter, of which each GPU receives ``size`` bytes."""
        return self.collective_us + size / (1e3 * self.collective_gbs)

    def direct(self, size: float) -> float:
        """The same by one kernel of ours."""
        return self.direct_us + size / (1e3 * self.direct_gbs)

    def to_json(self) -> dict[str, float]:
        """The fields as a JSON object."""
        return asdict(self)


class Way(NamedTuple):
    """How a product with a collective runs, and its time.

    Attributes:
        chunks: of each part; 0: the collective as one, first or last.
        us: microseconds.
        head: of an all-gather, not None: this many own rows first, while copy engines bring the others', then all other
            rows as one product; 0: one product of all rows, after an all-gather by one kernel of ours.
    """

    chunks: int
    us: float
    head: int | None = None

    @property
    def name(self) -> str:
        """In a word."""
        if self.head is not None:
            return f"head/{self.head}" if self.head else "direct"
        return f"overlap/{self.chunks}" if self.chunks else "plain"


Product = Callable[[int], float]  # rows -> microseconds


def gather_ways(world: int, rows: int, row_bytes: int, product: Product, link: Link) -> Iterator[Way]:
    """Ways of ``all_gather(A) B``; ``rows`` of A, of ``row_bytes`` each, are each GPU's own."""
    ways = [Way(0, 0), *(Way(1, 0, head) for head in heads(rows)), *(Way(chunks, 0) for chunks in _divisors(rows))]
    for way in ways:
        yield way._replace(us=gather_us(way, world, rows, row_bytes, product, link))


def gather_us(way: Way, world: int, rows: int, row_bytes: int, product: Product, link: Link) -> float:
    """What a way of ``all_gather(A) B`` takes; the arguments are those of `gather_ways`."""
    if not way.chunks:
        return link.collective((world - 1) * rows * row_bytes) + product(world * rows)
    if way.head is None:
        part = rows // way.chunks
        now, one = product(rows), product(part)
        for j in range((world - 1) * way.chunks):
            arrived = link.copy_us + link.copy((j + 1) * part * row_bytes)
            now = max(now, arrived) + link.launch_us + one
        return now
    if way.head == 0:
        return link.direct((world - 1) * rows * row_bytes) + product(world * rows)
    now, arrived = product(way.head), link.copy_us
    for rest in ranges(world, world // 2, rows, way.head):
        arrived += link.copy(rest.arriving * rows * row_bytes) + rest.own * row_bytes / (1e3 * link.own_gbs)
        now = max(now, arrived) + product(rest.stop - rest.start) + link.launch_us
    return now


def heads(rows: int) -> Iterator[int]:
    """How many of its ``rows`` a GPU may multiply first: none, and eighths of 64 rows or more."""
    yield 0
    for eighth in range(1, 8):
        if rows * eighth % 8 == 0 and rows // 8 >= 64:
            yield rows * eighth // 8


class Range(NamedTuple):
    """Rows of A that one product takes, of which ``own`` are the GPU's; ``arriving``: others whose rows come for it."""

    start: int
    stop: int
    own: int
    arriving: int


def ranges(world: int, rank: int, rows: int, head: int) -> list[Range]:
    """What GPU ``rank`` multiplies after ``head`` of its own rows: its last ones where it is the last GPU, else its
    first ones; so the first and the last GPU have one range left."""
    if rank == world - 1:
        return [Range(0, world * rows - head, rows - head, world - 1)]
    if head == 0 or rank == 0:
        return [Range(rank * rows + head if head else 0, world * rows, rows - head, world - 1)]
    return [Range(0, rank * rows, 0, rank),
            Range(rank * rows + head, world * rows, rows - head, world - 1 - rank)]


def scatter_ways(world: int, rows: int, row_bytes: int, product: Product, link: Link,
                 add: Callable[[int], float] | None = None) -> Iterator[Way]:
    """Ways of ``reduce_scatter(A B)``; each GPU keeps ``rows`` of ``row_bytes``. ``add``: rows -> the time to add one
    partial sum to another, which the first one is not, as the product itself adds it."""
    for chunks in (0, *_divisors(rows)):
        yield Way(chunks, scatter_us(Way(chunks, 0), world, rows, row_bytes, product, link, add))


def scatter_us(way: Way, world: int, rows: int, row_bytes: int, product: Product, link: Link,
               add: Callable[[int], float] | None = None) -> float:
    """What a way of ``reduce_scatter(A B)`` takes; the arguments are those of `scatter_ways`."""
    if not way.chunks:
        return product(world * rows) + link.collective((world - 1) * rows * row_bytes)
    part = rows // way.chunks
    one, now, sent, arrivals = product(part), 0.0, 0.0, []
    for _ in range((world - 1) * way.chunks):
        now += one + link.launch_us
        sent = max(sent, now) + link.copy(part * row_bytes)
        arrivals.append(sent + link.copy_us)
    for i in range(way.chunks):
        last = arrivals[(world - 2) * way.chunks + i]
        now = max(now, last) + one + link.launch_us + (world - 2) * (add(part) if add else 0.0)
    return now


def best(ways: Iterator[Way]) -> Way:
    """The fastest way; one that does not cut the product where cuts gain less than `WORTH` asks; and of those the
    direct one where the plain one gains less, since it costs the host half."""
    every = list(ways)
    whole = min((way for way in every if not way.chunks or way.head == 0),
                key=lambda way: WORTH * way.us if way.chunks else way.us)
    fastest = min(every, key=lambda way: way.us)
    return fastest if fastest.us < WORTH * whole.us else whole


def _divisors(rows: int) -> Iterator[int]:
    for chunks in CHUNKS:
        if rows % chunks == 0 and rows // chunks >= 128 * (chunks > 1):
            yield chunks

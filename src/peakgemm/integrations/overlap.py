"""When to overlap a collective with its product, and how: the ways to run both, and a model of links and kernels.

Times are microseconds. A product's are given by whoever asks: from the cost models for a choice, from measurements for
a prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        chunks: in how many parts each GPU's rows travel, while copy engines bring them; 0: the collective as one,
            first or last.
        us: microseconds.
        head: of an all-gather, not None: this many own rows are multiplied first, then all others as one product; None:
            all own rows, then each part. 0: one product of all rows, after an all-gather by one kernel of ours.
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


NAN = float("nan")
PLAIN = Way(0, NAN)


class Range(NamedTuple):
    """Rows of A that one product takes, of which ``own`` are the GPU's; ``arriving``: rows of others that come for it.
    """

    start: int
    stop: int
    own: int
    arriving: int


def ranges(world: int, rank: int, rows: int, way: Way) -> list[Range]:
    """What GPU ``rank`` multiplies, in this order, after the first of its own rows, where each has ``rows``.

    The first are all of them, or a head: its last rows where it is the last GPU, else its first ones; so the first and
    the last GPU have one range left. Those before a GPU send to it first: each link has one copy at a time.
    """
    if way.head is None:
        part = rows // way.chunks
        starts = [(rank - step) % world * rows + i * part for step in range(1, world) for i in range(way.chunks)]
        return [Range(start, start + part, 0, part) for start in starts]
    own, others = rows - way.head, (world - 1) * rows
    if rank == world - 1:
        return [Range(0, own + others, own, others)]
    behind = Range(rank * rows + way.head, world * rows, own, others - rank * rows)
    return [Range(0, rank * rows, 0, rank * rows), behind] if rank else [behind]


@dataclass(frozen=True, slots=True)
class SharedProduct:
    """A product that the GPUs of a group share: ``all_gather(A) B``, or with ``scatter`` ``reduce_scatter(A B)``.

    Attributes:
        world: GPUs.
        rows, row_bytes: each GPU's own: of A, or of the result.
        product: rows -> microseconds of one GPU's product of so many.
        link: between the GPUs.
    """

    world: int
    rows: int
    row_bytes: int
    product: Callable[[int], float]
    link: Link
    scatter: bool = False

    def ways(self) -> list[Way]:
        """Those that there are, with their times; the plain one first."""
        ways = [Way(0, 0)]
        if not self.scatter:
            eighths = range(1, 8) if self.rows // 8 >= 64 else ()
            ways += [Way(1, 0, head) for head in (0, *(self.rows * i // 8 for i in eighths if self.rows * i % 8 == 0))]
        ways += [Way(chunks, 0) for chunks in CHUNKS
                 if self.rows % chunks == 0 and self.rows // chunks >= 128 * (chunks > 1)]
        return [way._replace(us=self.us(way)) for way in ways]

    def us(self, way: Way) -> float:
        """What a way takes."""
        link, every, moved = self.link, self.world * self.rows, (self.world - 1) * self.rows * self.row_bytes
        if not way.chunks:
            return link.collective(moved) + self.product(every)
        if way.head == 0:
            return link.direct(moved) + self.product(every)
        return self._scatter_us(way) if self.scatter else self._gather_us(way)

    def _gather_us(self, way: Way) -> float:
        link = self.link
        now, arrived = self.product(self.rows if way.head is None else way.head), link.copy_us
        for rest in ranges(self.world, self.world // 2, self.rows, way):
            arrived += link.copy(rest.arriving * self.row_bytes) + rest.own * self.row_bytes / (1e3 * link.own_gbs)
            now = max(now, arrived) + self.product(rest.stop - rest.start) + link.launch_us
        return now

    def _scatter_us(self, way: Way) -> float:
        link, others, part = self.link, self.world - 1, self.rows // way.chunks
        part_us = self.product(part) + link.launch_us
        now, sent, arrivals = 0.0, 0.0, []
        for _ in range(others * way.chunks):
            now += part_us
            sent = max(sent, now) + link.copy(part * self.row_bytes)
            arrivals.append(sent + link.copy_us)
        for last in arrivals[(others - 1) * way.chunks:]:
            # The product adds one partial sum; each further one takes a launch: its bytes are in L2.
            now = max(now, last) + part_us + (others - 1) * link.launch_us
        return now


def best(ways: Sequence[Way]) -> Way:
    """The fastest way; one that does not cut the product where cuts gain less than `WORTH` asks; and of those the
    direct one where the plain one gains less, since it costs the host half."""
    whole = min((way for way in ways if not way.chunks or way.head == 0),
                key=lambda way: WORTH * way.us if way.chunks else way.us)
    fastest = min(ways, key=lambda way: way.us)
    return fastest if fastest.us < WORTH * whole.us else whole

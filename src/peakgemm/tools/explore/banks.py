"""Where the words of one warp's access lie: banks and wavefronts of shared memory, sectors of global memory.

The rules are those of `simulator.core.counters`, which counts; here each lane keeps its place, so that it can be drawn.
A test holds that both give the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..simulator.core.counters import BANKS, SECTOR

WARP = 32
WORD = 4  # bytes of a word, of which a bank gives one a wavefront
LANES_PER_PHASE = {8: 16, 16: 8}  # of accesses of so many bytes; of narrower ones all 32

Addresses = Sequence[int | None]


@dataclass(frozen=True)
class Cell:
    """A word that a wavefront moves: its number in shared memory, and the lanes that want it."""

    word: int
    lanes: tuple[int, ...]

    @property
    def bank(self) -> int:
        """The bank that it lies in."""
        return self.word % BANKS


@dataclass(frozen=True)
class Shared:
    """A warp's access to shared memory: ``wavefronts``, each of words in different banks, and how many would do.

    ``phases`` says of each wavefront which phase it belongs to: lanes of different phases never meet.
    """

    wavefronts: tuple[tuple[Cell, ...], ...]
    phases: tuple[int, ...]
    ideal: int

    @property
    def count(self) -> int:
        """Wavefronts."""
        return len(self.wavefronts)

    @property
    def conflicts(self) -> int:
        """Wavefronts more than would do."""
        return self.count - self.ideal


@dataclass(frozen=True)
class Global:
    """A warp's access to global memory: ``sectors`` of 32 bytes as (number, lanes), and how many would do."""

    sectors: tuple[tuple[int, tuple[int, ...]], ...]
    ideal: int

    @property
    def count(self) -> int:
        """Sectors."""
        return len(self.sectors)


def shared(addresses: Addresses, size: int, load: bool) -> Shared:
    """The wavefronts of a warp.

    ``addresses``: bytes in shared memory, one a lane, None where it takes no part; ``size``: bytes of each; ``load``:
    an ordinary load, whose lanes may share a phase in pairs.
    """
    wavefronts: list[tuple[Cell, ...]] = []
    phases: list[int] = []
    for phase, touched in enumerate(_phases(addresses, size, load and _paired(addresses))):
        banks: dict[int, dict[int, list[int]]] = {}
        for lane, word in touched:
            banks.setdefault(word % BANKS, {}).setdefault(word, []).append(lane)
        for row in range(max(map(len, banks.values()), default=0)):
            cells = [list(words.items())[row] for _, words in sorted(banks.items()) if len(words) > row]
            wavefronts.append(tuple(Cell(word, tuple(lanes)) for word, lanes in cells))
            phases.append(phase)
    active = sum(address is not None for address in addresses)
    least = max(1, -(-active * size // (WORD * BANKS)))
    return Shared(tuple(wavefronts), tuple(phases), min(least, len(wavefronts)))


def sectors(addresses: Addresses, size: int) -> Global:
    """The sectors of a warp; ``addresses`` in bytes, aligned to ``size``, None where a lane takes no part."""
    lanes_of: dict[int, list[int]] = {}
    for lane, address in enumerate(addresses):
        if address is not None:
            lanes_of.setdefault(address // SECTOR, []).append(lane)
    lanes = sum(map(len, lanes_of.values()))
    return Global(tuple((number, tuple(who)) for number, who in sorted(lanes_of.items())),
                  min(-(-lanes * size // SECTOR), len(lanes_of)))


def source_wavefronts(addresses: Addresses, size: int) -> int:
    """Wavefronts that the banks of a cp.async's *source* take (``.ca``): no two lanes share a word there."""
    return sum(max(Counter(word % BANKS for _, word in touched).values(), default=0)
               for touched in _phases(addresses, size))


def _phases(addresses: Addresses, size: int, paired: bool = False) -> Iterator[list[tuple[int, int]]]:
    """The lanes of each phase, in which ``paired`` accesses of 8 and 16 bytes go twice as far, with each of their
    words."""
    per_phase = LANES_PER_PHASE.get(size, WARP) * (2 if paired and size in LANES_PER_PHASE else 1)
    for start in range(0, WARP, per_phase):
        yield [(lane, address // WORD + step) for lane, address in enumerate(addresses[start:start + per_phase], start)
               if address is not None for step in range(max(size // WORD, 1))]


def _paired(addresses: Addresses) -> bool:
    def agree(lane: int, other: int) -> bool:
        here, there = addresses[lane], addresses[other]
        return here is None or there is None or here == there

    return any(all(agree(lane, lane ^ flip) for lane in range(len(addresses))) for flip in (1, 2))

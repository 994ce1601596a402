"""One access of a warp in a sentence: which lanes meet in which bank, and what padding or order would end it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..simulator.core.counters import BANKS, SECTOR
from .banks import WORD, Addresses, Cell, sectors, shared

MOST_PADDING = 32  # words: a row of banks


@dataclass(frozen=True)
class Padding:
    """``words`` more in each row of ``pitch`` words leave ``wavefronts``."""

    pitch: int
    words: int
    wavefronts: int


def padding(addresses: Addresses, size: int, load: bool) -> Padding | None:
    """The smallest padding of the rows that ends the conflicts of a warp, or the one that leaves the fewest.

    The length of a row is not in the addresses. It is taken to be one of the distances between lanes, and what is
    found is counted again with the addresses as they would be. None: there is no conflict, or no padding helps.
    """
    now = shared(addresses, size, load)
    if now.conflicts <= 0:
        return None
    step = max(size // WORD, 1)  # a vector must stay aligned
    best: Padding | None = None
    for pitch in _pitches(addresses, size):
        for words in range(step, MOST_PADDING + 1, step):
            count = shared(padded(addresses, pitch, words), size, load).count
            if best is None or (count, words) < (best.wavefronts, best.words):
                best = Padding(pitch, words, count)
    return best if best is not None and best.wavefronts < now.count else None


def padded(addresses: Addresses, pitch: int, words: int) -> list[int | None]:
    """The addresses with ``words`` more at the end of each row of ``pitch`` words; the first lane's row is row 0."""
    present = [address for address in addresses if address is not None]
    start = min(present) // WORD if present else 0
    return [None if address is None else address + WORD * words * ((address // WORD - start) // pitch)
            for address in addresses]


def swizzled(addresses: Addresses, size: int) -> list[int | None]:
    """The addresses where piece i (of ``size`` bytes) of row r, a row being one word of each bank, lies at i ^ r."""
    unit = max(size, WORD)
    row = BANKS * WORD // unit
    out: list[int | None] = []
    for address in addresses:
        piece = 0 if address is None else address // unit
        out.append(None if address is None else address + unit * ((piece ^ piece // row % row) - piece))
    return out


def shared_sentence(addresses: Addresses, size: int, load: bool) -> str:
    """What a warp's access to shared memory costs, in a sentence or two."""
    access = shared(addresses, size, load)
    verb = "read" if load else "access"
    if not access.count:
        return "No lane takes part."
    if access.conflicts <= 0:
        return (f"No conflict: {_plural(access.count, 'wavefront')}, the fewest for what "
                f"{_plural(sum(a is not None for a in addresses), 'lane')} {verb}.")
    cells = _fullest(access.wavefronts, access.phases)
    lanes = sorted({lane for cell in cells for lane in cell.lanes})
    phases = len(set(access.phases))
    where = f"bank {cells[0].bank}" + ("" if phases == 1 else f" in the fullest of {phases} phases")
    told = (f"{_lanes(lanes)} meet in {where}: {len(cells)} different words{_apart(cells)}, "
            f"one a wavefront. The access takes {_plural(access.count, 'wavefront')} where {access.ideal} would do.")
    return f"{told} {_cure(addresses, size, load)}"


def global_sentence(addresses: Addresses, size: int) -> str:
    """What a warp's access to global memory costs, in a sentence or two."""
    access = sectors(addresses, size)
    lanes = sum(address is not None for address in addresses)
    if not lanes:
        return "No lane takes part."
    if access.count <= access.ideal:
        return (f"Coalesced: {_plural(lanes, 'lane')} x {size} bytes in {_plural(access.count, 'sector')} of "
                f"{SECTOR} bytes, the fewest.")
    apart = _step(addresses)
    told = f", {apart} bytes from lane to lane" if apart else ""
    used = 100 * lanes * size // (SECTOR * access.count)
    distinct = len({address for address in addresses if address is not None})
    start = (f"{_plural(lanes, 'lane')} touch {_plural(access.count, 'sector')} of {SECTOR} bytes where {access.ideal} "
             f"would do{told}")
    if apart == size or distinct * size > SECTOR * access.count // 2:
        return f"{start}: the run does not begin at a multiple of {SECTOR} bytes. Align the start of each row."
    return f"{start}: {used} % of what is moved is wanted. Let neighbouring lanes take neighbouring addresses."


def _cure(addresses: Addresses, size: int, load: bool) -> str:
    least, found, order = shared(addresses, size, load).ideal, padding(addresses, size, load), []
    unit, row = max(size // WORD, 1), BANKS // max(size // WORD, 1)
    if shared(swizzled(addresses, size), size, load).count <= least:
        what = "word" if unit == 1 else f"piece of {size} bytes"
        order.append(f"a swizzle (in row r of {BANKS} words, put {what} i at i ^ r % {row})")
    order.append("an order in which neighbouring lanes take neighbouring words")
    if found is None:
        return f"No padding of rows ends it. What would: {'; or '.join(order)}."
    rows = f"{found.pitch + found.words} words in place of {found.pitch}"
    pad = f"{_plural(found.words, 'word')} of padding in each row ({rows})"
    if found.wavefronts <= least:
        return f"{pad} would end it. So would {', or '.join(order)}."
    return f"{pad} would leave {_plural(found.wavefronts, 'wavefront')}. What would end it: {'; or '.join(order)}."


def _fullest(wavefronts: Sequence[tuple[Cell, ...]], phases: Sequence[int]) -> list[Cell]:
    """The words of the bank, in one phase, that has the most; of equals the first."""
    words_of: dict[tuple[int, int], list[Cell]] = {}
    for cells, phase in zip(wavefronts, phases, strict=True):
        for cell in cells:
            words_of.setdefault((phase, cell.bank), []).append(cell)
    return max(words_of.values(), key=len)


def _pitches(addresses: Addresses, size: int) -> list[int]:
    """Lengths of a row, in words, that the distances between lanes suggest; the most common distance first."""
    words = sorted({address // WORD for address in addresses if address is not None})
    unit = max(size // WORD, 1)
    starts = [word for place, word in enumerate(words) if not place or word - words[place - 1] != unit]
    apart = Counter(b - a for a, b in pairwise(starts))
    common = [distance for distance, _ in apart.most_common(4)]
    banks: dict[int, list[int]] = {}
    for word in words:
        banks.setdefault(word % BANKS, []).append(word)
    meet = [b - a for these in banks.values() for a, b in pairwise(these)]
    return list(dict.fromkeys([*common, *([min(meet)] if meet else [])]))


def _step(addresses: Addresses) -> int | None:
    """The distance from each number to the next where it is the same, such as bytes from lane to lane."""
    apart = {b - a for a, b in pairwise(addresses) if a is not None and b is not None}
    return apart.pop() if len(apart) == 1 else None


def _apart(cells: Sequence[Cell]) -> str:
    step = _step(sorted(cell.word for cell in cells))
    return f", {step} words apart" if step is not None else ""


def _lanes(lanes: Sequence[int]) -> str:
    """``Lanes 0, 4, 8 to 11``."""
    runs: list[list[int]] = []
    for lane in lanes:
        if runs and lane == runs[-1][-1] + 1:
            runs[-1].append(lane)
        else:
            runs.append([lane])
    if len(lanes) > 4 and _step(lanes) not in (None, 1):
        return f"Lanes {lanes[0]}, {lanes[1]}, ... {lanes[-1]} ({len(lanes)} of them)"
    shown = [str(one) for run in runs for one in (run if len(run) < 3 else [f"{run[0]} to {run[-1]}"])]
    return ("Lane " if len(lanes) == 1 else "Lanes ") + ", ".join(shown)


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"

"""Register maps of a thread tile: which bank each accumulator must sit in, so that its FFMAs read without a conflict.

``C(i, j) += A(i) B(j)`` reads A(i), B(j) and C(i, j). Fragments come by 128-bit loads of four consecutive registers,
aligned to four, so their banks are given: A(i) and B(j) repeat with i and j. Accumulators are free. The maps that were
published for each architecture answer one question, and here the answer is searched for, not copied:

* **Kepler** (KeplerAs): no reuse cache, so A, B and C of every FFMA must lie in three of the four banks. A's quads are
  put where the register's number is 0 to 3 modulo 8, B's where it is 4 to 7: then A and B never meet, and of the two
  banks left C takes either.
* **Maxwell, Pascal** (maxas): C lies in neither A(i)'s nor B(j)'s bank. A(i) and B(j) themselves meet where i and j are
  alike modulo 4; the walk over the tile, back and forth, holds one of them in the reuse cache.
* **sm_70 to sm_80** ("transposed" for Volta): only three reads of one parity conflict: where A(i) and B(j) have the
  same, C(i, j) has the other. Then no FFMA waits whatever the order and the reuse cache.
* **sm_86 and later**: the walk holds A(i); C has the parity that B(j) has not.

The search is exact: accumulators are dealt to banks with as many registers in each as the register file gives (a flow
of one unit each, by augmenting paths), and the walk is then checked by the architecture's own rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import InvalidValue
from .register_reads import KEPLER, Reads, Rule, steady

_LARGEST = 256  # accumulators a thread: more than there are registers
_QUAD = 4


@dataclass(frozen=True)
class RegisterMap:
    """Registers of a tile of ``rows`` x ``columns``: ``a[i]``, ``b[j]``, ``c[i][j]``; ``rule`` says what a bank is."""

    rule: Rule
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: tuple[tuple[int, ...], ...]

    @property
    def registers(self) -> int:
        """One more than the highest register."""
        return 1 + max(*self.a, *self.b, *(one for row in self.c for one in row))

    def walk(self) -> list[Reads]:
        """The FFMAs of one k-step, row by row, back and forth, ``.reuse`` where the next one reads the same."""
        return [reads for reads, _ in self._walk()]

    def _walk(self) -> list[tuple[Reads, tuple[int, int]]]:
        order = list(snake(len(self.a), len(self.b)))
        steps = []
        for place, (i, j) in enumerate(order):
            following = order[(place + 1) % len(order)]
            reuse = (following[0] == i) | (following[1] == j) << 1
            steps.append((Reads((self.a[i], self.b[j], self.c[i][j]), reuse), (i, j)))
        return steps

    def late(self) -> dict[tuple[int, int], float]:
        """Cycles that each (i, j) waits for its registers, above those of an FFMA without conflict; none are left
        out."""
        turns = steady(self.walk(), self.rule)
        waits: dict[tuple[int, int], float] = {}
        for turn in turns:
            for (_, place), step in zip(self._walk(), turn, strict=True):
                if step is not None and step.cycles > self.rule.issue:
                    waits[place] = waits.get(place, 0.0) + (step.cycles - self.rule.issue) / len(turns)
        return waits

    def late_alone(self) -> dict[tuple[int, int], int]:
        """The same with nothing in the reuse cache: what holds in any order of the FFMAs."""
        alone = replace(self.rule, stages=0, reuse=False).reader()
        waits = {place: alone.read(reads.registers).cycles - self.rule.issue for reads, place in self._walk()}
        return {place: cycles for place, cycles in waits.items() if cycles}

    @property
    def cycles_per_ffma(self) -> float:
        """Modelled cycles an FFMA of the walk."""
        return self.rule.issue + sum(self.late().values()) / (len(self.a) * len(self.b))


def snake(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Row by row, every other one backwards: from one FFMA to the next one fragment stays."""
    for i in range(rows):
        for j in range(columns) if i % 2 == 0 else reversed(range(columns)):
            yield i, j


def naive(rule: Rule, rows: int, columns: int) -> RegisterMap:
    """A, B and C one after the other, C row by row: what a first draft has."""
    _check(rows, columns)
    a = tuple(range(rows))
    b = tuple(range(rows, rows + columns))
    start = -(-(rows + columns) // _QUAD) * _QUAD
    c = tuple(tuple(range(start + i * columns, start + (i + 1) * columns)) for i in range(rows))
    return RegisterMap(rule, a, b, c)


def derived(rule: Rule, rows: int, columns: int) -> RegisterMap:
    """A map without a conflict, found by search.

    Raises:
        InvalidValue: a tile that is no multiple of four each way or too large, or for which there is no such map.
    """
    _check(rows, columns)
    a, b, start = _fragments(rule, rows, columns)
    free = [one for one in range(start) if one not in {*a, *b}] + list(range(start, start + 2 * rows * columns))
    by_bank: dict[int, list[int]] = {bank: [] for bank in range(rule.banks)}
    for register in free:
        by_bank[rule.bank(register)].append(register)
    allowed = {(i, j): _allowed(rule, a[i], b[j]) for i in range(rows) for j in range(columns)}
    # As even as can be: what a register file has.
    room = -(-rows * columns // rule.banks)
    dealt = _deal(allowed, dict.fromkeys(range(rule.banks), room))
    if dealt is None:
        raise InvalidValue(f"no map of {rows}x{columns} accumulators is without a conflict by the rule: {rule.name}")
    taken = {bank: iter(registers) for bank, registers in by_bank.items()}
    made = RegisterMap(rule, a, b, tuple(tuple(next(taken[dealt[i, j]]) for j in range(columns)) for i in range(rows)))
    if late := made.late():
        raise InvalidValue(f"{len(late)} of {rows * columns} FFMAs wait in the walk over {rows}x{columns} by the rule: "
                           f"{rule.name}")
    return made


def _check(rows: int, columns: int) -> None:
    if rows < 1 or columns < 1 or rows % _QUAD or columns % _QUAD or rows * columns > _LARGEST:
        raise InvalidValue(f"tile {rows}x{columns}: rows and columns must be multiples of {_QUAD} (fragments come by "
                           f"128-bit loads), {_LARGEST} accumulators at most")


def _fragments(rule: Rule, rows: int, columns: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Registers of A and of B, in aligned quads, and the first one behind them. On Kepler A and B take quads in
    turn."""
    if rule != KEPLER:
        return tuple(range(rows)), tuple(range(rows, rows + columns)), rows + columns
    a = tuple(8 * (i // _QUAD) + i % _QUAD for i in range(rows))
    b = tuple(8 * (j // _QUAD) + _QUAD + j % _QUAD for j in range(columns))
    return a, b, 8 * (max(rows, columns) // _QUAD)


def _allowed(rule: Rule, a: int, b: int) -> tuple[int, ...]:
    """The banks in which an accumulator waits for neither fragment."""
    ours, theirs = rule.bank(a), rule.bank(b)
    if rule.stages:
        return tuple(bank for bank in range(rule.banks) if bank != theirs)
    if rule.issue > 1:
        return tuple(bank for bank in range(rule.banks) if not ours == theirs == bank)
    return tuple(bank for bank in range(rule.banks) if bank not in (ours, theirs))


def _deal(allowed: dict[tuple[int, int], tuple[int, ...]], room: dict[int, int]) -> dict[tuple[int, int], int] | None:
    """One bank for each place, at most ``room`` places in each: a matching by augmenting paths; None: there is none."""
    dealt: dict[tuple[int, int], int] = {}
    held: dict[int, list[tuple[int, int]]] = {bank: [] for bank in room}

    def seat(place: tuple[int, int], tried: set[int]) -> bool:
        # Of those with room the emptiest first, so that the deal is even.
        for bank in sorted(allowed[place], key=lambda one: len(held[one])):
            if bank in tried:
                continue
            tried.add(bank)
            if len(held[bank]) < room[bank]:
                held[bank].append(place)
                dealt[place] = bank
                return True
            for other in list(held[bank]):
                if seat(other, tried):
                    held[bank].remove(other)
                    held[bank].append(place)
                    dealt[place] = bank
                    return True
        return False

    return dealt if all(seat(place, set()) for place in allowed) else None

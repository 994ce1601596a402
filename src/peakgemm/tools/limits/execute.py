"""Follow a block through a kernel's SASS: which instructions its warps issue, and what they access.

Nothing waits here, for order does not change where the branches of such kernels go: a barrier lets pass, a wait finds
what it waits for. `model` says when things happen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import InvalidValue
from ...sass.encoding import Word
from ...sass.program import Program, target
from ..simulator.core import counters
from ..simulator.core.lanes import LaneSet
from .semantics import State, Step, Unknown, compiled, operands

#: First byte of the parameters in constant bank 0 (sm_90); block and grid lie at its start.
PARAMETERS = 0x210
MOST_STEPS = 2_000_000
_SECTOR, _LINE = 32, 128
_DATA = "what is loaded"
_SHARED = frozenset(("LDS", "STS", "LDSM", "STSM", "ATOMS"))
_GLOBAL = frozenset(("LDG", "STG", "LDGSTS", "ATOMG", "RED", "REDG", "ATOM", "LD", "ST"))
#: Barriers, copies and the like, of which `model` wants an operand.
_NOTED = frozenset(("SYNCS", "BAR", "UTMALDG", "UBLKCP"))
_NOTHING = frozenset(("NOP", "BSSY", "BSYNC", "WARPSYNC", "EXIT", "BRA", "DEPBAR", "LDGDEPBAR", "MEMBAR", "FENCE",
                      "ERRBAR", "CCTL", "WARPGROUP", "NANOSLEEP", "YIELD", "ACQBULK", "PREEXIT", "RET"))


@dataclass(frozen=True)
class Access:
    """What an instruction asks of memory, by warp of the block: ``wavefronts`` of shared memory, and the lines of
    global memory with their sectors, as bits; ``lanes``: how many are active."""

    size: int
    lanes: tuple[int, ...]
    wavefronts: tuple[int, ...] = ()
    lines: tuple[tuple[tuple[int, int], ...], ...] = ()

    def moved(self, lines: int) -> Access:
        """The same so many lines on."""
        shifted = tuple(tuple((line + lines, sectors) for line, sectors in warp) for warp in self.lines)
        return Access(self.size, self.lanes, self.wavefronts, shifted)


@dataclass(frozen=True)
class Segment:
    """A basic block, as some warps passed it: ``warps`` as bits; ``accesses`` and ``notes`` (a number for each warp) by
    place."""

    start: int
    stop: int
    warps: int
    accesses: Mapping[int, Access]
    notes: Mapping[int, tuple[int, ...]]


@dataclass
class Path:
    """What a block did: ``segments`` in order; ``guessed``: what its branches or addresses depend on that was taken to
    be zero."""

    program: Program
    texts: Mapping[int, str]
    warps: int
    segments: list[Segment] = field(default_factory=list)
    guessed: set[str] = field(default_factory=set)

    def of(self, warp: int) -> Iterator[Segment]:
        """The segments of one warp."""
        return (one for one in self.segments if one.warps >> warp & 1)

    def executed(self) -> dict[int, int]:
        """Warp instructions by place."""
        times = np.zeros(len(self.program.words), np.int64)
        for one in self.segments:
            times[one.start:one.stop] += one.warps.bit_count()
        return {place: int(count) for place, count in enumerate(times) if count}


class Block:
    """One block of a launch: ``constants`` is bank 0, ``special`` registers such as ``CTAID.X``."""

    def __init__(self, program: Program, texts: Mapping[int, str], threads: Sequence[int], constants: bytes,
                 special: Mapping[str, int]) -> None:
        x, y, z = threads
        self._warps = -(-x * y * z // 32)
        lanes = np.arange(32 * self._warps)
        inside = lanes < x * y * z
        places = {"TID.X": lanes % x, "TID.Y": lanes // x % y, "TID.Z": lanes // (x * y), "LANEID": lanes % 32}
        self._state = State(len(lanes), constants, {
            name: np.asarray(value).astype(np.uint64) for name, value in {**special, **places}.items()})
        self._at = np.where(inside, 0, len(program.words))
        self._program, self._texts = program, texts
        self.path = Path(program, texts, self._warps)
        self._steps: dict[int, list[Any]] = {}
        self._seen: dict[Any, Access] = {}
        self._tainted: dict[str, Any] = {}  # by register: the lanes in which it depends on what was not computed
        self._why: dict[str, str] = {}
        self._local: dict[str, Any] = {}

    def run(self) -> Path:
        """Until all lanes have ended.

        Raises:
            Unknown: a branch or an address depends on an instruction that is not modelled.
            InvalidValue: it does not end.
        """
        end, words, blocks = len(self._program.words), self._program.words, self._program.blocks
        leaders = np.array(sorted(blocks))
        for _ in range(MOST_STEPS):
            start = int(self._at.min())
            if start >= end:
                return self.path
            here = self._at == start
            stop = blocks[start].stop if start in blocks else int(leaders[np.searchsorted(leaders, start)])
            mask = True if here.all() else here
            accesses: dict[int, Access] = {}
            notes: dict[int, tuple[int, ...]] = {}
            for work in self._block(start, stop):
                work(mask, accesses, notes)
            self.path.segments.append(Segment(start, stop, self._bits(here), accesses, notes))
            last = words[stop - 1]
            goes = self._guard(last, here)
            after = np.where(here, stop, self._at)
            if last.name == "EXIT":
                after = np.where(goes, end, after)
            elif last.name in ("BRA", "JMP"):
                to = target(last, stop - 1)
                if to is None:
                    raise Unknown(f"{self._texts[stop - 1]} goes where a register says")
                self._depends([str(one) for one in last.reads], self._texts[stop - 1], here)
                goes = goes & self._also(stop - 1)
                after = np.where(here & self._state.warps(goes) if ".ANY" in self._texts[stop - 1] else goes, to, after)
            elif last.name in ("BRX", "BRXU", "RET", "CALL", "JMX"):
                raise Unknown(f"{self._texts[stop - 1]}: calls and jumps by register are not followed")
            self._at = after
        raise InvalidValue(f"{self._program.name} takes more than {MOST_STEPS:,} branches in a block: a smaller size "
                           "shows the same limit, if it ends")

    def _bits(self, lanes: Any) -> int:
        return int(sum(1 << int(warp) for warp in np.flatnonzero(lanes.reshape(-1, 32).any(axis=1))))

    def _guard(self, word: Word, mask: Any) -> Any:
        if word.guard == 7:
            return mask if not word.negated else np.zeros(self._state.lanes, bool)
        held = self._state.predicates["U" if word.layout.guard_kind == "UP" else ""][word.guard]
        return mask & (~held if word.negated else held)

    def _also(self, place: int) -> Any:
        """The predicate operand of a branch, if it has one."""
        _, _, given = operands(self._texts[place])
        return self._state.predicate(given[0])() if len(given) > 1 else True

    def _depends(self, registers: Sequence[str], text: str, mask: Any) -> None:
        for register in registers:
            if register in self._tainted and (self._tainted[register] & mask).any():
                if (why := self._why[register]) != _DATA:
                    raise Unknown(f"{text} depends on {why}, which is not modelled")
                self.path.guessed.add(text.strip())

    def _taint(self, written: Sequence[str], read: Sequence[str], mask: Any, why: str = "") -> None:
        """Note whether what is written depends on what was not computed: on ``why``, or as what is read does."""
        known = [one for one in read if one in self._tainted]
        if not why and not known and not any(one in self._tainted for one in written):
            return
        lanes: Any = np.full(self._state.lanes, bool(why))
        for one in known:
            lanes, why = lanes | self._tainted[one], self._why[one]
        for one in written:
            self._tainted[one] = np.where(mask, lanes, self._tainted.get(one, False))
            self._why[one] = why or self._why.get(one, _DATA)

    def _block(self, start: int, stop: int) -> list[Any]:
        if start not in self._steps:
            made = (self._work(place, self._program.words[place]) for place in range(start, stop))
            self._steps[start] = [work for work in made if work is not None]
        return self._steps[start]

    def _work(self, place: int, word: Word) -> Any:
        """What is done of an instruction; None: nothing."""
        text, name = self._texts[place], word.name
        if word.never or name in _NOTHING:
            return None
        if name in _SHARED or name in _GLOBAL:
            return self._accessing(place, word, text)
        if name in _NOTED:
            return self._noting(place, word, text)
        reads, writes = [str(one) for one in word.reads], [str(one) for one in word.writes]
        if name in ("LDL", "STL"):
            return self._spill(word, text)
        step: Step | None = None
        why = ""
        try:
            step = compiled(text, self._state)
        except Unknown:
            why = text.strip()
        if step is None and (word.kind in ("ffma", "float", "tensor") or not writes):
            return None

        def work(mask: Any, accesses: Any, notes: Any) -> None:
            mask = self._guard(word, mask)
            if step is not None:
                step(mask)
            self._taint(writes, reads, mask, why)
        return work

    def _spill(self, word: Word, text: str) -> Any:
        """Spilled registers: kept by the operand's text, since the stack pointer stays."""
        name, mods, given = operands(text)
        wide = "64" in mods
        load, kept = name == "LDL", self._local
        register, at = given if load else given[::-1]
        put, read = self._state.target(register, wide), self._state.source(register, wide)

        def work(mask: Any, accesses: Any, notes: Any) -> None:
            mask = self._guard(word, mask)
            if load:
                put(kept.get(at, np.uint64(0)), mask)
            else:
                np.copyto(kept.setdefault(at, np.zeros(self._state.lanes, np.uint64)), read(), where=mask)
            self._taint([register if load else at], [at if load else register], mask)
        return work

    def _noting(self, place: int, word: Word, text: str) -> Any:
        """The address of an mbarrier (and parity, count or bytes, in the upper half), the number of a barrier, where a
        copy goes; and from bit 64 on how many lanes take part. -1: none does."""
        name, _, given = operands(text)
        state = self._state
        brackets = [one for one in given if "[" in one]
        if name == "BAR":
            at = state.source(given[0]) if given else state.source("0x0")
            more = state.source(given[1]) if len(given) > 1 else state.source("0x0")
        else:
            # A copy's first operand names two registers: where to, and its barrier.
            inner = brackets[0][1:-1]
            at = state.source(f"UR{int(inner[2:]) + 1}") if name != "SYNCS" else state.address(brackets[0])
            rest = given[given.index(brackets[0]) + 1:]
            more = state.source(rest[0]) if name == "SYNCS" and rest else state.source("0x0")
        outs = [state.target(one) for one in given if one in ("P0", "P1", "P2", "P3", "P4", "P5", "P6")]

        def work(mask: Any, accesses: Any, notes: Any) -> None:
            active = self._guard(word, mask)
            full = np.broadcast_to(active, state.lanes)
            value = np.broadcast_to(at() & np.uint64(0xFFFFFFFF) | (more() & np.uint64(0xFFFFFFFF)) << np.uint64(32),
                                    state.lanes)
            first = state.first(value, active)[::32]
            count = full.reshape(-1, 32).sum(axis=1)
            notes[place] = tuple(int(one) | int(some) << 64 if some else -1
                                 for one, some in zip(first, count, strict=True))
            for put in outs:
                put(np.ones(state.lanes, bool), active)
        return work

    def _accessing(self, place: int, word: Word, text: str) -> Any:
        name, mods, given = operands(text)
        size = max((int(one) for one in mods if one in ("64", "128")), default=32) // 8
        for bits, bytes_ in (("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2)):
            size = bytes_ if bits in mods else size
        state, brackets = self._state, [one for one in given if "[" in one]
        at = state.address(brackets[-1])
        to = state.address(brackets[0]) if name == "LDGSTS" else None
        load, shared = name.startswith("LD"), name in _SHARED
        writes = [str(one) for one in word.writes if one.kind == "R"]
        where = [str(one) for one in word.guards] + re.findall(r"U?R\d+", "".join(brackets))
        zero = [state.target(str(one)) for one in word.writes if one.kind == "R"]

        def work(mask: Any, accesses: Any, notes: Any) -> None:
            active = np.broadcast_to(self._guard(word, mask), state.lanes)
            if self._tainted:
                self._depends(where, text, active)
            accesses[place] = self._cost(place, name, size, at(), None if to is None else to(), active, load, shared,
                                         mods)
            for put in zero:
                put(np.uint64(0), active)
            self._taint(writes, (), active, _DATA)
        return work

    def _cost(self, place: int, name: str, size: int, address: Any, to: Any, active: Any, load: bool, shared: bool,
              mods: set[str]) -> Access:
        lanes = np.flatnonzero(active)
        if not len(lanes):
            return Access(size, (0,) * self._warps, (0,) * self._warps, ((),) * self._warps)
        base = 0 if shared else int(address[lanes].min()) // _LINE * _LINE
        near = address.astype(np.int64) - base
        key = (place, near[lanes].tobytes(), active.tobytes(), None if to is None else to[lanes].tobytes())
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = self._costs(name, size, near, to, active, lanes, load, shared, mods)
        return found if shared or not base else found.moved(base // _LINE)

    def _costs(self, name: str, size: int, near: Any, to: Any, active: Any, lanes: Any, load: bool, shared: bool,
               mods: set[str]) -> Access:
        rows = active.reshape(-1, 32)
        counts = tuple(int(one) for one in rows.sum(axis=1))
        group = LaneSet(lanes, 32)
        wavefronts = [0] * self._warps
        lines: list[tuple[tuple[int, int], ...]] = [()] * self._warps
        present = np.flatnonzero(rows.any(axis=1))
        if shared or to is not None:
            if name == "LDSM":
                cost = np.full(len(present), 4)
            elif to is not None and "BYPASS" not in mods:
                cost = counters.copy_per_warp(to[lanes], near[lanes], np.ones(len(lanes), bool), group, size)
            else:
                cost = counters.per_warp((near if to is None else to)[lanes], group, size, load and to is None)
            for warp, each in zip(present, cost, strict=True):
                wavefronts[warp] = int(each)
        if not shared:
            for warp in present:
                mine = near[32 * warp:32 * warp + 32][rows[warp]]
                sectors: dict[int, int] = {}
                for one in np.unique(mine // _SECTOR):
                    sectors[int(one) // 4] = sectors.get(int(one) // 4, 0) | 1 << int(one) % 4
                lines[warp] = tuple(sectors.items())
        return Access(size, counts, tuple(wavefronts), tuple(lines))


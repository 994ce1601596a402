"""Variants of a kernel's main loop that each lack one more of the things that it may wait for.

They are made in a copy of the cubin, in place: an instruction is replaced by a NOP with its stall, so nothing moves.
What they compute is wrong on purpose; how long they take tells what each thing costs. The steps, each on top of the
last:

``reads``   FFMAs read registers without conflicts: a comes from the reuse cache, b from the other bank than c. What
            they write, and c, stay: as many sums, as far apart. A register that FFMAs do not read is never named, and
            none is held that anything else reads.
``loads``   no loads from shared memory.
``copies``  no copies from global to shared memory by the threads that compute.
``others``  no arithmetic but FFMA, save what `needed` finds.
``waits``   nothing waits for a barrier of the block. Waits for the mbarriers of a ring stay: a warp without them runs
            ahead of the slowest one by more stages than the ring has, and the kernel faults or never ends.
``operands`` FFMAs read no registers: what is left of their cost that the model of register reads does not know.

What names an instruction from outside the code (`Cubin.pinned`) is neither moved nor replaced. Waits for scoreboards
stay: an empty one costs nothing, and the first turn needs those of the prologue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lab.bill.needed import needed
from peakgemm.errors import InvalidValue
from peakgemm.sass.elf import NOP, Cubin
from peakgemm.sass.encoding import Word, decode
from peakgemm.sass.program import Program
from peakgemm.sass.register_file import RegisterFile
from peakgemm.sass.register_reads import rule_of

_FFMA, _RZ = 0x223, 255
_SLOTS = {24: 0, 32: 1, 64: 2}  # a, b and c by the bit where an instruction names them
_LOADS = frozenset(("LDS", "LDSM"))
_COPIES = frozenset(("LDG", "STS", "LDGSTS", "LDGDEPBAR", "DEPBAR"))
_MOVES = frozenset(("MOV", "UMOV", "R2UR", "S2R", "S2UR", "CS2R", "CS2UR", "R2P", "P2R", "LDC", "ULDC", "LDCU"))
_MOST_REPAIRS, _LOOK_BACK = 20, 6
_MOST_REUSE_STALL = 11  # .reuse may stand with stalls of 1 to 11 and no yield: others were refused or ignored
#: The classes of `Variants.slots`, in the order in which tables show them.
CLASSES = ("ffma", "loads", "copies", "barriers", "branches", "moves", "integer", "padding")


@dataclass(frozen=True)
class Variant:
    """The loop after one more step: ``changed`` counts the instructions that the step replaced, by opcode."""

    name: str
    program: Program
    changed: Mapping[str, int]


@dataclass(frozen=True)
class Variants:
    """A kernel's main loop and its variants.

    ``body`` are the places of the loop that a turn runs, in order: what the compiler put out of line is for warps that
    wait, and not counted.
    """

    cubin: Cubin
    program: Program
    body: tuple[int, ...]

    @classmethod
    def of(cls, cubin: Cubin, name: str = "") -> Variants:
        """The loop with the most FFMA of a kernel; without a name, of the cubin's only one.

        Raises:
            InvalidValue: no loop around an FFMA, or an architecture of another model of register reads.
            UnknownInstruction: see `Program.of`.
        """
        if not rule_of(cubin.arch).stages:
            raise InvalidValue(f"{cubin.arch}: variants are made for read stages in front of two banks, sm_86 and "
                               "later; this architecture's registers are read otherwise")
        program = Program.of(cubin, name)
        blocks, loop = program.loop_blocks, program.loop
        assert loop is not None
        runs: list[list[range]] = []
        for block in blocks:
            if runs and runs[-1][-1].stop == block.start:
                runs[-1].append(block)
            else:
                runs.append([block])
        run = next(one for one in runs if any(loop.header // 16 == block.start for block in one))
        return cls(cubin, program, tuple(place for block in run for place in block))

    @cached_property
    def slots(self) -> dict[str, int]:
        """Issue slots of a turn by class; those of `CLASSES` that there are."""
        counts = Counter(kind(self.program.words[place]) for place in self.body)
        return {name: counts[name] for name in CLASSES if counts[name]}

    @cached_property
    def late(self) -> int:
        """Modelled cycles that register reads cost a turn."""
        return sum(cycles - 1 for _, cycles in _steps(self.program.words, self.body))

    @cached_property
    def waits_for_mbarriers(self) -> bool:
        """Whether other warps fill the stages that the loop reads, so that its waits are part of a protocol."""
        return any(_is_wait(self.program.words[place]) for place in self._loop)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The main loop, what the compiler put out of line included: first places, and those behind the last."""
        return [(block.start, block.stop) for block in self.program.loop_blocks]

    @cached_property
    def _loop(self) -> tuple[int, ...]:
        return tuple(place for block in self.program.loop_blocks for place in block)

    @cached_property
    def steps(self) -> tuple[Variant, ...]:
        """The variants, in order; the first is the kernel as it is."""
        found = [Variant("as it is", self.program, {})]
        makers: Sequence[tuple[str, Callable[[Program], dict[int, Word]]]] = (
            ("reads", self._reads), ("loads", self._loads), ("copies", self._copies), ("others", self._others),
            ("waits", self._waits), ("operands", self._operands))
        for name, make in makers:
            before = found[-1].program
            changes = {place: word for place, word in make(before).items() if word != before.words[place]}
            found.append(Variant(name, before.with_words([changes.get(place, word) for place, word
                                                          in enumerate(before.words)]),
                                 dict(Counter(before.words[place].name for place in changes).most_common())))
        return tuple(found)

    def code(self, variant: Variant) -> bytes:
        """A cubin with a variant in the kernel's place."""
        return self.cubin.with_words(variant.program.encode(), self.program.name)

    def _free(self, program: Program, names: Iterable[str]) -> dict[int, Word]:
        """NOPs for the accesses called ``names`` that return nothing needed, and that nothing outside points to."""
        pinned = self.cubin.pinned(self.program.name)
        places = [place for place in self._loop if program.words[place].name in names
                  and not program.words[place].never and 16 * place not in pinned]
        keep = needed(program, places)
        return {place: nop(program.words[place]) for place in places if place not in keep}

    def _reads(self, program: Program) -> dict[int, Word]:
        return conflict_free(program.words, self.body)

    def _loads(self, program: Program) -> dict[int, Word]:
        pinned = self.cubin.pinned(self.program.name)
        free = self._free(program, _LOADS)
        return free | {place: nop(program.words[place]) for place in self.body if program.words[place].name in _LOADS
                       and not program.words[place].never and 16 * place not in pinned and self._brings(program, place)}

    def _brings(self, program: Program, place: int) -> bool:
        """Whether an FFMA is the first to read something of what a load returns: a fragment, and so no address."""
        loaded, at = set(program.words[place].writes), self.body.index(place) + 1
        for other in (*self.body[at:], *self.body[:at]):
            word = program.words[other]
            if not loaded.isdisjoint(word.reads):
                return word.name == "FFMA"
            loaded -= word.writes
        return False

    def _copies(self, program: Program) -> dict[int, Word]:
        return self._free(program, _COPIES)

    def _others(self, program: Program) -> dict[int, Word]:
        keep, pinned = needed(program), self.cubin.pinned(self.program.name)
        return {place: nop(word) for place in self._loop if place not in keep and 16 * place not in pinned
                and (word := program.words[place]).name not in ("FFMA", "NOP")}

    def _waits(self, program: Program) -> dict[int, Word]:
        if self.waits_for_mbarriers:
            return {}
        return {place: nop(word) for place in self._loop if (word := program.words[place]).name == "BAR"
                and not word.never}

    def _operands(self, program: Program) -> dict[int, Word]:
        return {place: word.with_control(reuse=0).with_numbers([_RZ if field.low in _SLOTS else number
                                                                for field, number in word.named])
                for place in self.body if (word := program.words[place]).opcode == _FFMA and not word.never}


def kind(word: Word) -> str:
    """One of `CLASSES`."""
    if word.never or word.name == "NOP":
        return "padding"
    if word.name == "FFMA":
        return "ffma"
    if word.name in _LOADS:
        return "loads"
    if word.name in _COPIES:
        return "copies"
    if word.ends_block:
        return "branches"
    if word.name in _MOVES:
        return "moves"
    return "barriers" if word.access else "integer"


def nop(word: Word) -> Word:
    """A NOP in an instruction's place: with its stall, yield and waits, without its scoreboards."""
    return decode(NOP, word.arch).with_control(stall=word.control.stall, yield_=word.control.yield_,
                                               wait_mask=word.control.wait_mask)


def conflict_free(words: Sequence[Word], body: Sequence[int]) -> dict[int, Word]:
    """The FFMAs of a loop with operands that no bank is asked too much for, by the model of `register_file`.

    Raises:
        InvalidValue: the model finds a late read still.
    """
    ffmas = [place for place in body if words[place].opcode == _FFMA and not words[place].never]
    operands = {place: _operands(words[place]) for place in ffmas}
    # What else reads the held register by slot a would get what the reuse cache has, an address of long ago.
    others = {register.number for place in body if words[place].opcode != _FFMA for register in words[place].reads
              if register.kind == "R"}
    held = Counter(slots[0] for slots in operands.values() if slots[0] not in {_RZ, *others}).most_common(1)
    choice = [sorted({slots[1] for slots in operands.values() if slots[1] != _RZ and slots[1] % 2 == parity})
              for parity in (0, 1)]
    if not held or not all(choice):
        raise InvalidValue("the loop's FFMAs read registers of one parity only; there is no choice without conflicts")
    made: dict[int, Word] = {}
    for number, place in enumerate(ffmas):
        word, (_, b, c) = words[place], operands[place]
        if c != _RZ and b % 2 == c % 2:
            apart = choice[1 - c % 2]
            b = apart[number % len(apart)]
        keeps = word.control.yield_ == 1 and 1 <= word.control.stall <= _MOST_REUSE_STALL
        made[place] = _reading(word, held[0][0] if keeps else _RZ, b, 1 if keeps else 0)
    for _ in range(_MOST_REPAIRS):
        changed = [made.get(place, word) for place, word in enumerate(words)]
        late = [place for place, cycles in _steps(changed, body) if cycles > 1 and place in made]
        if not late:
            return made
        # What is no FFMA has taken the reuse cache's entry, so that a is read again, or asks a bank for much: an FFMA
        # nearby reads no b instead. Every cycle of both banks is asked for, so a read too many is never made up for.
        for place in late:
            end = body.index(place) + 1
            near = [one for one in reversed(body[max(0, end - _LOOK_BACK):end])
                    if one in made and _operands(made[one])[1] != _RZ]
            near.sort(key=lambda one: (_operands(made[one])[1] - held[0][0]) % 2)
            if _operands(made[place])[1] == _RZ or not near:
                made[place] = _reading(made[place], _RZ, _RZ, 0)
            else:
                made[near[0]] = _reading(made[near[0]], _operands(made[near[0]])[0], _RZ, made[near[0]].control.reuse)
    raise InvalidValue(f"{len(late)} FFMAs still read late by the model")


def _steps(words: Sequence[Word], body: Sequence[int]) -> list[tuple[int, int]]:
    """Modelled cycles from the instruction before to each that reads by operand slots, in the second turn."""
    file, found = RegisterFile(), list[tuple[int, int]]()
    for _ in range(2):
        found = []
        for place in body:
            word = words[place]
            if word.access or word.ends_block or word.layout.guard_kind == "UP":
                file.skip()
                continue
            written = next((number for field, number in word.named if field.role == "w" and field.kind == "R"), None)
            step = file.read(word.slots, word.control.reuse, written if word.name == "FFMA" else None)
            found.append((place, step.cycles))
    return found


def _operands(word: Word) -> tuple[int, int, int]:
    at = {field.low: number for field, number in word.named}
    return at[24], at[32], at[64]


def _reading(word: Word, a: int, b: int, reuse: int) -> Word:
    return word.with_control(reuse=reuse).with_numbers([{24: a, 32: b}.get(field.low, number)
                                                        for field, number in word.named])


def _is_wait(word: Word) -> bool:
    """Whether it waits for an mbarrier's phase: it says by a predicate whether the phase has ended."""
    return word.name == "SYNCS" and not word.never and any(register.kind == "P" for register in word.writes)


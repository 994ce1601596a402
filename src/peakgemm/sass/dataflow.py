"""Who depends on whom in a block, and whether two versions of a block compute the same.

The comparison numbers values: each is a hash-consed expression over what the block finds in its registers and in
memory. Two versions are the same where every register ends with the same expression, and the accesses to each memory
space and all synchronisation form the same sequence. Control bits play no part: that they are right is
`hazards`' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .encoding import ALWAYS, Register, Word, no_register
from .opcodes import SPACES

_FFMA = 0x223
Guard = tuple[bool, int] | None  # whether it is negated, and the value of the predicate


@dataclass(frozen=True, slots=True)
class Dependence:
    """The instruction at ``after`` must follow the one at ``before`` (places in the block).

    ``kind`` is RAW, WAR or WAW, of ``register``; MEM (two accesses whose order matters) or FLOW (control flow).
    """

    before: int
    after: int
    kind: str
    register: Register | None = None


def dependences(block: Sequence[Word]) -> list[Dependence]:
    """Every dependence of a block of straight-line code, in order of ``after``; none that another two imply over the
    same register."""
    edges: list[Dependence] = []
    written: dict[Register, int] = {}
    readers: dict[Register, list[int]] = {}
    stores: dict[str, int] = {}
    loads: dict[str, list[int]] = {name: [] for name in SPACES}
    flow: int | None = None
    for place, word in enumerate(block):
        for register in sorted(word.reads):
            if register in written:
                edges.append(Dependence(written[register], place, "RAW", register))
        for register in sorted(word.writes):
            if register in written:
                edges.append(Dependence(written[register], place, "WAW", register))
            edges += [Dependence(reader, place, "WAR", register) for reader in readers.get(register, ())
                      if reader != place]
        for register in word.reads:
            readers.setdefault(register, []).append(place)
        for register in word.writes:
            written[register], readers[register] = place, []
        accessed = word.access
        if accessed or word.reads_clock:
            touched = SPACES if accessed in ("", "sync") else (accessed, "sync")
            before = set()
            for name in touched:
                if name in stores:
                    before.add(stores[name])
                if not word.only_loads:
                    before |= set(loads[name])
            edges += [Dependence(earlier, place, "MEM") for earlier in sorted(before)]
            for name in (accessed or "sync",) if accessed != "sync" else SPACES:
                if word.only_loads:
                    loads[name].append(place)
                else:
                    stores[name], loads[name] = place, []
        if flow is not None:
            edges.append(Dependence(flow, place, "FLOW"))
        if word.ends_block:
            first = flow + 1 if flow is not None else 0
            edges += [Dependence(earlier, place, "FLOW") for earlier in range(first, place)]
            flow = place
    return edges


@dataclass
class Numbering:
    """Expressions met so far, by what they are made of: equal ones have one number."""

    known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def of(self, *parts: object) -> int:
        """The number of an expression."""
        return self.known.setdefault(parts, len(self.known))

    def operation(self, word: Word, value: Callable[[Register], int], guard: Guard, *more: object) -> int:
        """The number of what an instruction does: its operation on the values that it reads, under a guard; ``more``
        is what it depends on beside registers."""
        sources = [tuple(map(value, word.registers(field, number))) for field, number in word.operands
                   if field.role in "rx"]
        if word.opcode == _FFMA:  # a product is the same whichever way round, its signs in ``rest`` too
            sources[:2] = sorted(sources[:2])
        nowhere = tuple(place for place, (field, number) in enumerate(word.operands)
                        if field.role in "wx" and field.bits and number == no_register(field.kind, word.arch))
        return self.of("do", word.opcode, word.layout.name, guard, tuple(sources), nowhere, *more)


def guard_of(word: Word, value: Callable[[Register], int]) -> Guard:
    """The value and the sense of an instruction's guard; None: it always runs."""
    return None if word.guard == ALWAYS else (word.negated, value(Register(word.layout.guard_kind, word.guard)))


def results(word: Word) -> Iterator[tuple[Register, int, int]]:
    """The registers that an instruction writes, with the places of operand and register that tell its results apart."""
    for place, (entry, number) in enumerate(word.operands):
        if entry.role in "wx":
            for offset, register in enumerate(word.registers(entry, number)):
                yield register, place, offset


@dataclass(frozen=True)
class Outcome:
    """What a block leaves: the expression in each register that it wrote, and that of each memory space."""

    registers: Mapping[Register, int]
    memory: Mapping[str, int]


def outcome(block: Sequence[Word], numbering: Numbering, names: Mapping[Register, Register] | None = None) -> Outcome:
    """Number what a block computes.

    ``names`` maps this block's registers to those of the version that it is compared with, where it has been renamed.
    """
    values: dict[Register, int] = {}
    memory = {name: numbering.of("memory", name) for name in SPACES}

    def original(register: Register) -> Register:
        return names.get(register, register) if names else register

    def value(register: Register) -> int:
        if register not in values:
            values[register] = numbering.of("in", original(register))
        return values[register]

    for word in block:
        if word.never and not word.ends_block:
            if word.access:
                memory["padding"] = numbering.of("never", word.opcode, word.rest, memory["padding"], memory["sync"])
            continue
        guard = guard_of(word, value)
        accessed = word.access
        ordered = accessed != "" or word.reads_clock or word.ends_block
        touched = () if not ordered else SPACES if accessed in ("", "sync") else (accessed, "sync")
        seen = tuple(memory[name] for name in touched)
        done = numbering.operation(word, value, guard, word.rest, seen)
        for register, place, offset in results(word):
            old = value(register) if guard is not None else None
            values[register] = numbering.of("result", done, place, offset, old)
        if ordered and not (accessed != "" and word.only_loads):
            for name in touched if accessed in ("", "sync") else (accessed,):
                memory[name] = done
    return Outcome({original(register): number for register, number in values.items()
                    if number != numbering.of("in", original(register))}, memory)


def difference(before: Sequence[Word], after: Sequence[Word],
               names: Mapping[Register, Register] | None = None) -> str | None:
    """What two versions of a block do not have in common, in words; None: they compute the same.

    ``names`` maps registers of ``after`` to those of ``before``.
    """
    numbering = Numbering()
    first, second = outcome(before, numbering), outcome(after, numbering, names)
    for register in sorted({*first.registers, *second.registers}):
        if first.registers.get(register) != second.registers.get(register):
            return f"{register} ends with another value"
    for name in reversed(SPACES):
        if first.memory[name] != second.memory[name]:
            return ("synchronisation or control flow differs" if name == "sync" else
                    "what pads the asynchronous copies differs" if name == "padding" else
                    f"the accesses to {name} memory differ")
    return None

"""Three transformations of a kernel, and the door through which an edited one becomes a cubin: `install`.

`remap` renames registers over the whole kernel, `reorder` moves instructions within a block, `retime` recomputes the
control bits of a block for its order. None of them is trusted: `install` writes a cubin only if every block computes
what it did (`dataflow`), what the rest of the file points to lies where it lay, and the hazard checker finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from ..errors import InvalidValue
from .control import NO_BARRIER
from .dataflow import difference
from .elf import WORD_BYTES, Cubin
from .encoding import ALWAYS, Register, Word
from .hazards import VISIBLE, Unproved, against, check, refuse
from .latency import safe, shortest_stall
from .program import Program
from .schedule import State, cycles, states, step, waited

_STACK = 1  # R1 is the stack pointer, which debuggers and the driver's trap handler know
_ROUNDS = 8
_LOOKAHEAD = 4  # instructions over which `retime` keeps a reuse entry; another warp may come between any two


def remap(program: Program, numbers: Mapping[int, int]) -> Program:
    """The kernel with its registers renamed: ``numbers`` maps old to new; what it leaves out keeps its number.

    Raises:
        InvalidValue: not a bijection, the stack pointer renamed, a register beyond those that the kernel has, or a
            group of registers (64 or 128 bits, the accumulators of wgmma) torn apart or moved off its alignment.
    """
    used = {register.number for word in program.words for operand in word.operands
            for register in word.registers(*operand) if register.kind == "R"}
    full = {number: numbers.get(number, number) for number in used | set(numbers)}
    if len(set(full.values())) != len(full):
        twice = next(new for new in full.values() if list(full.values()).count(new) > 1)
        raise InvalidValue(f"two registers would become R{twice}; a renaming must be a bijection")
    if full.get(_STACK, _STACK) != _STACK:
        raise InvalidValue(f"R{_STACK} is the stack pointer and keeps its number")
    top = max(used, default=0)
    if max((full[number] for number in used), default=0) > top:
        raise InvalidValue(f"R{max(full[number] for number in used)} lies beyond R{top}, the last that the kernel uses")
    renamed = []
    for place, word in enumerate(program.words):
        for field, number in word.operands:
            registers = word.registers(field, number) if field.kind == "R" else ()
            if len(registers) < 2:
                continue
            first, align = full[number], min(8, 1 << (len(registers) - 1).bit_length())
            if [full[register.number] for register in registers] != list(range(first, first + len(registers))):
                raise InvalidValue(f"address {place * WORD_BYTES:#x}: {word.name} uses R{number} to "
                                   f"R{registers[-1].number} as a group, which the renaming tears apart")
            if first % align != number % align:
                raise InvalidValue(f"address {place * WORD_BYTES:#x}: {word.name} uses a group at R{number}, which "
                                   f"R{first} does not match modulo {align}")
        renamed.append(word.renamed({Register("R", old): new for old, new in full.items()}))
    return program.with_words(renamed)


def reorder(program: Program, block: range, order: Sequence[int]) -> Program:
    """The kernel with the instructions of a block in another order: ``order`` lists their old places.

    Each brings its control bits along; `retime` the block afterwards.

    Raises:
        InvalidValue: not a permutation of the block.
        Unproved: the block would compute something else.
    """
    if sorted(order) != list(block):
        raise InvalidValue(f"order is not a permutation of the places {block.start} to {block.stop - 1}")
    moved = [program.words[place] for place in order]
    if (said := difference([program.words[place] for place in block], moved)) is not None:
        raise Unproved(f"{program.name}, block at {block.start * WORD_BYTES:#x}: in this order {said}")
    return program.with_block(block, moved)


def retime(program: Program, block: range, original: Program | None = None) -> Program:
    """The kernel with stalls, waits and reuse of a block recomputed for its order; scoreboard numbers stay.

    A stall is as short as the opcode and `latency.safe` allow. A load that set no scoreboard because a later
    one did sets that one's where it now comes too late. An instruction waits for the scoreboards that its registers
    need; synchronisation and control flow keep their waits, and what the ``original`` block (before it was reordered;
    else this one) had waited for at its end is waited for at the end. Yield bits stay but where reuse forbids.

    Raises:
        Unproved: the first instruction would issue before what an earlier block computes is there.
    """
    before = original or program
    for _ in range(_ROUNDS):  # in a loop, what the block finds is what it leaves itself
        edited = _retimed(program, block, before)
        if edited == program:
            break
        program = edited
    return program


def _retimed(program: Program, block: range, before: Program) -> Program:
    """One round of `retime`, from what the program as it is leaves in flight where the block begins."""
    start = states(program)[block.start]
    words = _with_reuse([program.words[place] for place in block])
    state, clock, timed = start.copy(), 0, list[Word]()
    alone: set[int] = set()  # loads that relied on the scoreboard of a later one, which now comes too late
    for place, word in zip(block, words, strict=True):
        keeps = word.ends_block or word.access == "sync" or word.name == "WARPGROUP"
        mask = word.control.wait_mask if keeps else 0
        mask |= _needed(word, state, mask, program)
        alone |= {flight.place for register in word.reads | word.writes for flight in state.results.get(register, ())
                  if not flight.barriers and flight.queue != "tensor" and flight.place in block}
        word = word.with_control(wait_mask=mask)
        earliest = max([clock, *(time + VISIBLE for barrier, time in state.set.items() if waited(word) >> barrier & 1),
                        *_ready(word, state, words, block, program)])
        if earliest > clock and timed:
            timed[-1] = timed[-1].with_control(stall=min(15, timed[-1].control.stall + earliest - clock))
        elif earliest > clock:  # the block before has to leave more time
            raise Unproved(f"{program.name}, block at {block.start * WORD_BYTES:#x}: its first instruction would issue "
                           f"{earliest - clock} cycles before its operands are there")
        clock = earliest
        stall = max(shortest_stall(word), word.control.stall if keeps else 1)
        word = word.with_control(stall=stall)
        state.wait(word)
        step(state, word, place, clock)
        clock += cycles(word)
        timed.append(word)
    last = timed[-1].control
    # What follows the block counts on the time that the original left behind its last results.
    timed[-1] = timed[-1].with_control(wait_mask=last.wait_mask | _owed(before, block, timed, start),
                                       stall=max(last.stall, before.words[block[-1]].control.stall))
    for place in alone:
        at = place - block.start
        if timed[at].control.write_barrier == NO_BARRIER:
            timed[at] = timed[at].with_control(write_barrier=_neighbour(timed, at))
    return program.with_block(block, timed)


def install(cubin: Cubin, edited: Program, names: Mapping[int, int] | None = None) -> bytes:
    """The bytes of ``cubin`` with an edited kernel in the place of its own, if it is proved.

    ``names`` is the renaming that `remap` was given, where there was one: it is what the blocks are compared under.

    Raises:
        Unproved: another length, blocks or meaning than the cubin's kernel, a moved instruction that the file points
            to, or a hazard; the message says which.
    """
    original = Program.of(cubin, edited.name)
    back = {Register("R", new): Register("R", old) for old, new in (names or {}).items()}
    refuse(against(edited, original, back))
    for address in sorted(cubin.pinned(edited.name)):
        first_, second_ = (one.words[address // WORD_BYTES] for one in (original, edited))
        if (first_.opcode, first_.rest) != (second_.opcode, second_.rest):
            raise Unproved(f"{edited.name}: the file points to the {first_.name} at {address:#x}, which has moved")
    refuse(check(edited))
    return cubin.with_words(edited.encode(), edited.name)


def _needed(word: Word, state: State, mask: int, program: Program) -> int:
    """The scoreboards beside ``mask`` that an instruction has to wait for: of each flight the lowest, which is set
    first."""
    more = 0
    for _, flight, _ in state.blocking(word, program):
        if not flight.barriers & (mask | more):
            more |= flight.barriers & -flight.barriers
    return more


def _neighbour(words: Sequence[Word], at: int) -> int:
    """The scoreboard that the next instruction of the same queue sets, or one before it; 0 where there is none."""
    mine = words[at].queue
    for word in (*words[at + 1:], *reversed(words[:at])):
        if word.queue == mine and word.control.write_barrier != NO_BARRIER:
            return word.control.write_barrier
    return 0


def _ready(word: Word, state: State, words: Sequence[Word], block: range, program: Program) -> list[int]:
    """When the fixed-latency results that an instruction needs are there."""
    times: list[int] = []
    for register in word.reads | word.writes:
        for place, issued in state.issued.get(register, {}).items():
            inside = place in block and issued >= 0
            before = words[place - block.start] if inside else program.words[place]
            times.append(issued + safe(before, word, register))
    return times


def _owed(before: Program, block: range, timed: Sequence[Word], start: State) -> int:
    """Scoreboards that the block used to have waited for when it ended, and now has not."""
    def pending(words: Sequence[Word]) -> int:
        return reduce(lambda mask, word: mask & ~waited(word) | word.control.sets, words, 0)

    def ended(words: Sequence[Word]) -> int:
        return reduce(lambda mask, word: mask | waited(word), words, 0)

    untimed = [before.words[place] for place in block]
    set_before = 0
    for flights in (*start.results.values(), *start.reads.values()):
        for flight in flights:
            set_before |= flight.barriers
    return pending(timed) & ~pending(untimed) | ended(untimed) & ~ended(timed) & set_before


def _with_reuse(words: Sequence[Word]) -> list[Word]:
    """The words with reuse set where one of the next instructions reads the same register by the same slot."""
    made = []
    for at, word in enumerate(words):
        if word.queue or word.name == "DEPBAR" or word.ends_block:
            made.append(word)
            continue
        bits = sum(_read_again(words, at, slot) << slot for slot, width in word.slot_widths.items() if width == 1)
        made.append(word.with_control(reuse=bits, yield_=1 if bits else word.control.yield_))
    return made


def _read_again(words: Sequence[Word], at: int, slot: int) -> int:
    number = words[at].slots[slot]
    assert number is not None
    register = Register("R", number)
    if register in words[at].writes or words[at].guard != ALWAYS:
        return 0
    for word in words[at + 1:at + 1 + _LOOKAHEAD]:
        if word.ends_block or word.queue:
            return 0
        held = word.slots[slot] if word.slot_widths.get(slot) == 1 else None
        if held == number:
            return int(word.guard == ALWAYS)
        if (held is not None and held % 2 == number % 2) or register in word.writes:
            return 0
    return 0


__all__ = ["Unproved", "install", "remap", "reorder", "retime"]

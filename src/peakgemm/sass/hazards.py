"""Is every dependence of a kernel covered by its control bits? For sm_90.

The rules, along every path of the control flow:

- A fixed-latency result is not used, nor overwritten, sooner than compiled code ever does (`latency`).
- A variable-latency result is not used or overwritten before a scoreboard that tells of it has been waited for, nor is
  a register overwritten that such an instruction may still have to read.
- A scoreboard is waited for two cycles after it was set, or later: sooner it does not count yet.
- A reuse entry is not read after its register has been written.
- The control bits are a combination that exists: a scoreboard from 0 to 5, none set by a fixed-latency instruction,
  reuse only without yield.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import InvalidValue
from .control import BARRIERS, NO_BARRIER
from .dataflow import difference
from .elf import WORD_BYTES, Cubin
from .encoding import Register, Word
from .latency import ARCH, least
from .program import Program
from .schedule import HORIZON, State, states, walk

#: Cycles from an instruction that sets a scoreboard to one that may wait for it.
VISIBLE = 2
#: Where compiled code has stall 0.
_NO_STALL = frozenset(("NOP", "USETMAXREG", "BRA", "ERRBAR"))


class Unproved(InvalidValue):
    """An edit that cannot be proved to keep what the kernel computes; nothing was written."""


@dataclass(frozen=True, slots=True, order=True)
class Hazard:
    """One fault: the instruction at ``address`` does not wait long enough for that at ``source``, or is itself wrong.

    ``rule`` is ``latency``, ``result``, ``read``, ``scoreboard``, ``reuse``, ``control`` or ``value``; those of
    `arrivals.early` have ``arrival``.
    """

    address: int
    rule: str
    source: int
    register: str
    message: str
    kernel: str = ""


def check(program: Program) -> list[Hazard]:
    """Every hazard of a kernel, by address.

    Raises:
        InvalidValue: another architecture than sm_90.
    """
    if program.arch != ARCH:
        raise InvalidValue(f"{program.arch}: the hazard checker has latencies for {ARCH} alone")
    hazards: dict[tuple[int, str, int], Hazard] = {}

    def note(place: int, rule: str, source: int, register: Register | None, message: str) -> None:
        key = place, rule, source
        if key not in hazards:
            hazards[key] = Hazard(place * WORD_BYTES, rule, source * WORD_BYTES, str(register or ""), message,
                                  program.name)

    def watch(place: int, word: Word, state: State, clock: int) -> None:
        for barrier, time in state.set.items():
            if word.control.wait_mask >> barrier & 1 and clock - time < VISIBLE:
                note(place, "scoreboard", place, None, f"waits for scoreboard {barrier} {clock - time} cycle after it "
                     f"was set; it counts from {VISIBLE} on")
        for register in word.reads | word.writes:
            for before, issued in state.issued.get(register, {}).items():
                needed, row = least(program.words[before], word, register)
                if clock - issued < min(needed, HORIZON):
                    note(place, "latency", before, register, f"{word.name} comes {clock - issued} cycles after "
                         f"{program.words[before].name} wrote {register}; compiled code leaves {needed} ({row})")
        for register, flight, is_result in state.blocking(word, program):
            does = "reads" if is_result and register in word.reads else "overwrites"
            note(place, "result" if is_result else "read", flight.place, register,
                 f"{word.name} {does} {register} before {program.words[flight.place].name} is known to have "
                 f"{'written' if is_result else 'read'} it{_how(flight.barriers)}")

    for block, state in states(program).items():
        walk(program, block, state, watch)
        for place, source, register, message in _reuse(program, block):
            note(place, "reuse", source, register, message)
    for place, word in enumerate(program.words):
        for message in _control(word):
            note(place, "control", place, None, message)
    return sorted(hazards.values())


def against(program: Program, original: Program, names: Mapping[Register, Register] | None = None) -> list[Hazard]:
    """Where an edited kernel does not compute what the original does: block by block.

    Blocks, and so branches, must lie where they lay. ``names`` maps its registers to the original's; without, they are
    kept.
    """
    hazards: list[Hazard] = []
    if len(program.words) != len(original.words) or program.blocks != original.blocks or \
            program.successors != original.successors:
        return [Hazard(0, "value", 0, "", "its blocks, or the branches between them, are not those of the original",
                       program.name)]
    for start, places in original.blocks.items():
        first, second = ([one.words[place] for place in places] for one in (original, program))
        if first != second and (message := difference(first, second, names)) is not None:
            hazards.append(Hazard(start * WORD_BYTES, "value", start * WORD_BYTES, "",
                                  f"the block computes something else: {message}", program.name))
    return hazards


def refuse(hazards: Sequence[Hazard]) -> None:
    """Refuse an edit that has hazards.

    Raises:
        Unproved: there are any; the message says the first.
    """
    if hazards:
        raise Unproved(f"{hazards[0].kernel}, {hazards[0].address:#x}: {hazards[0].message} ({len(hazards)} hazards)")


def check_cubin(cubin: Cubin, original: Cubin | None = None) -> list[Hazard]:
    """The hazards of every kernel of a cubin; with an ``original``, its differences from that too."""
    hazards = []
    for name in cubin.kernels:
        program = Program.of(cubin, name)
        hazards += check(program)
        if original is not None:
            hazards += against(program, Program.of(original, name))
    return hazards


def _how(barriers: int) -> str:
    numbers = [str(number) for number in range(BARRIERS) if barriers >> number & 1]
    return f" (scoreboard {' or '.join(numbers)} is not waited for)" if numbers else " (it sets no scoreboard)"


def _control(word: Word) -> list[str]:
    control, faults = word.control, []
    for name, barrier in (("write", control.write_barrier), ("read", control.read_barrier)):
        if BARRIERS <= barrier < NO_BARRIER:
            faults.append(f"{name} barrier {barrier}; there are 0 to {BARRIERS - 1}")
        elif barrier != NO_BARRIER and not word.queue:
            faults.append(f"{word.name} has a fixed latency and sets scoreboard {barrier}")
    if control.stall == 0 and word.name not in _NO_STALL:
        faults.append(f"{word.name} with stall 0; compiled code gives it 1 or more")
    if control.reuse and not word.queue and word.name != "DEPBAR" and not control.yield_:
        faults.append("reuse and yield in one instruction")
    return faults


def _reuse(program: Program, block: int) -> Sequence[tuple[int, int, Register, str]]:
    """Reuse entries read after their register was written, within a block."""
    entries: dict[tuple[int, int], tuple[int, int, int | None]] = {}  # slot and bank: register, kept by, written by
    faults = []
    for place in program.blocks[block]:
        word = program.words[place]
        if not word.queue and not word.never:
            for slot, width in word.slot_widths.items():
                if width > 1:  # a group reads both banks
                    entries.pop((slot, 0), None)
                    entries.pop((slot, 1), None)
                    continue
                number = word.slots[slot]
                assert number is not None
                register, keeper, writer = entries.pop((slot, number % 2), (-1, place, None))
                if register == number and writer is not None:
                    faults.append((place, keeper, Register("R", number), f"R{number} comes from the reuse cache as it "
                                   f"was before {program.words[writer].name} at {writer * WORD_BYTES:#x} wrote it"))
                if word.control.reuse >> slot & 1:
                    entries[slot, number % 2] = number, place, None
        for written in word.writes:
            if written.kind == "R":
                for key, (register, keeper, writer) in list(entries.items()):
                    if register == written.number and writer is None:
                        entries[key] = register, keeper, place
    return faults

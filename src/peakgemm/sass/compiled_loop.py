"""What a compiler made of a kernel's main loop: read off each cubin once, when it is compiled.

The choice of a kernel asks this: a release of ptxas may give a loop other registers, move accumulators about or spill,
and such a compilation is not worth running where another configuration is. Of the loop's instructions only FFMAs and
those that steer control flow are taken apart, so that a kernel of 4,000 instructions is read in some 20 ms.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..errors import InvalidValue
from .banks import reads_slots
from .elf import WORD_BYTES, Cubin
from .encoding import UnknownInstruction, decode
from .listing import Instruction
from .loops import main_loop
from .program import outline
from .register_reads import Reader, Reads, rule_of

_OPCODE, _FORMED = 0x1FF, 0xFFF  # bits of the opcode, without and with its form, which says where operands lie
_FFMA, _FFMA_OF_REGISTERS = 0x023, 0x223
_LOCAL = frozenset((0x183, 0x187))  # LDL, STL
#: BSYNC, BREAK, CALL, BSSY, BRA, WARPSYNC, BRX, EXIT, RET, BRXU: what `inspect.loops` follows.
_CONTROL_FLOW = frozenset((0x141, 0x142, 0x144, 0x145, 0x147, 0x148, 0x149, 0x14D, 0x150, 0x158))
_SLOTS, _REUSE = (24, 32, 64), 122  # low bits of the operands a, b, c, and of .reuse's bits for them
_NONE = 255  # RZ
SAMPLE = 512  # instructions of which a first call waits for the model, of up to 2,200 of a turn
_BEFORE = 64  # instructions that leave the reuse cache as a whole turn does


@dataclass(frozen=True, slots=True)
class CompiledLoop:
    """Figures of the main loop, the one that holds most FFMAs.

    Attributes:
        instructions, ffmas: of a turn.
        local: loads and stores of local memory among them, spilled registers.
        cycles_per_ffma: issue cycles of an FFMA by the model of register reads (`register_reads`), 1.0 at best with 32
            lanes a sub-partition, 2.0 with 16.
        issue: cycles of an FFMA without conflict.
    """

    instructions: int
    ffmas: int
    local: int
    cycles_per_ffma: float
    issue: int

    @property
    def share(self) -> float:
        """The share of a sub-partition's FP32 peak that the loop leaves, 0 to 1: FFMAs over all issue slots, with the
        cycles that FFMAs wait for register banks."""
        waited = self.ffmas * (self.cycles_per_ffma - self.issue)
        if self.issue == 2:  # what else issues goes into an FFMA's second cycle
            return self.ffmas * 2 / (max(self.ffmas * 2, self.instructions) + waited)
        return self.ffmas / (self.instructions + waited)

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


def read(code: bytes, entry: str, most: int | None = None) -> CompiledLoop | None:
    """The figures of kernel ``entry`` of a cubin; None: no loop around FFMAs, or no table of its architecture.

    ``most``: register reads of so many instructions at most are modelled, from the start of a turn. A first call waits
    for the model, 10 us an instruction, and the k-steps of a turn are much alike.
    """
    try:
        cubin = Cubin.read(code)
        words = cubin.words(entry)
        rule = rule_of(cubin.arch)
        flow = tuple(_outlined(word, cubin.arch, place, entry) for place, word in enumerate(words))
    except InvalidValue:
        return None
    loop = main_loop(flow)
    if loop is None:
        return None
    turn = [words[one.address // WORD_BYTES] for one in loop.instructions]
    reader, cycles, modelled = rule.reader(), 0, 0
    for word in turn[-_BEFORE:]:
        _step(reader, _reads(word, cubin.arch))
    for word in turn[:most]:
        spent = _step(reader, _reads(word, cubin.arch))
        if word & _OPCODE == _FFMA:
            cycles, modelled = cycles + spent, modelled + 1
    if not modelled:
        return None
    ffmas = sum(word & _OPCODE == _FFMA for word in turn)
    local = sum(word & _OPCODE in _LOCAL for word in turn)
    return CompiledLoop(len(turn), ffmas, local, round(cycles / modelled, 4), rule.issue)


def _step(reader: Reader, reads: Reads | None) -> int:
    if reads is None:
        reader.skip()
        return 0
    return reader.step(reads).cycles


def _reads(word: int, arch: str) -> Reads | None:
    """What an instruction reads by which slot; None: it reads by another way (`banks`)."""
    if word & _FORMED == _FFMA_OF_REGISTERS:
        numbers = [word >> low & 0xFF for low in _SLOTS]
    else:
        try:
            decoded = decode(word, arch)
        except UnknownInstruction:  # of a newer compiler: no compilation fails for it
            return None
        if not reads_slots(decoded.name, decoded.never):
            return None
        named = {field.low: number for field, number in decoded.named if field.kind == "R" and field.role in "rx"}
        numbers = [named.get(low, _NONE) for low in _SLOTS]
    a, b, c = (None if number == _NONE else number for number in numbers)
    return Reads((a, b, c), word >> _REUSE & 7, word >> 16 & 0xFF if word & _OPCODE == _FFMA else None)


def _outlined(word: int, arch: str, place: int, entry: str) -> Instruction:
    if word & _OPCODE in _CONTROL_FLOW:
        return outline(decode(word, arch, place * WORD_BYTES), place, entry)
    name = "FFMA" if word & _OPCODE == _FFMA else ""
    return Instruction(place * WORD_BYTES, "", name, (), name, entry)

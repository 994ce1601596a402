"""A kernel of a cubin, decoded, with its control flow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..errors import InvalidValue
from .elf import WORD_BYTES, Cubin
from .encoding import ALWAYS, Word, decode
from .listing import Instruction
from .loops import Loop, basic_blocks, main_loop, successors_of

_UNIFORM, _DIVERGENT = 32, 33  # bits of BRA: by a uniform predicate; to the slow twin of a warp-wide operation
_TARGETS = frozenset(("BRA", "BSSY", "CALL", "WARPSYNC"))
_NAMED = {"CALL": 0x944, "WARPSYNC": 0x348}  # the opcode that holds its target; others go where a register says
_BY_POINTER = 0x344  # a call through a register, from where the kernel lies; 0x343 is one of a function elsewhere


@dataclass(frozen=True)
class Program:
    """A kernel: ``words`` in order, the word at place i from address 16 i on.

    ``indirect`` are the places to which each indirect branch may go, as the compiler noted them; for a call through a
    pointer, the functions that lie beside the kernel.
    """

    arch: str
    name: str
    words: tuple[Word, ...]
    indirect: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, cubin: Cubin, name: str = "") -> Program:
        """Decode a kernel of a cubin; without a name, its only one.

        Raises:
            UnknownInstruction: an instruction that the table does not have.
            InvalidValue: no such kernel, or an architecture without a table.
        """
        kernel = cubin.kernel(name)
        words = tuple(decode(word, cubin.arch, place * WORD_BYTES)
                      for place, word in enumerate(cubin.words(kernel.name)))
        functions = tuple(address // WORD_BYTES for address in cubin.functions(kernel.name))
        calls = {place: functions for place, word in enumerate(words) if word.opcode == _BY_POINTER}
        return cls(cubin.arch, kernel.name, words, calls | {
            address // WORD_BYTES: tuple(goes // WORD_BYTES for goes in targets)
            for address, targets in cubin.indirect_branches(kernel.name).items()})

    def with_words(self, words: Sequence[Word]) -> Program:
        """The same kernel with other instructions."""
        return Program(self.arch, self.name, tuple(words), self.indirect)

    def encode(self) -> tuple[int, ...]:
        """The instruction words, for `Cubin.with_words`."""
        return tuple(word.encode() for word in self.words)

    @cached_property
    def outline(self) -> tuple[Instruction, ...]:
        """The instructions as `inspect.loops` takes them: what control flow needs, no operands beside."""
        return tuple(outline(word, place, self.name) for place, word in enumerate(self.words))

    @cached_property
    def blocks(self) -> Mapping[int, range]:
        """Basic blocks: the places of their instructions, by the first."""
        return {address // WORD_BYTES: range(address // WORD_BYTES, address // WORD_BYTES + len(block))
                for address, block in basic_blocks(self.outline).items()}

    @cached_property
    def successors(self) -> Mapping[int, tuple[int, ...]]:
        """Where control goes from each block that can be reached.

        A call goes to its function, and from there back behind every call; one of a function that lies elsewhere comes
        back with what was under way.
        """
        ends = {places[-1] for places in self.blocks.values()}
        behind = tuple(end + 1 for end in sorted(ends) if self.words[end].name == "CALL")

        def more(last: Instruction) -> Iterable[int]:
            place = last.address // WORD_BYTES
            if last.base == "CALL":
                return (one * WORD_BYTES for one in self.indirect.get(place, ()) if one in self.blocks)
            if last.base == "RET":
                return (one * WORD_BYTES for one in behind)
            if last.base in ("BRX", "BRXU", "JMX"):
                return (one * WORD_BYTES for one in self.indirect.get(place, tuple(self.blocks)))
            return ()

        found = successors_of(basic_blocks(self.outline), more)
        return {block // WORD_BYTES: tuple(goes // WORD_BYTES for goes in following)
                for block, following in found.items()}

    @cached_property
    def loop(self) -> Loop | None:
        """The main loop (`inspect.loops.main_loop`), its instructions in outline."""
        return main_loop(self.outline)

    @cached_property
    def loop_blocks(self) -> tuple[range, ...]:
        """The blocks of the main loop, as places in ``words``.

        Raises:
            InvalidValue: no loop holds an FFMA.
        """
        if self.loop is None:
            raise InvalidValue(f"{self.name} has no loop around an FFMA")
        places = {one.address // WORD_BYTES for one in self.loop.instructions}
        return tuple(block for start, block in self.blocks.items() if start in places)


def target(word: Word, place: int) -> int | None:
    """The place to which an instruction may branch, None where it names none or a register says.

    Offsets count from the next instruction: in bytes from bit 32 on up to sm_89 and for BSSY; from sm_90 on in words of
    four bytes, the low eight bits of which sit at bit 16.
    """
    if word.name not in _TARGETS or word.opcode != _NAMED.get(word.name, word.opcode):
        return None
    rest = word.encode()
    if word.name == "BSSY":  # behind its offset lies a flag, RECONVERGENT
        offset, bits = rest >> 32 & (1 << 41) - 1, 41
    elif int(word.arch[3:]) < 90:
        offset, bits = rest >> 32 & (1 << 50) - 1, 50
    else:
        offset, bits = (rest >> 34 & (1 << 48) - 1) << 10 | (rest >> 16 & 0xFF) << 2, 58
    if offset >> bits - 1:
        offset -= 1 << bits
    return place + 1 + offset // WORD_BYTES


def outline(word: Word, place: int, function: str) -> Instruction:
    """An instruction as `inspect.loops` takes it: what control flow needs."""
    sign = "!" if word.negated else ""
    guard = "" if word.guard == ALWAYS and not word.negated else (
        f"@{sign}{word.layout.guard_kind}{'T' if word.guard == ALWAYS else word.guard}")
    operands: tuple[str, ...] = ()
    if word.name in ("BSSY", "BSYNC", "BREAK"):
        operands = tuple(f"B{number}" for field, number in word.named if field.kind == "B")
    elif word.name == "BRA":
        always = all(number == ALWAYS for field, number in word.named if field.kind in ("P", "UP"))
        plain = not word.rest >> _DIVERGENT & 1 and not word.rest >> 90 & 1
        operands = ("L",) if always and plain else ("P", "L")
    where = target(word, place)
    return Instruction(place * WORD_BYTES, guard, word.name, operands, word.name, function,
                       None if where is None else where * WORD_BYTES)

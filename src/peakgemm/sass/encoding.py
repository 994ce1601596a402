"""Instruction words taken apart into named fields, and put together again.

Where an opcode keeps its registers, what it does with them and how many there are, nvdisasm told (lab/sass_table.py);
`opcodes.json` holds its answers. What is not a register, the guard or the control bits stays together as ``rest``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InvalidValue
from .control import Control

_TABLE = Path(__file__).with_name("opcodes.json")
#: The guard and predicate operand that is always true.
ALWAYS = 7
_GUARD = 12
_CONTROL = ((1 << 21) - 1) << 105


class UnknownInstruction(InvalidValue):
    """A word whose opcode, or whose variant of it, is not in the table; the message names both and the address."""


class Field(NamedTuple):
    """Where a variant names a register.

    ``kind`` is R, UR, P, UP (registers and predicates, per thread and uniform), B (convergence barrier) or SB
    (scoreboard); ``low`` and ``bits`` its place in the word; ``role`` is r, w or x (read and written); ``width`` the
    registers from the named one on; ``inverted`` says that the bits are the number's complement. Without bits, it is
    registers that the opcode uses unasked, from number ``low`` on.
    """

    kind: str
    low: int
    bits: int
    role: str
    width: int
    inverted: bool = False


class Register(NamedTuple):
    """One 32-bit register or predicate, a convergence barrier or a scoreboard."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}{self.number}"


@dataclass(frozen=True, slots=True)
class Layout:
    """What the table says of one variant of an opcode: ``taken`` masks the bits that are not rest."""

    name: str
    guard_kind: str
    fields: tuple[Field, ...]
    placed: tuple[Field, ...]
    taken: int


@dataclass(frozen=True, slots=True)
class Word:
    """One instruction, decoded.

    ``guard`` is the number of the guard predicate (7: always) and ``negated`` its sense. ``numbers`` are the registers
    that ``layout.placed`` name, as nvdisasm prints them (255 is RZ, 7 PT; URZ is 63, from sm_100 on 255). ``rest``
    holds all other bits, in place: modifiers, immediates, constants.
    """

    arch: str
    opcode: int
    layout: Layout
    guard: int
    negated: bool
    numbers: tuple[int, ...]
    rest: int
    control: Control

    @property
    def name(self) -> str:
        """The opcode's name without modifiers, as nvdisasm prints it."""
        return self.layout.name

    @property
    def named(self) -> tuple[tuple[Field, int], ...]:
        """Each field that has a place in the word, and the number that it holds."""
        return tuple(zip(self.layout.placed, self.numbers, strict=True))

    @property
    def never(self) -> bool:
        """Whether its guard is never true: ptxas pads with such instructions."""
        return self.guard == ALWAYS and self.negated

    @property
    def guards(self) -> frozenset[Register]:
        """Its guard predicate; empty where it always, or never, runs."""
        return frozenset() if self.guard == ALWAYS else frozenset((Register(self.layout.guard_kind, self.guard),))

    @property
    def reads(self) -> frozenset[Register]:
        """Registers and predicates that it reads, its guard among them."""
        return self.guards.union(*(self.registers(*operand) for operand in self.operands if operand[0].role in "rx"))

    @property
    def writes(self) -> frozenset[Register]:
        """Registers and predicates that it writes, or may write under a guard."""
        return frozenset[Register]().union(*(self.registers(*operand) for operand in self.operands
                                             if operand[0].role in "wx"))

    @property
    def operands(self) -> tuple[tuple[Field, int], ...]:
        """`named`, and what the opcode uses unasked."""
        return *self.named, *((field, field.low) for field in self.layout.fields if not field.bits)

    def registers(self, field: Field, number: int) -> tuple[Register, ...]:
        """The registers of a field that holds ``number``: none for RZ, URZ or PT."""
        if field.bits:
            return () if number == no_register(field.kind, self.arch) else tuple(
                Register(field.kind, number + place) for place in range(field.width))
        # Predicates moved together, by a mask.
        mask = self.rest >> 32 if self.name in ("P2R", "R2P") else -1
        return tuple(Register(field.kind, number + place) for place in range(field.width) if mask >> place & 1)

    def renamed(self, numbers: Mapping[Register, int]) -> Word:
        """The same instruction with the first register of each field renamed as ``numbers`` say; others stay."""
        guard = numbers.get(Register(self.layout.guard_kind, self.guard), self.guard)
        return replace(self, guard=guard, numbers=tuple(numbers.get(Register(field.kind, number), number)
                                                        for field, number in self.named))

    def with_control(self, **changes: int) -> Word:
        """The same instruction with other control bits: ``with_control(stall=2, wait_mask=1)``."""
        return replace(self, control=replace(self.control, **changes))

    def encode(self) -> int:
        """The 128-bit instruction word.

        Raises:
            InvalidValue: a number that its field has no room for.
        """
        word = self.opcode | (self.guard | self.negated << 3) << _GUARD | self.rest
        for field, number in self.named:
            if number >> field.bits:
                raise InvalidValue(f"{field.kind}{number} does not fit into the {field.bits} bits of a field of "
                                   f"{self.name}")
            word |= (number ^ (1 << field.bits) - 1 if field.inverted else number) << field.low
        return self.control.encode(word)


def no_register(kind: str, arch: str) -> int:
    """The number that stands for no register of that kind: RZ, URZ, PT, UPT."""
    if kind == "UR":
        return 63 if int(arch[3:]) < 100 else 255
    return {"R": 255, "P": ALWAYS, "UP": ALWAYS}.get(kind, -1)


@cache
def _entries(arch: str) -> Mapping[int, tuple[tuple[int, ...], Mapping[int, Layout]]]:
    tables = json.loads(_TABLE.read_text(encoding="utf-8"))
    if arch not in tables["architectures"]:
        raise InvalidValue(f"{arch}: no encoding table; there is one for {', '.join(tables['architectures'])}")
    return {int(code, 16): _entry(tables["entries"][place]) for code, place in tables["architectures"][arch].items()}


def _entry(entry: dict[str, Any]) -> tuple[tuple[int, ...], Mapping[int, Layout]]:
    return tuple(entry["select"]), {int(value): _layout(entry["name"], entry["guard"], rows)
                                    for value, rows in entry["variants"].items()}


def _layout(name: str, guard: str, rows: list[list[Any]]) -> Layout:
    fields = tuple(Field(kind.lstrip("~"), low, bits, role, width, kind.startswith("~"))
                   for kind, low, bits, role, width in rows)
    placed = tuple(field for field in fields if field.bits)
    taken = _CONTROL | (1 << _GUARD + 4) - 1
    for field in placed:
        taken |= ((1 << field.bits) - 1) << field.low
    return Layout(name, guard, fields, placed, taken)


def architectures() -> tuple[str, ...]:
    """The architectures whose instructions can be decoded."""
    return tuple(json.loads(_TABLE.read_text(encoding="utf-8"))["architectures"])


def decode(word: int, arch: str, address: int = 0) -> Word:
    """Take an instruction word of ``arch`` (``sm_NN``) apart.

    Raises:
        UnknownInstruction: the opcode or its variant is not in the table; ``address`` is for the message.
        InvalidValue: an architecture without a table.
    """
    opcode = word & (1 << _GUARD) - 1
    entry = _entries(arch).get(opcode)
    if entry is None:
        raise UnknownInstruction(f"{arch}, address {address:#x}: opcode {opcode:#05x} of {word:#034x} is not in the "
                                 "table; lab/sass_table.py adds what a cubin holds")
    select, variants = entry
    value = 0
    for place, bit in enumerate(select):
        value |= (word >> bit & 1) << place
    layout = variants.get(value)
    if layout is None:
        raise UnknownInstruction(f"{arch}, address {address:#x}: opcode {opcode:#05x} of {word:#034x} is in the table, "
                                 f"but not with bits {list(select)} = {value:#b}; lab/sass_table.py adds what a "
                                 "cubin holds")
    numbers = []
    for field in layout.placed:
        mask = (1 << field.bits) - 1
        held = word >> field.low & mask
        numbers.append(held ^ mask if field.inverted else held)
    return Word(arch, opcode, layout, word >> _GUARD & 7, bool(word >> _GUARD + 3 & 1), tuple(numbers),
                word & ~layout.taken, Control.decode(word))

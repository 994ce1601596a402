"""Instruction words taken apart into named fields, and put together again.

Where an opcode keeps its registers, what it does with them and how many there are, nvdisasm told (lab/sass_table.py);
`opcodes.json` holds its answers. What is not a register, the guard or the control bits stays together as ``rest``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InvalidValue
from .control import Control
from .opcodes import Opcode, opcode

_TABLE = Path(__file__).with_name("opcodes.json")
#: The guard and predicate operand that is always true.
ALWAYS = 7
_GUARD = 12
_OPCODE = (1 << _GUARD) - 1
_CONTROL = ((1 << 21) - 1) << 105
_RZ = 255
#: Low bits of the fields that most opcodes write, and that the operand slots a, b, c read.
DESTINATION, A, B, C = 16, 24, 32, 64
_SLOTS = (A, B, C)
_PRODUCTS = frozenset(("IMAD", "UIMAD", "HFMA2"))
_LOADS = frozenset(("LDS", "LDSM", "LDL"))
_SPECIAL = frozenset(("S2R", "S2UR", "CS2R", "CS2UR"))
#: Special registers that change while a warp runs: clocks, timers, counters (SR_CLOCKLO and its like).
_CLOCKS = frozenset(range(0x50, 0x60)) | frozenset((0x0C, 0x0E))
#: Architectures without a table of their own, and the one that they are read by.
_READ_AS = {"sm_70": "sm_75", "sm_72": "sm_75", "sm_87": "sm_86", "sm_88": "sm_86", "sm_103": "sm_100",
            "sm_110": "sm_100", "sm_121": "sm_120"}


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
    """What the tables say of one variant of an opcode: its ``opcode``'s row, its fields (``placed`` are those that have
    a place in the word), and in ``taken`` a mask of the bits that are not rest."""

    name: str
    opcode: Opcode
    guard_kind: str
    fields: tuple[Field, ...]
    placed: tuple[Field, ...]
    taken: int


@dataclass(frozen=True)
class Word:
    """One instruction: its 128 ``bits``, and the ``layout`` by which they are read.

    ``guard`` is the number of the guard predicate (7: always) and ``negated`` its sense. ``numbers`` are the registers
    that ``layout.placed`` name, as nvdisasm prints them (255 is RZ, 7 PT; URZ is 63, from sm_100 on 255). ``rest``
    holds all other bits, in place: modifiers, immediates, constants.
    """

    arch: str
    bits: int
    layout: Layout = field(compare=False)

    @property
    def opcode(self) -> int:
        """The bits that tell the opcode and its form."""
        return self.bits & _OPCODE

    @property
    def name(self) -> str:
        """The opcode's name without modifiers, as nvdisasm prints it."""
        return self.layout.name

    @property
    def guard(self) -> int:
        """The number of the guard predicate; `ALWAYS` where there is none."""
        return self.bits >> _GUARD & 7

    @property
    def negated(self) -> bool:
        """Whether it runs where the guard predicate is false."""
        return bool(self.bits >> _GUARD + 3 & 1)

    @property
    def rest(self) -> int:
        """The bits that are no register, guard or control bits, in place."""
        return self.bits & ~self.layout.taken

    @cached_property
    def control(self) -> Control:
        """When it may issue, and what waits for it."""
        return Control.decode(self.bits)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """What the fields of ``layout.placed`` hold."""
        held = []
        for place in self.layout.placed:
            mask = (1 << place.bits) - 1
            number = self.bits >> place.low & mask
            held.append(number ^ mask if place.inverted else number)
        return tuple(held)

    @property
    def named(self) -> tuple[tuple[Field, int], ...]:
        """Each field that has a place in the word, and the number that it holds."""
        return tuple(zip(self.layout.placed, self.numbers, strict=True))

    @property
    def operands(self) -> tuple[tuple[Field, int], ...]:
        """`named`, and what the opcode uses unasked."""
        return *self.named, *((field, field.low) for field in self.layout.fields if not field.bits)

    @property
    def never(self) -> bool:
        """Whether its guard is never true: ptxas pads with such instructions."""
        return self.guard == ALWAYS and self.negated

    @property
    def kind(self) -> str:
        """One of `opcodes.CLASSES`. A product of which a factor is RZ is a move, by the pipe of the multiplications
        (``IMAD.MOV.U32``, ``HFMA2.MMA R0, -RZ, RZ, 0, 0``); what never runs takes an issue slot and no more: other."""
        if self.never:
            return "other"
        if self.name in _PRODUCTS and any(field.low == A and number == no_register(field.kind, self.arch)
                                          for field, number in self.named):
            return "move"
        return self.layout.opcode.kind

    @property
    def is_ffma(self) -> bool:
        """Whether it is an FP32 multiply-add (FFMA2, two of them packed, is one instruction)."""
        return self.layout.opcode.kind == "ffma"

    @property
    def pipe(self) -> str:
        """One of `opcodes.PIPES`; what never runs takes none: other."""
        return "other" if self.never else self.layout.opcode.pipe

    @property
    def queue(self) -> str:
        """The queue of a variable-latency instruction; empty: its latency is fixed."""
        return self.layout.opcode.queue

    @property
    def reader(self) -> str:
        """The queue in which a variable-latency instruction reads its operands."""
        return self.layout.opcode.reader

    @property
    def access(self) -> str:
        """Which of `opcodes.SPACES` it accesses; empty: it only computes, or controls the flow."""
        if self.never:
            return "padding" if self.name.startswith(("LD", "ST")) else ""
        return "" if self.ends_block else self.layout.opcode.access

    @property
    def only_loads(self) -> bool:
        """Whether its access leaves memory as it is, so that two of them may change places."""
        return self.name in _LOADS and not self.never

    @property
    def ends_block(self) -> bool:
        """Whether control may go elsewhere after it, or it names where: it keeps its place at the end of a block."""
        return self.layout.opcode.access == "flow"

    @property
    def reads_clock(self) -> bool:
        """Whether what it returns depends on when it runs: a special register read that cannot be moved freely."""
        return self.name in _SPECIAL and self.rest >> 72 & 0xFF in _CLOCKS

    @cached_property
    def guards(self) -> frozenset[Register]:
        """Its guard predicate; empty where it always, or never, runs."""
        return frozenset() if self.guard == ALWAYS else frozenset((Register(self.layout.guard_kind, self.guard),))

    @cached_property
    def reads(self) -> frozenset[Register]:
        """Registers and predicates that it reads, its guard among them; none where it never runs."""
        return self.guards.union(*self._accessed("rx"))

    @cached_property
    def writes(self) -> frozenset[Register]:
        """Registers and predicates that it writes, or may write under a guard; none where it never runs."""
        return frozenset[Register]().union(*self._accessed("wx"))

    def _accessed(self, roles: str) -> list[tuple[Register, ...]]:
        return [] if self.never else [self.registers(field, number) for field, number in self.operands
                                      if field.role in roles]

    def at(self, low: int) -> int | None:
        """The register that the field at bit ``low`` names; None: no register is named there, or RZ."""
        number = next((number for field, number in self.named if field.low == low and field.kind == "R"), None)
        return None if number == _RZ else number

    @property
    def slots(self) -> tuple[int | None, ...]:
        """The registers that it reads by the operand slots a, b, c; None: no register."""
        held = {field.low: number for field, number in self._slot_fields}
        return tuple(map(held.get, _SLOTS))

    @property
    def slot_widths(self) -> dict[int, int]:
        """How many registers it reads by each operand slot (a is 0) that names one: of a group, by both banks."""
        return {_SLOTS.index(field.low): field.width for field, _ in self._slot_fields}

    @property
    def _slot_fields(self) -> list[tuple[Field, int]]:
        return [(field, number) for field, number in self.named
                if field.low in _SLOTS and field.kind == "R" and field.role in "rx" and number != _RZ]

    def registers(self, field: Field, number: int) -> tuple[Register, ...]:
        """The registers of a field that holds ``number``: none for RZ, URZ or PT."""
        if field.bits:
            return () if number == no_register(field.kind, self.arch) else tuple(
                Register(field.kind, number + place) for place in range(field.width))
        # Predicates moved together, by a mask.
        mask = self.rest >> 32 if self.name in ("P2R", "R2P") else -1
        return tuple(Register(field.kind, number + place) for place in range(field.width) if mask >> place & 1)

    def with_numbers(self, numbers: Sequence[int]) -> Word:
        """The same instruction with other registers in the fields of ``layout.placed``.

        Raises:
            InvalidValue: a number that its field has no room for.
        """
        bits = self.bits
        for place, number in zip(self.layout.placed, numbers, strict=True):
            mask = (1 << place.bits) - 1
            if number & ~mask:
                raise InvalidValue(f"{place.kind}{number} does not fit into the {place.bits} bits of a field of "
                                   f"{self.name}")
            bits = bits & ~(mask << place.low) | (number ^ mask if place.inverted else number) << place.low
        return Word(self.arch, bits, self.layout)

    def renamed(self, numbers: Mapping[Register, int]) -> Word:
        """The same instruction with the first register of each field renamed as ``numbers`` say; others stay."""
        guard = numbers.get(Register(self.layout.guard_kind, self.guard), self.guard)
        guarded = Word(self.arch, self.bits & ~(7 << _GUARD) | guard << _GUARD, self.layout)
        return guarded.with_numbers([numbers.get(Register(field.kind, number), number) for field, number in self.named])

    def with_control(self, **changes: int) -> Word:
        """The same instruction with other control bits: ``with_control(stall=2, wait_mask=1)``."""
        return Word(self.arch, replace(self.control, **changes).encode(self.bits), self.layout)


def no_register(kind: str, arch: str) -> int:
    """The number that stands for no register of that kind: RZ, URZ, PT, UPT."""
    if kind == "UR":
        return 63 if int(arch[3:]) < 100 else 255
    return {"R": 255, "P": ALWAYS, "UP": ALWAYS}.get(kind, -1)


@cache
def _tables() -> dict[str, Any]:
    return dict(json.loads(_TABLE.read_text(encoding="utf-8")))


@cache
def _entries(arch: str) -> Mapping[int, tuple[tuple[int, ...], Mapping[int, Layout]]]:
    """The table of an architecture, by opcode: the bits that select a variant, and the variants."""
    tables = _tables()
    codes = tables["architectures"].get(_READ_AS.get(arch, arch))
    if codes is None:
        raise InvalidValue(f"{arch}: no encoding table; there is one for {', '.join(tables['architectures'])}")
    return {int(code, 16): _entry(tables["entries"][place]) for code, place in codes.items()}


def _entry(entry: dict[str, Any]) -> tuple[tuple[int, ...], Mapping[int, Layout]]:
    return tuple(entry["select"]), {int(value): _layout(entry["name"], entry["guard"], rows)
                                    for value, rows in entry["variants"].items()}


def _layout(name: str, guard: str, rows: list[list[Any]]) -> Layout:
    fields = tuple(Field(kind.lstrip("~"), low, bits, role, width, kind.startswith("~"))
                   for kind, low, bits, role, width in rows)
    placed = tuple(field for field in fields if field.bits)
    taken = _CONTROL | (1 << _GUARD + 4) - 1
    for place in placed:
        taken |= ((1 << place.bits) - 1) << place.low
    return Layout(name, opcode(name), guard, fields, placed, taken)


def architectures() -> tuple[str, ...]:
    """The architectures that have a table of their own."""
    return tuple(_tables()["architectures"])


def decode(word: int, arch: str, address: int = 0, unknown: Callable[[int], str] | None = None) -> Word:
    """Take an instruction word of ``arch`` (``sm_NN``) apart.

    ``unknown`` names an instruction that is not in the table, by its address: of its operands nothing is known.

    Raises:
        UnknownInstruction: without ``unknown``, the opcode or its variant is not in the table.
        InvalidValue: an architecture without a table.
    """
    select, variants = _entries(arch).get(word & _OPCODE, ((), {}))
    value = sum((word >> bit & 1) << place for place, bit in enumerate(select))
    if value in variants:
        return Word(arch, word, variants[value])
    if unknown is not None:
        name = next(iter(variants.values())).name if variants else unknown(address)
        return Word(arch, word, _layout(name, "P", []))
    lacks = f"in the table, but not with bits {list(select)} = {value:#b}" if variants else "not in the table"
    raise UnknownInstruction(f"{arch}, address {address:#x}: opcode {word & _OPCODE:#05x} of {word:#034x} is {lacks}; "
                             "lab/sass_table.py adds what a cubin holds")

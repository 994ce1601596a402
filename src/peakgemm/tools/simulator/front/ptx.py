"""The nouns of a PTX module: operands, instructions, variables, kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from ....errors import InvalidValue

BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "tf32": 4, "f16x2": 4, "bf16x2": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16, "u16x2": 4, "s16x2": 4, "f32x2": 8,
    "e4m3x2": 2, "e5m2x2": 2, "e2m3x2": 2, "e3m2x2": 2, "ue8m0x2": 2,
}  # fmt: skip
TYPES = frozenset(BYTES)
NOT_UNDERSTOOD = "(not understood)"  # the opcode of an instruction that cannot be parsed


@dataclass(frozen=True, slots=True)
class Reg:
    """A virtual register (its scope-unique name) or a special one such as ``%tid.x``."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Imm:
    """A literal: an integer, or the bits of a float with their width (``f32``, ``f64``)."""

    value: int
    kind: str = "int"


@dataclass(frozen=True, slots=True)
class Sym:
    """The address of a variable, a parameter's name, or a label."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Mem:
    """``[base + offset]``, or ``[base, {index}]`` of a tensor: ``index`` holds its coordinates, innermost first."""

    base: Reg | Sym | Imm | Frame
    offset: int = 0
    index: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vec:
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: a result and a predicate."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Frame:
    """The address, in local memory, of a byte of the frame of the function that runs."""

    offset: int


Operand = Reg | Imm | Sym | Mem | Vec | Pair | Frame


@cache
def _dissected(opcode: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts of an opcode between its points, and those that are types; a kernel has tens of opcodes."""
    parts = tuple(opcode.split("."))
    return parts, tuple(part for part in parts[1:] if part in TYPES)


@dataclass(slots=True, eq=False)
class Instruction:
    """One PTX instruction, with the source position that ``.loc`` gave it (file "" when there was none)."""

    index: int
    opcode: str
    operands: tuple[Operand, ...]
    guard: Reg | None
    text: str
    ptx_line: int
    file: str = ""
    line: int = 0
    error: PtxError | None = None  # of one that could not be parsed, raised where it is executed
    base: str = field(init=False)  # the opcode without modifiers: ``fma`` of ``fma.rn.f32``
    parts: tuple[str, ...] = field(init=False)
    types: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.parts, self.types = _dissected(self.opcode)
        self.base = self.parts[0]

    def has(self, *modifiers: str) -> bool:
        """Whether any of the modifiers is there."""
        for modifier in modifiers:  # noqa: SIM110 - asked millions of times: a generator takes twice as long
            if modifier in self.parts:
                return True
        return False

    def refuse(self, error: PtxError) -> None:
        """Make it one that raises ``error`` where it is executed, and does nothing else."""
        self.error, self.base, self.parts, self.types = error, NOT_UNDERSTOOD, (NOT_UNDERSTOOD,), ()

    @property
    def where(self) -> str:
        """``file:line (PTX line n)`` for messages."""
        source = f"{self.file}:{self.line} " if self.file else ""
        return f"{source}(PTX line {self.ptx_line})"

    def unknown(self, why: str = "the simulator does not know it") -> UnknownInstruction:
        """The error for an instruction that cannot be run exactly."""
        return UnknownInstruction(
            f"{self.where}: {self.opcode}: {why}; instruction `{self.text}`; compile the kernel without it "
            "(docs/simulator.md lists what is missing)"
        )


class PtxError(InvalidValue):
    """PTX that cannot be parsed; the message holds the line and the token."""


class UnknownInstruction(InvalidValue):
    """An instruction, modifier or special register that the simulator does not implement."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An address in an initialiser: ``size`` bytes at ``place`` hold ``name + addend``; of a masked one its byte
    ``shift // 8``."""

    place: int
    size: int
    name: str
    addend: int = 0
    shift: int = 0
    line: int = 0


@dataclass(slots=True)
class Variable:
    """A module or kernel variable; ``space`` is global, const, shared, local or param (of a call).

    ``data`` holds the initialiser, no further than it goes; ``shape`` the dimensions, ``element`` the bytes of one
    element.
    """

    name: str
    space: str
    size: int
    align: int
    data: bytes = b""
    dynamic: bool = False
    references: list[Reference] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    element: int = 1


@dataclass(slots=True)
class Param:
    """A parameter or result: its type (``u64``, ``f32``, ``b8`` for structs) and bytes.

    ``register``: of a function, the register that it is (``.reg .b32 x`` between the parentheses).
    """

    name: str
    type: str
    size: int
    align: int
    register: str = ""


@dataclass(slots=True)
class Linked:
    """A function among the instructions of a kernel: ``start`` to ``end`` (exclusive); its results and parameters, by
    their places in its frame; the bytes of that (without saved registers); whether it may come to call itself."""

    name: str
    start: int
    end: int
    results: list[tuple[Param, int]]
    params: list[tuple[Param, int]]
    size: int
    recursive: bool = False
    calls: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Kernel:
    """One entry: parameters, register types, instructions, labels (name to instruction index).

    Or a function: it has ``results``, and names of registers, labels and variables that begin with its own.
    """

    name: str
    params: list[Param]
    registers: dict[str, str] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    max_threads: int | None = None
    min_blocks: int | None = None
    max_registers: int | None = None
    cluster: int = 1
    results: list[Param] = field(default_factory=list)
    function: bool = False
    line: int = 0
    linked: dict[str, Linked] = field(default_factory=dict)  # what it calls
    start: int = 0  # its first instruction, behind those of what it calls
    skipped: list[str] = field(default_factory=list)  # directives that were not understood


@dataclass(slots=True)
class Module:
    """A parsed PTX text.

    ``functions`` have bodies, ``declared`` ones have none here; ``broken`` kernels and ``unusable`` functions have a
    head that cannot be parsed, which is an error where one is asked for. ``skipped``: directives not understood.
    """

    kernels: dict[str, Kernel]
    variables: dict[str, Variable]
    files: dict[int, str]
    functions: dict[str, Kernel] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    aliases: dict[str, str] = field(default_factory=dict)
    broken: dict[str, PtxError] = field(default_factory=dict)
    unusable: dict[str, PtxError] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

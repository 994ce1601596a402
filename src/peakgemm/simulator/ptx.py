"""The nouns of a PTX module: operands, instructions, variables, kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from ..errors import InvalidValue

BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "tf32": 4, "f16x2": 4, "bf16x2": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip
TYPES = frozenset(BYTES)


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

    base: Reg | Sym | Imm
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


Operand = Reg | Imm | Sym | Mem | Vec | Pair


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

    @property
    def where(self) -> str:
        """``file:line (PTX line n)`` for messages."""
        source = f"{self.file}:{self.line} " if self.file else ""
        return f"{source}(PTX line {self.ptx_line})"

    def unknown(self, why: str = "the simulator does not know it") -> UnknownInstruction:
        """The error for an instruction that cannot be run exactly."""
        return UnknownInstruction(
            f"{self.where}: {self.opcode}: {why}; instruction `{self.text}`; compile the kernel without it or report it"
        )


class PtxError(InvalidValue):
    """PTX that cannot be parsed; the message holds the line and the token."""


class UnknownInstruction(InvalidValue):
    """An instruction, modifier or special register that the simulator does not implement."""


@dataclass(slots=True)
class Variable:
    """A module or kernel variable; ``space`` is global, const, shared or local."""

    name: str
    space: str
    size: int
    align: int
    data: bytes = b""
    dynamic: bool = False


@dataclass(slots=True)
class Param:
    """A kernel parameter: its type (``u64``, ``f32``, ``b8`` for structs) and bytes."""

    name: str
    type: str
    size: int
    align: int


@dataclass(slots=True)
class Kernel:
    """One entry: parameters, register types, instructions, labels (name to instruction index)."""

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


@dataclass(slots=True)
class Module:
    """A parsed PTX text."""

    kernels: dict[str, Kernel]
    variables: dict[str, Variable]
    files: dict[int, str]

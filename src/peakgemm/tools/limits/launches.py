"""What is looked at: a kernel in a cubin with its launch, of a rung or of a file."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import InvalidValue
from ...kernels import validity
from ...kernels.registry import Kernel
from ...problem import Config, Problem
from ...runtime.architectures import Architecture, architecture
from ...sass.elf import Cubin
from ...sass.listing import nvdisasm, parse
from ...sass.program import Program
from ..bench.occupancy import Occupancy, occupancy
from ..inspect.subject import Subject
from .execute import PARAMETERS, Block, Path

_PARAMETER = 0x17  # a record of .nv.info: the place and size of a parameter
_ARRAYS_APART = 1 << 32


@dataclass
class Launch:
    """A kernel with its launch. ``arguments``: the bytes of each parameter; ``flops``: of the product that it computes,
    None: those of its FFMAs are counted; ``moved``: bytes of its operands and results."""

    label: str
    cubin: Cubin
    function: str
    arch: Architecture
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: Sequence[bytes]
    shared: int
    registers: int
    static_shared: int
    flops: float | None
    moved: int

    @cached_property
    def program(self) -> Program:
        """Its instructions."""
        return Program.of(self.cubin, self.function)

    @cached_property
    def texts(self) -> dict[int, str]:
        """Their text, by place."""
        lines = parse(nvdisasm(self.cubin.data, self.arch.name, "-c", "-g"))
        return {line.address // 16: line.text for line in lines if line.function == self.function}

    @property
    def blocks(self) -> int:
        """Of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @cached_property
    def occupancy(self) -> Occupancy:
        """How many blocks an SM holds."""
        return occupancy(self.arch, self.threads, self.registers, self.shared, self.static_shared)

    def path(self, block: int) -> Path:
        """What block number ``block`` does.

        Raises:
            InvalidValue: see `Block.run`.
        """
        x, y, _ = self.grid
        special = {"CTAID.X": block % x, "CTAID.Y": block // x % y, "CTAID.Z": block // (x * y)}
        return Block(self.program, self.texts, self.block, self._constants, special).run()

    @cached_property
    def _constants(self) -> bytes:
        places = sorted((ordinal, offset, size >> 18) for _, ordinal, offset, size in (
            struct.unpack("<IHHI", one.payload) for one in self.cubin.attributes(self.function)
            if one.code == _PARAMETER and len(one.payload) == 12))
        if len(places) != len(self.arguments):
            raise InvalidValue(f"{self.function} takes {len(places)} arguments, {len(self.arguments)} were given; pass "
                               "one --arg a parameter")
        bank = bytearray(PARAMETERS + max((offset + size for _, offset, size in places), default=0) + 8)
        struct.pack_into("<6I", bank, 0, *self.block, *self.grid)
        for (_, offset, size), value in zip(places, self.arguments, strict=True):
            bank[PARAMETERS + offset:PARAMETERS + offset + size] = value[:size].ljust(size, b"\0")
        return bytes(bank)


def of_rung(kernel: Kernel, shape: tuple[int, int, int], arch: str, config: Config | None = None) -> Launch:
    """A rung, as it is launched for a product.

    Raises:
        InvalidValue, CompileFailed, MissingComponent: see `runtime.compile`.
    """
    limits, problem = architecture(arch), Problem.contiguous(*shape)
    chosen = validity.choose(kernel, config or kernel.config_for(arch), limits, problem)
    launch, = kernel.launches(chosen, problem, arch, limits.gpu_sms).kernels
    compiled = launch.recipe.make("cubin")
    convention = launch.convention
    values = convention.unpack(launch.arguments)
    codes = convention.values or " "
    arguments = [(_ARRAYS_APART * (one + 1)).to_bytes(8, "little") for one in convention.addresses]
    arguments += [value if isinstance(value, bytes) else struct.pack(f"={code}", value)
                  for code, value in zip(codes, values, strict=True)]
    m, n, k = shape
    return Launch(f"rung {kernel.label}, {chosen.label()}", Cubin.read(compiled.code), compiled.entry, limits,
                  (launch.blocks, 1, 1), (launch.threads, 1, 1), [*arguments, *(bytes(128) for _ in launch.boxes)],
                  launch.shared_bytes, compiled.registers or 255, compiled.static_shared or 0, 2.0 * m * n * k,
                  4 * (m * k + k * n + m * n))


def of_file(subject: Subject, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any],
            shared: int) -> Launch:
    """A kernel of the reader's own; arrays among the arguments stand for their addresses."""
    packed, moved = [], 0
    for number, one in enumerate(arguments):
        if isinstance(one, np.ndarray):
            moved += one.nbytes
            offset = 0 if one.base is None else one.ctypes.data - one.base.ctypes.data  # of A + 256
            packed.append((_ARRAYS_APART * (number + 1) + offset).to_bytes(8, "little"))
        else:
            packed.append(struct.pack("<f", one) if isinstance(one, float) else
                          int(one).to_bytes(8, "little", signed=True))
    def three(given: Sequence[int]) -> tuple[int, int, int]:
        x, y, z = [*given, 1, 1][:3]
        return x, y, z

    return Launch(subject.label, subject.cubin, subject.function, architecture(subject.arch), three(grid), three(block),
                  packed, shared, subject.registers or 255, subject.static_shared, None, moved)

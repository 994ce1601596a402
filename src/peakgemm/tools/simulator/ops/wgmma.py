"""wgmma: products of a warpgroup, with operands in shared memory.

The sum is formed at once; that the accumulators must not be touched before ``wgmma.wait_group`` is the business of
`accumulators`, that the shared memory must not be overwritten before it that of `races`. Layouts: PTX ISA,
"Asynchronous Warpgroup Level Matrix Operation"; operands in shared memory: `descriptors`; sums: `accumulation`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.async_reads import Footprint
from ..core.descriptors import ROW, Descriptor
from ..core.floats import bfloat_to_float
from ..core.lanes import Group, LaneSet
from ..front.ptx import Imm, Instruction, Reg, Vec
from .accumulation import accumulate, to_bits, widths
from .build import Build, Getter, Step, builder
from .tensor import FLOATS, matrix_a, unpack
from .warp import _spread

Array = NDArray[Any]
ROWS = 64  # of A and D
WARPS = 4  # of a warpgroup
DEPTH = {"f16": 16, "bf16": 16, "tf32": 8}  # the K of one instruction
SIZE = {"f16": 2, "bf16": 2, "tf32": 4}  # bytes
KEEP = 4096  # footprints remembered per instruction


@builder("wgmma")
def wgmma(b: Build, ins: Instruction) -> Step:
    what = ins.parts[1]
    if what == "mma_async":
        return _Product(b, ins).step
    if ins.guard is not None or what not in ("fence", "commit_group", "wait_group"):
        raise ins.unknown("a predicated fence, commit or wait of wgmma" if ins.guard else "")
    keep = ins.operands[0].value if ins.operands and isinstance(ins.operands[0], Imm) else 0

    def step(group: Group) -> None:
        if not b.machine.checks:
            return
        batch = b.machine.batch
        if what == "fence":
            batch.accumulators.fence(group.lanes)
        elif what == "commit_group":
            batch.accumulators.commit(group.lanes)
            batch.races.event("commit_reads", "g", group.lanes)
        else:
            batch.accumulators.wait(group.lanes, keep)
            batch.races.event("wait_reads", "g", group.lanes, keep)

    return step


def shape_of(ins: Instruction) -> tuple[int, int]:
    """N and K of a ``wgmma.mma_async``; (0, 0) of others."""
    found = next((m for m in (re.fullmatch(r"m64n(\d+)k(\d+)", part) for part in ins.parts) if m), None)
    return (int(found[1]), int(found[2])) if found else (0, 0)


class _Product:
    """One ``wgmma.mma_async``."""

    def __init__(self, b: Build, ins: Instruction) -> None:
        self.b, self.ins = b, ins
        self.n, self.k = shape_of(ins)
        kinds = ins.types
        if len(kinds) != 3 or kinds[0] != "f32" or kinds[1] != kinds[2] or kinds[1] not in FLOATS or ins.has("sp"):
            raise ins.unknown("of wgmma only f16, bf16 and tf32 products with float32 accumulators are simulated")
        self.kind = kinds[1]
        if self.k != DEPTH[self.kind] or self.n % 8 or not 8 <= self.n <= 256 or ins.guard is not None:
            raise ins.unknown(f"its shape must be m64nNk{DEPTH[self.kind]} with N a multiple of 8 up to 256")
        d, a, *rest = ins.operands
        if not isinstance(d, Vec) or len(d.items) != self.n // 2:
            raise ins.unknown(f"D must be {self.n // 2} registers")
        self.d_get = [b.src(ins, item, "f32") for item in d.items]
        self.d_put = [b.dst(ins, item, "b32") for item in d.items]
        self.a_registers: list[Getter] | None = None
        self.a_descriptor: Getter | None = None
        if isinstance(a, Vec):
            if len(a.items) != 4:
                raise ins.unknown("A must be 4 registers or a descriptor")
            self.a_registers = [b.src(ins, item, "u32") for item in a.items]
        else:
            self.a_descriptor = b.src(ins, a, "u64")
        self.b_descriptor = b.src(ins, rest.pop(0), "u64")
        self.scale_d = b.src(ins, rest.pop(0), "pred") if isinstance(rest[0], (Reg, Imm)) else None
        flags = [item.value for item in rest if isinstance(item, Imm)]
        transposes = 0 if self.kind == "tf32" else 1 if self.a_registers is not None else 2
        if len(flags) != 2 + transposes or any(x not in (1, -1) for x in flags[:2]):
            raise ins.unknown("imm-scale must be 1 or -1, and imm-trans is for 16-bit types")
        self.scale_a, self.scale_b = flags[:2]
        self.trans_a = bool(flags[2]) if transposes == 2 else False
        self.trans_b = bool(flags[-1]) if transposes else False
        rows = b.machine.tracked
        self.rows = [np.array([rows[item.name] for item in (operand.items if isinstance(operand, Vec) else ())
                               if isinstance(item, Reg)], int) for operand in (d, a)]
        self.widths = widths(ins, b.machine.arch, "wgmma", self.kind)
        self.footprints: dict[Any, Footprint] = {}

    def step(self, group: Group) -> None:
        """Run it for the warpgroups of a group of lanes."""
        lanes, machine = group.lanes, self.b.machine
        if machine.checks:
            machine.batch.accumulators.issue(self.ins, lanes, *self.rows)
        whole = self._whole(lanes)
        if whole is None:
            return
        c = self._accumulators(group)
        if self.scale_d is not None:
            kept = np.broadcast_to(np.asarray(self.scale_d(group)), (lanes.n,))[::128]
            c[~kept] = 0
        a = self._a(group, whole)
        right = self._operand(group, whole, self.b_descriptor, self.n, self.trans_b, "B")
        if a is None or right is None:
            return
        total = accumulate(a * self.scale_a, right * self.scale_b, c, self.widths)
        self._deliver(group, to_bits(total))

    def _whole(self, lanes: LaneSet) -> Array | None:
        """The block slots of the warpgroups; None, and a finding, where one lacks threads."""
        if not lanes.whole:
            self.b.machine.fault("divergent_warp", self.ins, "wgmma by a warpgroup without its 128 threads",
                                 lanes.lanes)
            return None
        return lanes.block_of[::128]

    def _accumulators(self, group: Group) -> Array:
        """D as ``(warpgroups, 64, n)``."""
        stack = np.empty((group.lanes.n, len(self.d_get)), np.float32)
        for number, get in enumerate(self.d_get):
            stack[:, number] = get(group)
        # lane (4 r + c) of a warp has rows r and r + 8, columns 2 c and 2 c + 1 of every eight
        table = stack.reshape(-1, WARPS, 8, 4, self.n // 8, 2, 2).transpose(0, 1, 5, 2, 4, 3, 6)
        return np.asarray(table.reshape(-1, ROWS, self.n).astype(np.float64))

    def _deliver(self, group: Group, bits: Array) -> None:
        table = bits.reshape(-1, WARPS, 2, 8, self.n // 8, 4, 2).transpose(0, 1, 3, 5, 4, 2, 6)
        stack = table.reshape(-1, self.n // 2)
        for number, put in enumerate(self.d_put):
            put(group, stack[:, number])

    def _a(self, group: Group, blocks: Array) -> Array | None:
        if self.a_descriptor is not None:
            return self._operand(group, blocks, self.a_descriptor, ROWS, self.trans_a, "A")
        assert self.a_registers is not None
        values = unpack([_spread(group, get(group), np.uint32) for get in self.a_registers], self.kind)
        return matrix_a(values, self.k, 4 // SIZE[self.kind]).reshape(-1, ROWS, self.k)

    def _operand(self, group: Group, blocks: Array, get: Getter, mn: int, transposed: bool, name: str) -> Array | None:
        """``(warpgroups, mn, k)`` from shared memory."""
        given = np.broadcast_to(np.asarray(get(group)), (group.lanes.n,)).reshape(-1, 128)
        if (given != given[:, :1]).any():
            raise self.ins.unknown(f"the threads of a warpgroup have different descriptors of {name}")
        print_ = self._footprint(group.lanes, given[:, 0], blocks, mn, transposed, name)
        if print_ is None:
            return None
        machine = self.b.machine
        machine.counts[self.ins.index].bytes += ROW * print_.offsets.size
        if machine.checks:
            print_.check_written(machine, self.ins)
            machine.batch.races.access("g", self, print_)
        raw = machine.batch.shared_views[ROW][print_.offsets >> 4]
        values = raw.view(np.uint32 if self.kind == "tf32" else np.uint16)
        if transposed:
            values = values.transpose(0, 2, 1)
        if self.kind == "tf32":
            return np.asarray((values & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64))
        return np.asarray((bfloat_to_float(values) if self.kind == "bf16" else
                           np.ascontiguousarray(values).view(np.float16)).astype(np.float64))

    def _footprint(self, lanes: LaneSet, bits: Array, blocks: Array, mn: int, transposed: bool,
                   name: str) -> Footprint | None:
        key = (lanes, bits.tobytes(), name)
        known = self.footprints.get(key)
        if known is not None:
            return known
        machine, batch = self.b.machine, self.b.machine.batch
        rows = []
        for number, block in zip(bits.tolist(), blocks.tolist(), strict=True):
            descriptor = Descriptor.decode(number)
            if descriptor.base_offset:
                raise self.ins.unknown(f"descriptor of {name} with base offset {descriptor.base_offset}: align the "
                                       "matrix to the swizzle's pattern (8 spans)")
            at = descriptor.rows(mn, self.k, SIZE[self.kind], transposed)
            if int(at.max()) + ROW > batch.shared_size:
                machine.fault("shared_out_of_bounds", self.ins, f"wgmma reads {name} up to shared address "
                              f"{int(at.max()) + ROW}, past the block's {batch.shared_size} bytes of shared memory",
                              lanes.lanes[:1], int(at.max()))
                return None
            rows.append(at + block * batch.shared_stride)
        found = Footprint(lanes, np.stack(rows))
        if len(self.footprints) > KEEP:
            self.footprints.clear()
        self.footprints[key] = found
        return found

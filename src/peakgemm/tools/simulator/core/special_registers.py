"""Special registers: who a thread is, in which grid and cluster, and a clock that counts instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..front.ptx import Instruction

if TYPE_CHECKING:
    from ..machine import Machine
    from ..ops.build import Getter


def special(machine: Machine, ins: Instruction, name: str, dtype: Any) -> Getter:
    """A getter of a special register.

    Raises:
        UnknownInstruction: one that the simulator does not have.
    """
    root, _, axis = name[1:].partition(".")
    which = {"x": 0, "y": 1, "z": 2}.get(axis, 0)
    fixed = {"ntid": machine.block_shape[which], "nctaid": machine.grid[which], "nwarpid": machine.padded // 32,
             "smid": 0, "nsmid": 1, "gridid": 0, "total_smem_size": machine.shared_size,
             "dynamic_smem_size": machine.symbols.get("%dynamic", 0), "cluster_nctarank": machine.cluster,
             "cluster_nctaid": machine.cluster if which == 0 else 1,
             "nclusterid": machine.grid[which] // (machine.cluster if which == 0 else 1)}
    if root.startswith("reserved_smem_offset_"):  # of what is the system's there is an address, and nothing at it
        fixed[root] = -(-machine.shared_size // 16) * 16
    if root in fixed:
        value = dtype(fixed[root])
        return lambda group: value
    if root in ("tid", "ctaid"):
        return lambda group: machine.batch.coordinates(root, which)[group.lanes.lanes].astype(dtype)
    if root == "cluster_ctarank" or (root == "cluster_ctaid" and which == 0):
        return lambda group: (machine.batch.coordinates("ctaid", 0)[group.lanes.lanes] % machine.cluster).astype(dtype)
    if root == "cluster_ctaid":
        return lambda group: dtype(0)
    if root == "clusterid":
        each = machine.cluster if which == 0 else 1
        return lambda group: (machine.batch.coordinates("ctaid", which)[group.lanes.lanes] // each).astype(dtype)
    if root == "laneid":
        return lambda group: (group.lanes.lanes & 31).astype(dtype)
    if root == "warpid":
        return lambda group: (group.lanes.lanes % machine.padded >> 5).astype(dtype)
    if root.startswith("lanemask_"):
        one, ones = np.uint64(1), np.uint64(0xFFFFFFFF)
        masks: dict[str, Callable[[Any], Any]] = {
            "eq": lambda n: one << n, "lt": lambda n: (one << n) - one, "le": lambda n: (one << n << one) - one,
            "gt": lambda n: ones << n << one, "ge": lambda n: ones << n,
        }  # fmt: skip
        mask = masks[root[9:]]
        return lambda group: (mask((group.lanes.lanes & 31).astype(np.uint64)) & ones).astype(dtype)
    if root in ("clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo", "globaltimer_hi"):
        return lambda group: dtype(0 if root.endswith("hi") else machine.steps & 0xFFFFFFFF)
    raise ins.unknown(f"special register {name} is not simulated")

"""One memory instruction: where its lanes point, whether they may, and what it costs.

An instruction in a loop shows the same address pattern again, moved by one amount for all
lanes. Such a pattern is checked and counted once (`Pattern`); a repetition costs a comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core import counters
from ..core.lanes import LaneSet
from ..core.memory import GLOBAL, LOCAL, SHARED, WINDOW, Segment
from ..front.ptx import Instruction
from .strength import strength

if TYPE_CHECKING:
    from ..machine import Machine

RANK = 24  # bits of an address in shared memory of a cluster, below 1 + the rank of its block; 0: one's own
KEEP = 4  # patterns remembered per instruction
UNITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
Array = NDArray[Any]


def in_cluster(machine: Machine, lanes: LaneSet, address: Array) -> tuple[Array, Array]:
    """Of addresses in the shared memory of a cluster's blocks (see ``mapa``): the block, and the place there.

    An address that names no block of the cluster lies beyond every block's memory.
    """
    rank, own = (address >> np.uint32(RANK)).astype(np.int64), lanes.block_of
    named = (rank > 0) & (rank <= machine.cluster)
    block = np.where(named, own // machine.cluster * machine.cluster + rank - 1, own)
    return block, np.where(rank > machine.cluster, address, address & np.uint32((1 << RANK) - 1))


def refuse_ended(machine: Machine, ins: Instruction, lanes: LaneSet, block: Array, what: str) -> None:
    """Report who does something with the shared memory of a block that has ended."""
    alive = np.asarray(machine.batch.live.reshape(machine.batch.blocks, -1).any(axis=1))
    gone = ~alive[block]
    if gone.any():
        machine.fault("shared_race", ins, f"{what} of a block that has ended; put a barrier of the cluster behind it",
                      lanes.lanes[gone])


class Pattern:
    """Addresses of one execution, and what was found out about them and their translations."""

    __slots__ = (
        "bits", "costs", "first", "high", "lanes", "logged", "low", "marked", "offsets", "proved", "raw", "ref",
        "twice",
    )  # fmt: skip

    def __init__(self, lanes: LaneSet, address: Array) -> None:
        self.lanes = lanes
        self.raw = address.tobytes()
        self.ref = np.frombuffer(self.raw, address.dtype)
        self.first = int(address[0])
        self.low = int(address.min())
        self.high = int(address.max())
        self.bits = int(np.bitwise_or.reduce(address))
        self.costs: dict[int, tuple[int, int]] = {}
        self.offsets: Array | None = None
        self.proved: set[tuple[int, int]] = set()
        self.marked: set[tuple[int, int]] = set()
        self.logged = False
        self.twice: bool | None = None  # whether two lanes share an address


class Site:
    """The accesses of one instruction to one address space.

    ``size`` is the bytes of one lane's access, ``load`` whether it reads; ``kind`` names the
    counters it feeds (``ld``, ``st``, ``atom``, ``ldgsts``).
    """

    def __init__(self, machine: Machine, ins: Instruction, size: int, kind: str) -> None:
        self.machine, self.ins, self.size, self.kind = machine, ins, size, kind
        self.load = kind in ("ld", "ldsm")
        self.patterns: dict[str, list[Pattern]] = {"shared": [], "global": []}
        self.counts = machine.counts[ins.index]
        self.strength = strength(machine.program, ins)
        self.segment: Segment | None = None  # the one accessed last

    def match(self, space: str, lanes: LaneSet, address: Array) -> tuple[Pattern, int]:
        """The known pattern that ``address`` repeats and its translation in bytes, or a new one and 0."""
        patterns = self.patterns[space]
        first = int(address[0])
        for pattern in patterns:
            if pattern.lanes is lanes:
                shift = first - pattern.first
                if shift == 0:
                    same = address.tobytes() == pattern.raw
                else:
                    moved = address - pattern.ref
                    same = bool((moved == moved[0]).all())
                if same:
                    if patterns[0] is not pattern:
                        patterns.remove(pattern)
                        patterns.insert(0, pattern)
                    return pattern, shift
        pattern = Pattern(lanes, address)
        patterns.insert(0, pattern)
        del patterns[KEEP:]
        return pattern, 0

    # ---- shared memory -------------------------------------------------------------------------

    def shared(self, lanes: LaneSet, address: Array, event: str) -> tuple[Array, Array | None]:
        """Check, count and log an access to shared memory.

        ``address (n,)`` uint32 bytes within the block's shared memory; ``event`` is ``r``, ``w``,
        ``a`` (atomic), ``u`` (volatile write of what is there) or ``c`` (cp.async write). Returns byte
        offsets into the batch's shared memory and, when some lanes were refused, the mask of those
        that were not.
        """
        batch, size = self.machine.batch, self.size
        if self.machine.observer is not None:
            self.machine.observer.access(self.ins, "shared", size, self.kind == "ld", lanes, address)
        pattern, shift = self.match("shared", lanes, address)
        counts = self.counts
        if self.kind == "ldgsts":  # the global half of the copy counts the request
            counts.copies += lanes.warps
        else:
            counts.requests += lanes.warps
            counts.bytes += lanes.n * size
        cost = pattern.costs.get(shift & 3)
        if cost is None:
            cost = counters.wavefronts(address, lanes, size, self.kind == "ld")
            pattern.costs[shift & 3] = cost
        counts.wavefronts += cost[0]
        counts.wavefronts_ideal += cost[1]
        if pattern.offsets is None or len(pattern.offsets) != lanes.n:
            pattern.offsets = pattern.ref.astype(np.int64) + lanes.block_of * batch.shared_stride
        offsets = pattern.offsets + shift if shift else pattern.offsets
        valid = None
        low, high = pattern.low + shift, pattern.high + shift + size
        if low < 0 or high > batch.shared_size or ((pattern.bits | shift) & (size - 1)):
            valid = self._refuse_shared(lanes, address)
            if valid is not None:
                offsets = offsets[valid]
                lanes = batch.pool.get(lanes.lanes[valid])
                pattern, shift = Pattern(lanes, address[valid]) if lanes.n else pattern, 0
        if self.machine.checks and lanes.n:
            if self.kind != "st" and event in "ra" and not batch.all_written:
                key = (batch.number, shift)
                if key not in pattern.proved:
                    self._written(lanes, offsets)
                    pattern.proved.add(key)
            writes = not self.load and event in "wauc"
            if writes and not batch.all_written and (batch.number, shift) not in pattern.marked:
                batch.mark_written(offsets, size)
                pattern.marked.add((batch.number, shift))
            batch.races.access(event, self, pattern, shift)
        return offsets, valid

    def cluster(self, lanes: LaneSet, address: Array, event: str) -> tuple[Array, Array | None]:
        """As `shared`, of addresses in the shared memory of the cluster's blocks (see ``mapa``)."""
        lanes, offsets, valid = self.reach(lanes, address)
        if self.machine.checks and lanes.n:
            self.log(event, lanes, offsets)
        return offsets, valid

    def reach(self, lanes: LaneSet, address: Array) -> tuple[LaneSet, Array, Array | None]:
        """Check and count an access to the shared memory of the cluster's blocks; the lanes that are allowed, and as
        `shared` their offsets and mask.

        Counts no wavefronts: it is the network between SMs that such an access takes.
        """
        batch, size = self.machine.batch, self.size
        block, within = in_cluster(self.machine, lanes, address)
        valid = self._refuse_shared(lanes, within)
        if valid is not None:
            lanes, block, within = batch.pool.get(lanes.lanes[valid]), block[valid], within[valid]
            if not lanes.n:
                return lanes, np.empty(0, np.int64), valid
        self.counts.requests += lanes.warps
        self.counts.bytes += lanes.n * size
        refuse_ended(self.machine, self.ins, lanes, block, f"{size}-byte {self.verb} of the shared memory")
        offsets = within.astype(np.int64) + block * batch.shared_stride
        if self.machine.checks and not batch.all_written:
            if self.load:
                self._written(lanes, offsets)
            else:
                batch.mark_written(offsets, size)
        return lanes, offsets, valid

    def log(self, event: str, lanes: LaneSet, offsets: Array, *mbarrier: int) -> None:
        """Log an access at ``offsets`` in the batch's shared memory, in whichever block; see `RaceLog.access`."""
        batch = self.machine.batch
        # From the beginning of one's own, as patterns count.
        pattern, shift = self.match("shared", lanes, offsets - lanes.block_of * batch.shared_stride)
        batch.races.access(event, self, pattern, shift, *mbarrier)

    def _refuse_shared(self, lanes: LaneSet, address: Array) -> Array | None:
        machine, size = self.machine, self.size
        limit = machine.batch.shared_size
        wide = address.astype(np.int64)
        outside = wide + size > limit
        crooked = ~outside & (wide % size != 0)
        kinds = (("shared_out_of_bounds", outside, f"past the block's {limit} bytes of shared memory"),
                 ("misaligned", crooked, f"in shared memory, not a multiple of {size}"))
        for kind, mask, why in kinds:
            if mask.any():
                at = int(wide[mask][0])
                machine.fault(kind, self.ins, f"{size}-byte {self.verb} at shared address {at} is {why}",
                              lanes.lanes[mask], at)
        valid = ~(outside | crooked)
        return None if valid.all() else valid

    def _written(self, lanes: LaneSet, offsets: Array) -> None:
        batch = self.machine.batch
        unit = batch.unit
        start = offsets >> batch.unit_shift
        for step in range(max(1, self.size // unit)):
            known = batch.written[start + step]
            if not known.all():
                missing = np.flatnonzero(~known)
                at = int(offsets[missing[0]] % batch.shared_stride) + step * unit
                self.machine.fault("shared_unwritten", self.ins,
                                   f"{self.size}-byte read of shared memory that no thread has written, address {at}",
                                   lanes.lanes[missing], at)
                return

    # ---- global memory -------------------------------------------------------------------------

    def global_(self, lanes: LaneSet, address: Array, write: bool) -> tuple[Array, Array | None]:
        """Check and count an access to global memory, and log a read; ``address (n,)`` uint64.

        Returns byte offsets into the arena and, when some lanes were refused, the mask of the others.
        """
        arena, size, counts = self.machine.arena, self.size, self.counts
        if self.machine.observer is not None:
            self.machine.observer.access(self.ins, "global", size, self.load, lanes, address)
        pattern, shift = self.match("global", lanes, address)
        counts.requests += lanes.warps
        counts.bytes += lanes.n * size
        cost = pattern.costs.get(shift & 31)
        if cost is None:
            cost = pattern.costs[shift & 31] = counters.sectors(address, lanes, size)
        counts.sectors += cost[0]
        counts.sectors_ideal += cost[1]
        log, low, high = self.machine.global_log, pattern.low + shift, pattern.high + shift + size
        segment = self.segment
        if segment is None or low < segment.base or high > segment.end:
            segment = self.segment = arena.find(low, high)
        if segment is None or ((pattern.bits | shift) & (size - 1)) or (write and not segment.writable):
            valid = self._refuse_global(lanes, address, write)
            if valid is not None:
                offsets = (address[valid] - np.uint64(GLOBAL)).astype(np.int64)
                if log is not None and not write and len(offsets):
                    log.read(self, self.machine.pool.get(lanes.lanes[valid]), offsets)
                return offsets, valid
        if pattern.offsets is None:
            pattern.offsets = (pattern.ref - np.uint64(GLOBAL)).astype(np.int64)
        offsets = pattern.offsets + shift if shift else pattern.offsets
        if log is not None and not write:
            log.read(self, lanes, offsets, segment, pattern, shift)
        return offsets, None

    @property
    def verb(self) -> str:
        """``read`` or ``write``, for messages."""
        return "read" if self.load else {"ldgsts": "copy", "atom": "atomic"}.get(self.kind, "write")

    def _refuse_global(self, lanes: LaneSet, address: Array, write: bool) -> Array | None:
        machine, arena, size = self.machine, self.machine.arena, self.size
        inside = arena.inside(address, size)
        crooked = inside & (address % np.uint64(size) != 0)
        frozen = np.zeros(lanes.n, bool)
        if write:
            for segment in arena.segments:
                if not segment.writable:
                    frozen |= (address >= np.uint64(segment.base)) & (address < np.uint64(segment.end))
        frozen &= inside
        for kind, mask, why in (("out_of_bounds", ~inside, "outside every array"),
                                ("misaligned", crooked, f"not a multiple of {size}"),
                                ("read_only", frozen, "to a read-only array")):
            if mask.any():
                at = int(address[mask][0])
                machine.fault(kind, self.ins, f"{size}-byte {self.verb} {why}: {arena.describe(at, size)}",
                              lanes.lanes[mask], at)
        valid = inside & ~crooked & ~frozen
        return None if valid.all() else valid


def split_generic(address: Array) -> dict[str, Array]:
    """Which lanes of a generic access point to which space."""
    shared = (address >= np.uint64(SHARED)) & (address < np.uint64(SHARED + WINDOW))
    local = (address >= np.uint64(LOCAL)) & (address < np.uint64(LOCAL + WINDOW))
    return {name: mask for name, mask in (("shared", shared), ("local", local), ("global", ~shared & ~local))
            if mask.any()}

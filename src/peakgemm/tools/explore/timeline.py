"""When each warp executes what: steps and clocks of the warps of a block, and what is in flight meanwhile.

A clock counts a warp's own instructions, one a tick, and stands still nowhere but at barriers: a warp goes on from one
when the last that it waits for has arrived. It shows order and overlap, not cycles of a GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..simulator.front.program import Flow
from ..simulator.front.ptx import Imm, Instruction
from .recorder import Recorder

KINDS = ("copy", "stage", "load", "compute", "barrier", "store", "other")
COMPUTE = ("fma", "mma", "wgmma", "mad")
ARITHMETIC = ("add", "mul", "sub", "div")


@dataclass
class Track:
    """Warps that do the same at the same clocks.

    ``steps``: the instruction of each step; ``jumps``: steps that begin later than one tick after the one before, with
    their clocks; ``flights``: what was asked for at one step and is had at another (kind, first step, last step).
    """

    warps: list[int]
    steps: list[int] = field(default_factory=list)
    jumps: list[tuple[int, int]] = field(default_factory=list)
    flights: list[tuple[str, int, int]] = field(default_factory=list)
    end: int = 0


def kind_of(ins: Instruction) -> str:
    """What an instruction is for, one of `KINDS`."""
    base = ins.base
    if base in ("bar", "barrier") or "mbarrier" in ins.parts or "wait" in ins.opcode or "commit" in ins.opcode:
        return "barrier"
    if base == "cp" or (base in ("ld", "ldu") and ins.has("global")):
        return "copy"
    if base in ("ld", "ldmatrix") and (base == "ldmatrix" or _shared(ins)):
        return "load"
    if base in ("st", "stmatrix") and (base == "stmatrix" or _shared(ins)):
        return "stage"
    if base in ("st", "red", "atom"):
        return "store"
    if base in COMPUTE[:3] or (base in (*COMPUTE, *ARITHMETIC) and ins.types[-1:] and ins.types[-1].startswith("f")):
        return "compute"
    return "other"


def _shared(ins: Instruction) -> bool:
    return any(part.split("::")[0] == "shared" for part in ins.parts)


def tracks(recorder: Recorder, code: Sequence[Instruction], flow: Sequence[Flow], warps: int) -> list[Track]:
    """The tracks of the ``warps`` of the traced block; those that march together share one."""
    tracks_of = [Track([warp]) for warp in range(warps)]
    waits: dict[int, int] = {}  # the barrier that a warp has come to
    last: dict[int, int] = {}  # when the last warp arrived at each barrier
    copied: list[set[int]] = [set() for _ in range(warps)]  # steps that accessed memory
    for event, (index, member) in enumerate(zip(recorder.events, recorder.members, strict=True)):
        ins = code[index]
        barrier = _barrier(ins, recorder.keys.get(event))
        arrives, blocks = _role(ins)
        for warp in recorder.sets[member]:
            track = tracks_of[warp]
            begins = last.get(waits.pop(warp), 0) if warp in waits else 0
            if begins > track.end:
                track.jumps.append((len(track.steps), begins))
                track.end = begins
            if event in recorder.touched:
                copied[warp].add(len(track.steps))
            track.steps.append(index)
            track.end += 1
            if barrier is not None and arrives:
                last[barrier] = max(last.get(barrier, 0), track.end)
            if barrier is not None and blocks:
                waits[warp] = barrier
    alike: dict[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], Track] = {}
    for warp, track in enumerate(tracks_of):
        first = alike.setdefault((tuple(track.steps), tuple(track.jumps)), track)
        if first is track:
            track.flights = flights(track.steps, code, flow, copied[warp])
        else:
            first.warps.append(warp)
    return list(alike.values())


def _role(ins: Instruction) -> tuple[bool, bool]:
    """Whether an instruction arrives at a barrier, and whether it waits for one."""
    if ins.base in ("bar", "barrier") and "warp" not in ins.parts:
        return True, not ins.has("arrive")
    if "mbarrier" in ins.parts:
        return ins.has("arrive", "arrive_drop", "expect_tx"), ins.has("test_wait", "try_wait")
    return False, False


def _barrier(ins: Instruction, key: int | None) -> int | None:
    """The barrier that an instruction is about: a block's own by its number below zero, an mbarrier by its place."""
    if key is not None:
        return key
    if ins.base in ("bar", "barrier"):
        number = next((one.value for one in ins.operands if isinstance(one, Imm)), 0)
        return -1 - number
    return None


def flights(steps: Sequence[int], code: Sequence[Instruction], flow: Sequence[Flow],
            copied: set[int]) -> list[tuple[str, int, int]]:
    """What one warp has in flight: loads from global memory until their value is read, groups of cp.async until they
    are waited for. ``copied``: the steps that accessed memory; a group may be committed empty."""
    flights: list[tuple[str, int, int]] = []
    pending: dict[str, int] = {}  # register: the step that asked for it
    issued: int | None = None  # first copy of the group that is not committed yet
    groups: deque[int | None] = deque()
    for step, index in enumerate(steps):
        ins = code[index]
        if pending:
            for name in (*flow[index][0], *flow[index][1]):
                if name in pending:
                    flights.append(("load", pending.pop(name), step))
        if ins.base in ("ld", "ldu") and ins.has("global") and step in copied:
            pending.update(dict.fromkeys(flow[index][1], step))
        elif ins.base == "cp" and "mbarrier" not in ins.parts and not ins.has("bulk"):
            if ins.has("commit_group"):
                groups.append(issued)
                issued = None
            elif ins.has("wait_all", "wait_group"):
                keep = ins.operands[0].value if ins.operands and isinstance(ins.operands[0], Imm) else 0
                if ins.has("wait_all") and issued is not None:
                    groups.append(issued)
                    issued = None
                while len(groups) > keep:
                    first = groups.popleft()
                    if first is not None:
                        flights.append(("copy", first, step))
            elif issued is None and step in copied:
                issued = step
    return sorted({(kind, first, last) for kind, first, last in flights}, key=lambda one: one[1:])

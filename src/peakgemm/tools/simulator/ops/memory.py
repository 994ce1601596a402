"""Loads, address conversions; what loads and stores share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InvalidValue
from ..checks.access import RANK, UNITS, Site, split_generic
from ..checks.strength import FEW
from ..core.lanes import DTYPES, Group, LaneSet, index
from ..core.memory import GLOBAL, LOCAL, SHARED, WINDOW
from ..front.ptx import BYTES, Frame, Imm, Instruction, Mem, Operand, Reg, Sym, Vec
from .build import SIGNED, UNSIGNED, WIDTH, Build, Getter, Step, builder

Array = NDArray[Any]
Target = tuple[str, int, Any]


def space_of(ins: Instruction) -> str:
    """shared, cluster (of which the block's own is a part), global, local, param, const or generic."""
    for part in ins.parts[1:]:
        name = part.split("::")[0]
        if name in ("shared", "global", "local", "param", "const"):
            return "cluster" if part == "shared::cluster" else name
    return "generic"


def address(b: Build, ins: Instruction, operand: Operand, space: str) -> Getter:
    """A getter of an address operand for every lane: uint32 in shared and local space, else uint64.

    A variable's name is an address in its own space, as ptxas has it: a generic access to it goes there.
    """
    if isinstance(operand, (Sym, Frame)):  # a variable without brackets: a[2]
        operand = Mem(operand)
    if not isinstance(operand, Mem):
        raise ins.unknown(f"operand {operand} is not an address")
    kind = "u32" if space in ("shared", "cluster", "local") else "u64"
    dtype = DTYPES[kind]
    base, offset = operand.base, operand.offset
    if isinstance(base, Reg) and base.name in b.program.slot:
        own = {"r": "u32", "d": "u64"}.get(b.program.slot[base.name][0], "")
        if not own:
            raise ins.unknown(f"{base.name} is narrower than an address")
        get = b.src(ins, base, own)
        move = dtype(offset & ((1 << 8 * BYTES[kind]) - 1))
        if own == kind:
            return (lambda group: get(group) + move) if offset else get
        return lambda group: get(group).astype(dtype) + move
    if isinstance(base, Frame):
        get, window = b.src(ins, Frame(base.offset + offset), kind), dtype(LOCAL if space == "generic" else 0)
        return lambda group: get(group) + window
    if isinstance(base, Reg):
        raise ins.unknown(f"{base.name} holds no address")
    place = base.value if isinstance(base, Imm) else b.machine.address_of(ins, base.name) + base.offset
    own = b.machine.spaces.get(base.name, space) if isinstance(base, Sym) else space
    name = base.name if isinstance(base, Sym) else ""
    if space == "generic" and own in ("global", "shared", "local"):
        place += {"shared": SHARED, "local": LOCAL}.get(own, 0)
    elif own != space and (own, space) != ("shared", "cluster") and space != "any":
        raise ins.unknown(f"{name} is in .{own}, an access to it must be {ins.base}.{own}")
    value = dtype((place + offset) & ((1 << 8 * BYTES[kind]) - 1))
    return lambda group: np.full(group.lanes.n, value)


def targets(b: Build, ins: Instruction, operand: Operand, kind: str) -> list[Target | None]:
    """Where a loaded vector goes: row view, slot, and the type of the loaded elements."""
    out: list[Target | None] = []
    if (given := len(operand.items) if isinstance(operand, Vec) else 1) != vector(ins):
        raise ins.unknown(f"it loads {vector(ins)} elements into {given}")
    for item in operand.items if isinstance(operand, Vec) else (operand,):
        assert isinstance(item, Reg)
        if item.name == "_":
            out.append(None)
            continue
        cls, slot = b.program.slot[item.name]
        signed = kind.startswith("s")
        view = (SIGNED if signed else UNSIGNED)[cls]
        if BYTES[kind] > WIDTH[cls]:
            raise ins.unknown(f"result register {item.name} is narrower than .{kind}")
        out.append((view, slot, DTYPES[f"{'s' if signed else 'u'}{8 * BYTES[kind]}"]))
    return out


def chosen_lanes(b: Build, guard: Getter | None, group: Group) -> tuple[LaneSet, Array | None]:
    """The lanes whose guard holds, and their places (None: all of them)."""
    if guard is None:
        return group.lanes, None
    mask = guard(group)
    n = np.count_nonzero(mask)
    if n == group.lanes.n:
        return group.lanes, None
    return b.machine.pool.subset(group.lanes, mask)


def on_lanes(b: Build, guard: Getter | None, body: Callable[[Group, LaneSet, Array | None], None]) -> Step:
    """A step that does ``body(group, lanes, places)`` for the `chosen_lanes`, where there are any."""
    def step(group: Group) -> None:
        lanes, places = chosen_lanes(b, guard, group)
        if lanes.n:
            body(group, lanes, places)

    return step


def by_space(b: Build, space: str, lanes: LaneSet, at: Array) -> list[tuple[str, LaneSet, Array, Array | None]]:
    """Cut a generic access into ``(space, lanes, address in it, places)``."""
    if space != "generic":
        return [(space, lanes, at, None)]
    parts = []
    for name, mask in split_generic(at).items():
        everyone = bool(mask.all())
        some, places = (lanes, None) if everyone else b.machine.pool.subset(lanes, mask)
        there = at if everyone else at[places]
        if name != "global":
            there = (there - np.uint64(SHARED if name == "shared" else LOCAL)).astype(np.uint32)
        parts.append((name, some, there, places))
    return parts


def resolve(b: Build, site: Site, space: str, lanes: LaneSet, at: Array, event: str,
            write: bool) -> tuple[Array, Array | None, dict[int, Array]]:
    """Offsets, the mask of lanes allowed (None: all), and the memory that the offsets count in."""
    machine = b.machine
    if space in ("shared", "cluster"):
        offsets, valid = (site.shared if space == "shared" else site.cluster)(lanes, at, event)
        return offsets, valid, machine.batch.shared_views
    if space == "global":
        offsets, valid = site.global_(lanes, at, write)
        return offsets, valid, machine.arena.views
    wide = at.astype(np.int64)
    inside = (wide + site.size <= machine.local_size) & (wide % site.size == 0)
    offsets = lanes.lanes * machine.batch.local_stride + wide
    valid = None
    if not inside.all():
        where = int(wide[~inside][0])
        machine.fault("local_out_of_bounds", site.ins, f"{site.size}-byte access at local address {where}, outside the "
                      f"thread's {machine.local_size} bytes or misaligned", lanes.lanes[~inside], where)
        offsets, valid = offsets[inside], inside
    return offsets, valid, machine.batch.local_views


def flag(b: Build, site: Site, space: str, lanes: LaneSet, offsets: Array, valid: Array | None) -> None:
    """Note strong accesses at ``offsets``, which may be to flags."""
    machine = b.machine
    if not machine.checks or space == "local":
        return
    if valid is not None:
        lanes = machine.pool.get(lanes.lanes[valid])
    words = offsets
    if space != "global":  # below 0, and of its block
        batch = machine.batch
        words = -1 - offsets % batch.shared_stride - (batch.numbers[offsets // batch.shared_stride] << 32)
    told = machine.batch.order.flag(machine.batch, site.strength, lanes, words)
    if told and space == "global" and lanes.n <= FEW:  # it may order shared memory as well
        machine.batch.races.event("flag", site.strength, lanes, words.tobytes())


def gather(views: dict[int, Array], offsets: Array, each: int, count: int) -> Array:
    """``(n, count)`` elements of ``each`` bytes from byte offsets aligned to the whole."""
    size = each * count
    data = views[size].take(index(offsets >> (size.bit_length() - 1)), mode="clip")
    return data.view(f"u{each}").reshape(-1, count)


def scatter(views: dict[int, Array], offsets: Array, data: Array) -> None:
    """Store ``data (n, count)``; of lanes with one offset the last wins."""
    size = data.itemsize * data.shape[1]
    views[size][offsets >> (size.bit_length() - 1)] = data.view(UNITS[size])[:, 0]


def vector(ins: Instruction) -> int:
    """How many elements an access of one lane has."""
    return next((int(part[1]) for part in ins.parts if part in ("v2", "v4", "v8")), 1)


@builder("prefetch")
def prefetch(b: Build, ins: Instruction) -> Step:
    """A hint that moves nothing; outside every array it is a fault all the same, as it cannot have been meant."""
    if not ins.has("global"):
        return lambda group: None
    at, guard, machine = address(b, ins, ins.operands[0], "global"), b.guard(ins), b.machine

    def step(group: Group, lanes: LaneSet, places: Array | None) -> None:
        there = at(group) if places is None else at(group)[places]
        outside = ~machine.arena.inside(there, 1)
        if outside.any():
            first = int(there[outside][0])
            machine.fault("out_of_bounds", ins, f"prefetch outside every array: {machine.arena.describe(first, 1)}",
                          lanes.lanes[outside], first)

    return on_lanes(b, guard, step)


@builder("ld", "ldu")
def load(b: Build, ins: Instruction) -> Step:
    kind, count, space = ins.types[-1], vector(ins), space_of(ins)
    if space == "param" and not (isinstance(ins.operands[1], Mem) and isinstance(ins.operands[1].base, Reg)):
        return _load_param(b, ins, kind, count)
    if count * BYTES[kind] > 16:
        raise ins.unknown("loads wider than 16 bytes")
    get = address(b, ins, ins.operands[1], space)
    into, guard = targets(b, ins, ins.operands[0], kind), b.guard(ins)
    each = BYTES[kind]
    if space in ("const", "param"):
        return _load_constant(b, ins, space, get, into, guard, count)
    site = Site(b.machine, ins, each * count, "ld")
    strong = not site.strength.weak

    def step(group: Group, lanes: LaneSet, places: Array | None) -> None:
        if strong:
            group.polled = True
        at = get(group) if places is None else get(group)[places]
        for where, some, there, sub in by_space(b, space, lanes, at):
            offsets, valid, views = resolve(b, site, where, some, there, "r", False)
            if strong and b.machine.fences:
                flag(b, site, where, some, offsets, valid)
            data = gather(views, offsets, each, count)
            if valid is not None:
                every = np.zeros((some.n, count), data.dtype)
                every[valid] = data
                data = every
            _deliver(group, into, data, _compose(places, sub))

    return on_lanes(b, guard, step)


def _compose(outer: Array | None, inner: Array | None) -> Array | None:
    if outer is None or inner is None:
        return inner if outer is None else outer
    return outer[inner]


def _deliver(group: Group, into: list[Target | None], data: Array, places: Array | None) -> None:
    for k, target in enumerate(into):
        if target is not None:
            view, slot, dtype = target
            group.rows[view][slot][slice(None) if places is None else places] = data[:, k].view(dtype)


def _load_param(b: Build, ins: Instruction, kind: str, count: int) -> Step:
    operand = ins.operands[1]
    if not isinstance(operand, Mem) or not isinstance(operand.base, Sym):
        raise ins.unknown("a parameter addressed through a register")
    if operand.base.name not in b.machine.params:
        raise ins.unknown(f"{operand.base.name} is not a parameter of kernel {b.program.kernel.name}")
    blob = b.machine.params[operand.base.name]
    start, each = operand.base.offset + operand.offset, BYTES[kind]
    if not 0 <= start <= len(blob) - each * count:
        raise ins.unknown(f"it reads {each * count} bytes at byte {start} of a parameter of {len(blob)} bytes")
    values = np.frombuffer(blob[start:start + each * count], DTYPES[kind])
    items = ins.operands[0].items if isinstance(ins.operands[0], Vec) else (ins.operands[0],)
    puts = [b.dst(ins, item, kind) for item in items]

    def step(group: Group) -> None:
        for put, value in zip(puts, values, strict=True):
            put(group, value)

    return step


def _load_constant(b: Build, ins: Instruction, space: str, get: Getter, into: list[Target | None],
                   guard: Getter | None, count: int) -> Step:
    """A load from constant memory, or from a parameter whose address was taken."""
    each, arena = BYTES[ins.types[-1]], b.machine.arena
    size = each * count

    def step(group: Group, lanes: LaneSet, places: Array | None) -> None:
        at = get(group) if places is None else get(group)[places]
        segment = arena.find(int(at.min()), int(at.max()) + size)
        if segment is None or segment.space != space or (at % np.uint64(size)).any():
            zeros = np.uint64(GLOBAL + arena.size)
            at = np.where(_constant(b, ins, space, lanes, at, size), at, zeros)
        _deliver(group, into, gather(arena.views, (at - np.uint64(GLOBAL)).astype(np.int64), each, count), places)

    return on_lanes(b, guard, step)


def _constant(b: Build, ins: Instruction, space: str, lanes: LaneSet, at: Array, size: int) -> Array:
    """Which lanes may read there; the others are reported."""
    arena = b.machine.arena
    inside = np.zeros(lanes.n, bool)
    for segment in arena.segments:
        if segment.space == space:
            inside |= (at >= np.uint64(segment.base)) & (at <= np.uint64(segment.end - size))
    crooked = inside & (at % np.uint64(size) != 0)
    for kind, mask, why in (("out_of_bounds", ~inside, f"outside every .{space} variable"),
                            ("misaligned", crooked, f"not a multiple of {size}")):
        if mask.any():
            where = int(at[mask][0])
            b.machine.fault(kind, ins, f"{size}-byte read {why}: {arena.describe(where, size, space)}",
                            lanes.lanes[mask], where)
    return np.asarray(inside & ~crooked)


@builder("mapa")
def mapa(b: Build, ins: Instruction) -> Step:
    """The address that a place in the block's own shared memory has in another block of the cluster."""
    if not ins.has("shared::cluster") or list(ins.types) != ["u32"] or ins.guard is not None:
        raise ins.unknown("only mapa.shared::cluster.u32 is simulated, without a guard")
    cluster = b.machine.cluster

    def compute(x: Any, rank: Any) -> Any:
        if (np.asarray(rank) >= cluster).any():
            raise InvalidValue(f"{ins.where}: mapa names block {int(np.max(rank))} of a cluster of {cluster}; ranks "
                               f"count from 0 to {cluster - 1}")
        return (x & np.uint32((1 << RANK) - 1)) + ((rank + np.uint32(1)) << np.uint32(RANK))

    return b.simple(ins, "u32", compute)


@builder("cvta")
def cvta(b: Build, ins: Instruction) -> Step:
    space = next((part.split("::")[0] for part in ins.parts[1:] if part.split("::")[0] in
                  ("global", "shared", "local", "const", "param")), "")
    base = {"shared": SHARED, "local": LOCAL}.get(space, 0)
    kind = ins.types[-1]
    if kind != "u64":
        raise ins.unknown("32-bit addressing")
    move = np.uint64(base if not ins.has("to") else (1 << 64) - base if base else 0)
    return b.simple(ins, kind, (lambda x: x + move) if base else (lambda x: x))


@builder("isspacep")
def isspacep(b: Build, ins: Instruction) -> Step:
    space = ins.parts[1].split("::")[0]

    def compute(x: Any) -> Any:
        shared = (x >= np.uint64(SHARED)) & (x < np.uint64(SHARED + WINDOW))
        local = (x >= np.uint64(LOCAL)) & (x < np.uint64(LOCAL + WINDOW))
        return {"shared": shared, "local": local}.get(space, ~shared & ~local)

    put = b.dst(ins, ins.operands[0], "pred")
    get = b.src(ins, ins.operands[1], "u64")
    return lambda group: put(group, compute(get(group)))

"""Moves, compares and selects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..core.floats import flush
from ..core.lanes import DTYPES, Group
from ..front.ptx import BYTES, Imm, Instruction, Pair, Vec
from .build import Build, Step, builder


@builder("mov")
def mov(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    target, source = ins.operands
    if ins.has("v2", "v4"):
        assert isinstance(target, Vec) and isinstance(source, Vec)
        moves = [b.simple(replace(ins, operands=pair), f"u{8 * BYTES[kind]}", lambda x: x.copy())
                 for pair in zip(target.items, source.items, strict=True)]
        return lambda group: [move(group) for move in moves][-1]
    if isinstance(source, Vec):  # pack
        each = BYTES[kind] // len(source.items)
        parts = [b.src(ins, item, f"u{8 * each}") for item in source.items]
        put, wide = b.dst(ins, target, f"u{8 * BYTES[kind]}"), DTYPES[f"u{8 * BYTES[kind]}"]

        def pack(group: Group) -> None:
            out: Any = wide(0)
            for k, part in enumerate(parts):
                out = out | np.asarray(part(group)).astype(wide) << wide(8 * each * k)
            put(group, out)

        return pack
    if isinstance(target, Vec):  # unpack
        each = BYTES[kind] // len(target.items)
        get, wide = b.src(ins, source, f"u{8 * BYTES[kind]}"), DTYPES[f"u{8 * BYTES[kind]}"]
        puts = [b.dst(ins, item, f"u{8 * each}") for item in target.items]
        narrow = DTYPES[f"u{8 * each}"]

        def unpack(group: Group) -> None:
            value = np.asarray(get(group)).copy()
            for k, put in enumerate(puts):
                put(group, (value >> wide(8 * each * k)).astype(narrow))

        return unpack
    if kind not in ("pred", "f16", "bf16") and not (isinstance(source, Imm) and source.kind != "int"):
        kind = f"u{8 * BYTES[kind]}"  # as bits, so that NaN payloads stay
    return b.simple(ins, kind, lambda x: x)


@builder("setp", "set")
def setp(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    if kind in ("f16x2", "bf16x2", "bf16"):
        raise ins.unknown()
    name = ins.parts[1]
    logic_name = next((part for part in ins.parts[2:] if part in ("and", "or", "xor")), None)
    signed = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
    compares = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
                "ge": np.greater_equal}
    floating = kind.startswith("f")
    left, right = (b.src(ins, operand, kind) for operand in ins.operands[1:3])
    third = b.src(ins, ins.operands[3], "pred") if logic_name else None
    combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}.get(logic_name or "")
    unordered = floating and name.endswith("u") and name[:-1] in compares
    plain = signed.get(name, name[:-1] if unordered else name)
    if plain not in compares and plain not in ("num", "nan"):
        raise ins.unknown()
    ftz = ins.has("ftz")

    def compute(group: Group) -> Any:
        x, y = left(group), right(group)
        if ftz:
            x, y = flush(x), flush(y)
        if plain in ("num", "nan"):
            bad = np.isnan(x) | np.isnan(y)
            return bad if plain == "nan" else ~bad
        out = compares[plain](x, y)
        if floating and plain == "ne" and not unordered:
            out = out & ~(np.isnan(x) | np.isnan(y))
        if unordered:
            out = out | np.isnan(x) | np.isnan(y)
        return out

    if ins.base == "set":
        result = ins.types[0]
        put_value = b.dst(ins, ins.operands[0], result)
        yes = DTYPES[result](1) if result.startswith("f") else DTYPES[result](-1 if result == "s32" else 0xFFFFFFFF)
        if combine is not None:
            raise ins.unknown()
        return lambda group: put_value(group, np.where(compute(group), yes, DTYPES[result](0)))
    target = ins.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    put = b.dst(ins, first, "pred")
    other = b.dst(ins, second, "pred") if second is not None else None

    def step(group: Group) -> None:
        value = compute(group)
        if third is not None and combine is not None:
            gate = np.array(third(group))
            if other is not None:
                other(group, combine(~np.asarray(value), gate))
            put(group, combine(value, gate))
            return
        if other is not None:
            other(group, ~np.asarray(value))
        put(group, value)

    return step


@builder("selp")
def selp(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    raw = f"u{8 * BYTES[kind]}"
    floats = any(isinstance(operand, Imm) and operand.kind != "int" for operand in ins.operands[1:3])
    put = b.dst(ins, ins.operands[0], kind if floats else raw)
    x, y = (b.src(ins, operand, kind if floats else raw) for operand in ins.operands[1:3])
    predicate = b.src(ins, ins.operands[3], "pred")
    return lambda group: put(group, np.where(predicate(group), x(group), y(group)))


@builder("slct")
def slct(b: Build, ins: Instruction) -> Step:
    kind, test = ins.types
    put = b.dst(ins, ins.operands[0], kind)
    x, y = (b.src(ins, operand, kind) for operand in ins.operands[1:3])
    sign = b.src(ins, ins.operands[3], test)
    return lambda group: put(group, np.where(sign(group) >= 0, x(group), y(group)))



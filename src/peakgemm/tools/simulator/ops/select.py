"""Moves, compares and selects."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.floats import bfloat_to_float, flush
from ..core.lanes import Group, elements, word
from ..front.ptx import BYTES, Imm, Instruction, Pair, Vec
from .build import Build, Step, builder


@builder("mov")
def mov(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    target, source = ins.operands
    if ins.has("v2", "v4"):
        assert isinstance(target, Vec) and isinstance(source, Vec)
        if len(target.items) != len(source.items):
            raise ins.unknown(f"it moves {len(source.items)} values into {len(target.items)}")
        raw = f"u{8 * BYTES[kind]}"
        move, gets = b.results(ins, *((item, raw) for item in target.items)), [b.src(ins, x, raw) for x in source.items]
        return lambda group: move(group, *[get(group) for get in gets])
    if isinstance(source, Vec):  # pack
        each = BYTES[kind] // len(source.items)
        gets = [b.src(ins, item, f"u{8 * each}") for item in source.items]
        put = b.dst(ins, target, f"u{8 * BYTES[kind]}")
        return lambda group: put(group, word(np.stack(np.broadcast_arrays(*[
            np.atleast_1d(get(group)) for get in gets]), axis=1)))
    if isinstance(target, Vec):  # unpack
        each = BYTES[kind] // len(target.items)
        get, part = b.src(ins, source, f"u{8 * BYTES[kind]}"), f"u{8 * each}"
        give = b.results(ins, *((item, part) for item in target.items))
        return lambda group: give(group, *elements(get(group), part).T)
    if kind not in ("pred", "f16", "bf16") and not (isinstance(source, Imm) and source.kind != "int"):
        kind = f"u{8 * BYTES[kind]}"  # as bits, so that NaN payloads stay
    return b.simple(ins, kind, lambda x: x)


_COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
            "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
            "hs": np.greater_equal}  # fmt: skip
_LOGIC = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(ins: Instruction, kind: str) -> Any:
    """What compares two values, or parts of them, of type ``kind``."""
    name, floating, brain, ftz = ins.parts[1], kind.startswith(("f", "bf")), kind.startswith("bf"), ins.has("ftz")
    unordered = floating and name.endswith("u") and name[:-1] in _COMPARE
    plain = name[:-1] if unordered else name
    if plain not in _COMPARE and not (floating and plain in ("num", "nan")):
        raise ins.unknown()

    def compare(*values: Any) -> Any:
        x, y = (bfloat_to_float(np.asarray(v)) if brain else v for v in values)
        x, y = (flush(x), flush(y)) if ftz else (x, y)
        if not floating:
            return _COMPARE[plain](x, y)
        bad = np.isnan(x) | np.isnan(y)
        if plain in ("num", "nan"):
            return bad if plain == "nan" else ~bad
        return _COMPARE[plain](x, y) | bad if unordered else _COMPARE[plain](x, y) & ~bad

    return compare


@builder("setp", "set")
def setp(b: Build, ins: Instruction) -> Step:
    kind, target = ins.types[-1], ins.operands[0]
    logic = next((_LOGIC[part] for part in ins.parts[2:] if part in _LOGIC), None)
    if len(ins.operands) != 3 + (logic is not None):
        raise ins.unknown(f"it has {len(ins.operands) - 1} sources")
    pair, compare = kind.endswith("x2"), _comparison(ins, kind)
    left, right = (b.src(ins, operand, kind) for operand in ins.operands[1:3])
    third = b.src(ins, ins.operands[3], "pred") if logic else None

    def compute(group: Group) -> Any:
        """One row, or two of a pair."""
        x, y = left(group), right(group)
        value = compare(elements(x, kind[:-2]), elements(y, kind[:-2])).T if pair else np.atleast_1d(compare(x, y))
        return logic(value, third(group)) if logic and third else value

    if ins.base == "set":
        result = ins.types[0]
        size = 2 if pair else BYTES[result]  # of a pair a mask of 32 bits has 16 for each part
        yes = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000}.get(result.removesuffix("x2"), (1 << 8 * size) - 1)
        put_value, ones = b.dst(ins, target, f"u{8 * BYTES[result]}"), np.dtype(f"u{size}").type(yes)

        def mask(group: Group) -> None:
            value = np.where(compute(group), ones, ones.dtype.type(0))
            put_value(group, word(value.T) if pair else value)

        return mask
    if not isinstance(target, Pair):
        put = b.dst(ins, target, "pred")
        return lambda group: put(group, compute(group)[0] if pair else compute(group))
    both = b.results(ins, (target.first, "pred"), (target.second, "pred"))
    if pair:
        return lambda group: both(group, *compute(group))
    if logic is None:
        return lambda group: both(group, value := compute(group), ~value)

    assert third is not None  # as there is a logic

    def combined(group: Group) -> None:
        value, gate = compare(left(group), right(group)), third(group)
        both(group, logic(value, gate), logic(~np.asarray(value), gate))

    return combined


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



"""Words of the command line into values: shapes, tiles, architectures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ctypes import c_float
from math import isinf

import typer

from ..errors import InvalidValue
from ..kernels.rung import RungConfig
from ..problem import MAX_SIZE
from ..runtime.architectures import architecture
from ..runtime.device import Gpu

Shape = tuple[int, int, int]


def shapes(size: str | None, shape: str | None, default: int) -> list[Shape]:
    """``--size N[,N...]`` (squares) or ``--shape MxNxK[,...]``, or the default square."""
    exclusive(size, shape)
    parsed: list[Shape] = []
    for part in (shape or size or str(default)).split(","):
        match = re.fullmatch(r"(\d{1,12})x(\d{1,12})x(\d{1,12})" if shape else r"(\d{1,12})", part.strip())
        if match is None:
            wanted = "MxNxK such as 4096x4096x1024" if shape else "a number such as 4096"
            raise InvalidValue(f"{part!r} is not {wanted}")
        m, n, k = (int(x) for x in match.groups()) if shape else (int(part),) * 3
        if not all(1 <= x <= MAX_SIZE for x in (m, n, k)):
            raise InvalidValue(f"{part!r}: each size must lie in 1..{MAX_SIZE}")
        parsed.append((m, n, k))
    return parsed


def exclusive(size: str | None, shape: str | None) -> None:
    """Refuse both at once."""
    if size and shape:
        raise InvalidValue(f"--size {size} and --shape {shape} exclude each other; give one")


def only_for(what: str, given: Mapping[str, object], words: str = "") -> None:
    """Refuse options that were given and are for something else.

    Raises:
        InvalidValue: it names them, and what they are for.
    """
    if unused := [name for name, value in given.items() if value]:
        raise InvalidValue(f"{', '.join(unused)}: for {what} only, not for {words}")


def room(needed: int, most: int) -> None:
    """Refuse a simulation whose arrays take more than ``most`` bytes, before they are made."""
    if needed > most:
        raise InvalidValue(f"the simulation needs over {needed:,} bytes, max_memory allows {most:,}; pass a smaller "
                           "shape, or raise max_memory")


def tile(text: str) -> RungConfig:
    """``BM,BK,BN,RM,RN[,db]`` in the order of the published tile table."""
    parts = text.split(",")
    double = len(parts) == 6 and parts[5] == "db"
    if double:
        parts = parts[:5]
    if len(parts) != 5 or not all(p.strip().isdecimal() for p in parts):
        raise InvalidValue(f"{text!r} is not a tile; write bm,bk,bn,rm,rn, and ',db' behind it for double buffering: "
                           "128,8,128,8,8,db")
    bm, bk, bn, rm, rn = (int(p) for p in parts)
    buffers = 2 if double else 1
    return RungConfig(bm, bn, bk, rm, rn, stages=buffers, fragments=buffers)


def scale(text: str | float) -> float:
    """``--alpha`` and ``--beta``: infinity only where it is meant."""
    try:
        value = float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None
    if isinf(c_float(value).value) and "inf" not in str(text).lower():
        raise typer.BadParameter(f"{text} is beyond the largest float32 (3.4e38); write inf if infinity is meant")
    return value


def triple(name: str, text: str) -> list[int]:
    """``X``, ``XxY`` or ``XxYxZ`` of the option ``name``."""
    if not re.fullmatch(r"\d{1,10}(x\d{1,10}){0,2}", text):
        raise InvalidValue(f"{name} {text!r} is not X, XxY or XxYxZ")
    return [int(x) for x in text.split("x")]


def macros(words: list[str]) -> dict[str, int]:
    """``NAME=INTEGER``, each once."""
    defined = {}
    for text in words:
        match = re.fullmatch(r"(\w+)=(-?\d+)", text)
        if match is None:
            raise InvalidValue(f"--macro {text!r} is not NAME=INTEGER")
        defined[match[1]] = int(match[2])
    return defined


def target(arch: str | None, gpu: Gpu | None) -> str:
    """The architecture asked for, else the GPU's, else Hopper's."""
    chosen = arch or (gpu.arch if gpu else "sm_90")
    architecture(chosen)
    return chosen

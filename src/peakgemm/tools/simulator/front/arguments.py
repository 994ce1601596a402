"""Kernel arguments from the words of a command line."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InvalidValue

DTYPES = {"f16": "f2", "f32": "f4", "f64": "f8", "s8": "i1", "u8": "u1", "s16": "i2", "u16": "u2", "s32": "i4",
          "u32": "u4", "s64": "i8", "u64": "u8"}
FILLS = ("zeros", "ones", "nan", "arange", "uniform", "normal")
DRAWN = ("arange", "uniform", "normal")  # made as 8-byte numbers first
FORMS = "an integer (42), a float (1.5), an array as dtype:shape:fill (f32:64x64:normal), or a .npy file"


def argument(text: str, number: int, max_memory: int = 4 << 30) -> int | float | NDArray[Any]:
    """One argument.

    Args:
        text: ``42``, ``-1.5e3``, ``f32:64x64:normal`` (dtype of `DTYPES`, shape, fill of `FILLS` or a
            number) or the name of a ``.npy`` file.
        number: its place, which seeds random fills, so that a run can be repeated.
        max_memory: bytes that it may take; more is refused before it is made.

    Raises:
        InvalidValue: none of these; the message gives the forms. Or it is too large.
    """
    if text.endswith(".npy"):
        try:
            _check(text, Path(text).stat().st_size, max_memory)
            return np.asarray(np.load(Path(text), allow_pickle=False))
        except InvalidValue:
            raise
        except (EOFError, OSError, ValueError) as error:
            raise InvalidValue(f"--arg {text}: cannot be read as a .npy file ({error})") from None
    if re.fullmatch(r"[+-]?\d{1,30}", text):
        return int(text)
    parts = text.split(":")
    if len(parts) in (2, 3) and parts[0] in DTYPES and re.fullmatch(r"\d{1,20}(x\d{1,20}){0,30}", parts[1]):
        shape = tuple(int(x) for x in parts[1].split("x"))
        dtype, fill = np.dtype(DTYPES[parts[0]]), parts[2] if len(parts) == 3 else "zeros"
        _check(text, prod(shape) * (dtype.itemsize + 8 * (fill in DRAWN)), max_memory)
        return _filled(dtype, shape, fill, number)
    try:
        return float(text)
    except ValueError:
        raise InvalidValue(f"--arg {text!r} is not {FORMS}; dtypes: {', '.join(DTYPES)}; "
                           f"fills: {', '.join(FILLS)} or a number") from None


def _check(text: str, size: int, limit: int) -> None:
    if size > limit:
        raise InvalidValue(f"--arg {text} takes {size:,} bytes, max_memory allows {limit:,}; pass smaller arrays, or "
                           "raise max_memory")


def _filled(dtype: np.dtype[Any], shape: tuple[int, ...], fill: str, seed: int) -> NDArray[Any]:
    draw = np.random.RandomState(seed)  # its streams are frozen: the same numbers from every NumPy
    if fill in ("zeros", "ones"):
        return np.full(shape, int(fill == "ones"), dtype)
    if fill == "arange":
        return np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    if fill in ("normal", "uniform", "nan") and dtype.kind != "f":
        raise InvalidValue(f"fill {fill!r} is for floats, the array is {dtype}; use arange, zeros, ones or a number")
    if fill in ("normal", "uniform"):
        return np.asarray(draw.standard_normal(shape) if fill == "normal" else draw.random_sample(shape)).astype(dtype)
    try:
        with np.errstate(over="ignore"):  # to infinity
            return np.full(shape, float(fill) if dtype.kind == "f" else int(fill), dtype)
    except (ValueError, OverflowError):
        raise InvalidValue(f"fill {fill!r} is neither {', '.join(FILLS)} nor a {dtype}") from None

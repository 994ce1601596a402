"""Kernel arguments from the words of a command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValue

DTYPES = {"f16": "f2", "f32": "f4", "f64": "f8", "s8": "i1", "u8": "u1", "s16": "i2", "u16": "u2", "s32": "i4",
          "u32": "u4", "s64": "i8", "u64": "u8"}
FILLS = ("zeros", "ones", "nan", "arange", "uniform", "normal")
FORMS = "an integer (42), a float (1.5), an array as dtype:shape:fill (f32:64x64:normal), or a .npy file"


def argument(text: str, number: int) -> int | float | NDArray[Any]:
    """One argument.

    Args:
        text: ``42``, ``-1.5e3``, ``f32:64x64:normal`` (dtype of `DTYPES`, shape, fill of `FILLS` or a
            number) or the name of a ``.npy`` file.
        number: its place, which seeds random fills, so that a run can be repeated.

    Raises:
        InvalidValue: none of these; the message gives the forms.
    """
    if text.endswith(".npy"):
        try:
            return np.asarray(np.load(Path(text), allow_pickle=False))
        except (OSError, ValueError) as error:
            raise InvalidValue(f"--arg {text}: cannot be read as a .npy file ({error})") from None
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    parts = text.split(":")
    if len(parts) in (2, 3) and parts[0] in DTYPES and re.fullmatch(r"\d+(x\d+)*", parts[1]):
        shape = tuple(int(x) for x in parts[1].split("x"))
        return _filled(np.dtype(DTYPES[parts[0]]), shape, parts[2] if len(parts) == 3 else "zeros", number)
    try:
        return float(text)
    except ValueError:
        raise InvalidValue(f"--arg {text!r} is not {FORMS}; dtypes: {', '.join(DTYPES)}; "
                           f"fills: {', '.join(FILLS)} or a number") from None


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
        return np.full(shape, float(fill) if dtype.kind == "f" else int(fill), dtype)
    except (ValueError, OverflowError):
        raise InvalidValue(f"fill {fill!r} is neither {', '.join(FILLS)} nor a {dtype}") from None

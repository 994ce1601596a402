"""Initialisers of variables that hold addresses."""

from __future__ import annotations

from collections.abc import Mapping

from .ptx import Variable


def referring(variable: Variable, symbols: Mapping[str, int]) -> bytes:
    """The bytes that a variable begins with, where ``symbols`` has the addresses of variables and functions.

    An address of what is not there, a function that this kernel cannot call, is left zero.
    """
    data = bytearray(variable.data)
    for one in variable.references:
        value = symbols.get(one.name)
        if value is not None:
            value = (value + one.addend) >> one.shift
            data[one.place:one.place + one.size] = (value & (1 << 8 * one.size) - 1).to_bytes(one.size, "little")
    return bytes(data)

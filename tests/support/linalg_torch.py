"""Programs of torch tensors by the way of a GPU's: CPU tensors stand for those of GPU 0."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import stand_in
from linalg_case import interpret
from peakgemm.arrays.torch import Torch
from peakgemm.linalg import call
from peakgemm.linalg.program import Program

_admit, _view = Torch.admit, Torch.view
_sizes: dict[int, int] = {}  # of the storages that calls have looked at, by address


class Bound:
    """A bound program, interpreted in the tensors' memory."""

    def __init__(self, program: Program, gpu: Any) -> None:
        self.program, self.workspace_bytes = program, program.bytes

    def run(self, workspace: int, buffers: list[int], stream: int) -> None:
        interpret(self.program, [_flat(address & -16) for address in buffers])


def _flat(address: int) -> Any:
    """The memory from an address to the end of its storage; of an array without elements none."""
    if address == 0:
        return np.empty(0, np.float32)
    end = next(start + size for start, size in _sizes.items() if start <= address < start + size)
    return np.ctypeslib.as_array((ctypes.c_float * ((end - address) // 4)).from_address(address))


def _seen(self: Torch, x: Any, name: str, stream: int = -1) -> Any:
    storage = x.untyped_storage()
    start, size = storage.data_ptr(), storage.nbytes()
    for other in [other for other in _sizes if other < start + size and start < other + _sizes[other]]:
        del _sizes[other]  # freed since: what is written behind it would be someone else's
    _sizes[start] = size
    return _view(self, x, name, stream)


def stand_for_gpu(patch: pytest.MonkeyPatch) -> None:
    """From now on."""
    patch.setattr(Torch, "admit", lambda self, x, name, dtype="float32": (_admit(self, x, name, dtype), 0)[1])
    patch.setattr(Torch, "view", _seen)
    patch.setattr(Torch, "scope", lambda self, index, stream: nullcontext(stand_in.STREAM))
    patch.setattr(call.device, "require", lambda index: stand_in.GPU)
    patch.setattr(call.memory, "clear", lambda pointer, size, stream: ctypes.memset(pointer, 0, size))
    patch.setattr(call, "BoundProgram", Bound)
    patch.setattr(call, "calls", kept := {})
    patch.setattr(call, "remember", lambda key, bound: kept.setdefault(key, bound))
    _sizes.clear()

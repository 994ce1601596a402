"""Device memory that stands for arrays in the host's."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.interop import LEGACY, Fresh, Interop
from ..runtime import memory


class _Staged(Interop):
    """Packed copies of arrays of the host."""

    def _adopt(self, fresh: Fresh, like: Any) -> Any:
        return fresh


STAGED = _Staged("host")


def sent(x: np.ndarray[Any, Any]) -> Fresh:
    """A copy on the current device."""
    values = np.ascontiguousarray(x)
    fresh = Fresh(values.shape, LEGACY)
    memory.copy_in(fresh.view.pointer, values.ctypes.data, values.nbytes, LEGACY, pageable=True)
    return fresh


def received(fresh: Fresh) -> np.ndarray[Any, Any]:
    """A copy on the host, which is waited for."""
    values: np.ndarray[Any, Any] = np.empty(fresh.view.shape, fresh.dtype)
    memory.copy_out(values.ctypes.data, fresh.view.pointer, values.nbytes, LEGACY, pageable=True)
    memory.synchronize(LEGACY, "linear algebra")
    return values

"""Arrays in the host's memory: copied to the current GPU and back, or left to NumPy where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.base import HostLibrary
from ..arrays.interop import LEGACY, Fresh, Interop
from ..runtime import device, memory
from .call import Operation, enqueue


class _Staged(Interop):
    """Packed device memory that stands for arrays of the host."""

    def _adopt(self, fresh: Fresh, like: Any) -> Any:
        return fresh


_STAGED = _Staged("host")


def run_on_host(library: HostLibrary, operation: Operation) -> Any:
    """`call.run` for arrays in the host's memory, done when it returns."""
    o, gpu = operation, device.find()
    arrays = {name: library.host(x, name) for name, x in o.operands.items()}
    like = next(iter(o.operands.values()))
    target = None if o.out is None else library.host(o.out, "out")
    if gpu is None:
        assert o.on_cpu is not None
        done = o.on_cpu(**arrays, out=target)
        results = list(done) if o.info else [done]
    else:
        with device.activated(gpu.index):
            staged = o._replace(operands={name: _sent(x) for name, x in arrays.items()},
                                out=None if target is None else _sent(target))
            done = enqueue(_STAGED, gpu.index, staged, LEGACY)
            results = [_received(x) for x in (done if o.info else (done,))]
    if target is not None:
        target[...] = results[0]
    result = library.wrap(np.ascontiguousarray(results[0], np.float32), like) if o.out is None else o.out
    return (result, library.wrap(results[1], like)) if o.info else result


def _sent(x: np.ndarray[Any, Any]) -> Fresh:
    values = np.ascontiguousarray(x)
    fresh = Fresh(values.shape, LEGACY)
    memory.copy_in(fresh.view.pointer, values.ctypes.data, values.nbytes, LEGACY, pageable=True)
    return fresh


def _received(fresh: Fresh) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = np.empty(fresh.view.shape, fresh.dtype)
    memory.copy_out(values.ctypes.data, fresh.view.pointer, values.nbytes, LEGACY, pageable=True)
    memory.synchronize(LEGACY, "linear algebra")
    return values

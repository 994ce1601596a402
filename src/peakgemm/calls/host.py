"""Products of arrays in the host's memory: by NumPy, or staged through the GPU where there is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.base import HostLibrary, View, packed
from ..arrays.numpy import host_view
from ..errors import InvalidValue
from ..problem import Batch, Problem
from ..runtime import device
from ..runtime.device import Gpu
from .canonical import canonicalise, result_shape
from .request import REPRODUCIBLE, Request, refuse_overlap

Array = NDArray[np.float32]


def multiply(library: HostLibrary, request: Request, resident: View | None = None) -> Any:
    """``request`` for arrays in the host's memory; the result is ready on return.

    ``resident``: where ``b`` lies on the current GPU already.

    Raises:
        InvalidType, InvalidValue: see `canonicalise` and `HostLibrary`.
    """
    gpu = device.here()
    _refuse_scheme(request, gpu)
    work = prepare(library, request)
    if gpu is None or not work.out.size:
        by_numpy(work)
    else:
        from . import panels

        if resident is not None and request.trans_b:
            resident = resident.mT
        if resident is not None and len(resident.shape) == 1:
            resident = View(resident.pointer, (*resident.shape, 1), (*(resident.strides or ()), 0))
        panels.run(work, gpu, resident)
    if request.out is not None:
        return request.out
    return library.wrap(work.out.reshape(result_shape(*_shapes(request))[1]), request.a)


def on_cpu(library: HostLibrary, request: Request) -> Any:
    """`multiply` on the CPU, whether or not there is a GPU.

    Raises:
        InvalidType, InvalidValue: as `multiply`.
    """
    work = prepare(library, request)
    if work.out.size:
        by_numpy(work)
    return library.wrap(work.out.reshape(result_shape(*_shapes(request))[1]), request.a)


def prepare(library: HostLibrary, request: Request) -> Request:
    """``request`` checked, as NumPy matrices: transposes, 1-D operands and the broadcast of ``c`` made views."""
    arrays = {name: library.host(x, name) for name, x in request.arrays().items()}
    views = {name: host_view(x) for name, x in arrays.items()}
    refuse_overlap(views, request.beta)
    canonical = canonicalise(views["a"], views["b"], views.get("c"), views.get("out"), alpha=request.alpha,
                             beta=request.beta, trans_a=request.trans_a, trans_b=request.trans_b)
    # what no kernel takes as it lies is NumPy's affair
    out = arrays["out"] if "out" in arrays else np.empty(canonical.shape, np.float32)
    return _with_matrices(request._replace(
        a=_turned(arrays["a"], request.trans_a), b=_turned(arrays["b"], request.trans_b), out=out,
        c=arrays.get("c") if request.beta != 0 else None, trans_a=False, trans_b=False))


def survey(library: HostLibrary, request: Request, gpu: bool) -> tuple[dict[str, View], Problem]:
    """Where the arrays lie, and the problem that they make; ``gpu``: as they are laid out there."""
    if not gpu:
        _refuse_scheme(request, None)
    views = {name: host_view(library.host(x, name)) for name, x in request.arrays().items()}
    work = prepare(library, request)
    if gpu:
        from . import panels

        return views, panels.problem(work)
    *batch, m, n = work.out.shape
    problem = Problem.contiguous(m, n, work.a.shape[-1], request.alpha, request.beta)
    steps = packed(tuple(batch))
    return views, replace(problem, batch=Batch.merged(tuple(batch), steps, steps, steps, steps))


def _refuse_scheme(request: Request, gpu: Gpu | None) -> None:
    """NumPy has no tensor cores: it runs ``"emulated"`` in float32, but no scheme that is asked for by name.

    Raises:
        InvalidValue: a scheme, and no GPU.
    """
    if gpu is None and request.precision not in ("ieee", "emulated", REPRODUCIBLE):
        raise InvalidValue(f"precision = {request.precision!r} needs a GPU, and there is none here; use 'emulated' or "
                           "'ieee', which NumPy runs in float32, or see: peakgemm doctor")


def _shapes(request: Request) -> tuple[tuple[int, ...], tuple[int, ...]]:
    a, b = tuple(request.a.shape), tuple(request.b.shape)
    return ((*a[:-2], a[-1], a[-2]) if request.trans_a else a, (*b[:-2], b[-1], b[-2]) if request.trans_b else b)


def _turned(x: Array, trans: bool) -> Array:
    return np.swapaxes(x, -1, -2) if trans else x


def _with_matrices(r: Request) -> Request:
    """The same product with 1-D operands as matrices, by views."""
    a, b, c, out = r.a, r.b, r.c, r.out
    if c is not None:
        c = np.broadcast_to(c, out.shape)
    if r.b.ndim == 1:
        b, out = b[:, None], out[..., None]
        c = c if c is None else c[..., None]
    if r.a.ndim == 1:
        a, out = a[None, :], np.expand_dims(out, -2)
        c = c if c is None else np.expand_dims(c, -2)
    return r._replace(a=a, b=b, c=c, out=out)


def by_numpy(r: Request) -> None:
    """``r``, of NumPy matrices, by NumPy's BLAS; chains of fused multiply-adds where the bits are promised.

    Overflow and NaN are results, as on the GPU, not warnings.
    """
    a, b = _turned(r.a, r.trans_a), _turned(r.b, r.trans_b)
    c = None if r.c is None else np.broadcast_to(r.c, r.out.shape)
    if r.precision == REPRODUCIBLE:
        from .replay import multiply as chains

        chains(a, b, c, r.alpha, r.beta, r.out)
        return
    with np.errstate(all="ignore"):
        if r.beta == 0 and r.alpha == 1 and r.out.flags.c_contiguous:
            np.matmul(a, b, out=r.out)
            return
        if r.alpha == 0:
            result = np.zeros(r.out.shape, np.float32)
        else:
            result = np.matmul(a, b)
            result *= np.float32(r.alpha)
        if r.beta != 0:
            result += np.float32(r.beta) * c
        np.copyto(r.out, result)

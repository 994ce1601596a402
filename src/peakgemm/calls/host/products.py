"""Products of arrays in the host's memory: by NumPy, or staged through the GPU where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.base import HostLibrary, View, refuse_overlap
from ...arrays.numpy import host_view
from ...errors import InvalidValue
from ...problem import Problem
from ...runtime.device import Gpu, activated
from ..launch import canonical_request, packed_problem
from ..request import REPRODUCIBLE, Request
from . import multi_gpu
from .cpu import by_numpy, transposed_if
from .panel import layouts

Array = NDArray[np.float32]


# Moved: from here on tiles, by several threads, for all but two packed matrices. A first choice, not timed by itself.
TILED_BYTES = 8 << 20


def multiply(library: HostLibrary, request: Request, resident: View | None = None, devices: Any = None) -> Any:
    """``request`` for arrays in the host's memory; the result is ready on return.

    ``resident``: where ``b`` lies on the current GPU already. ``devices``: see `multi_gpu.chosen`.

    Raises:
        InvalidType, InvalidValue: see `canonicalise` and `HostLibrary`.
    """
    gpus = multi_gpu.chosen(devices)
    refuse_scheme(request, gpus)
    if gpus and devices is None and resident is None:
        from . import small_host

        small = small_host.multiply(library, request, gpus[0])
        if small is not None:
            return small
    work, out = prepare(library, request)
    if not gpus or not out.size or work.alpha == 0 or not work.a.shape[-1]:
        by_numpy(work)
    else:
        if resident is not None and gpus != multi_gpu.chosen(None):
            resident = None  # it lies on the current GPU alone
        _on_gpus(work, gpus, resident.mT if resident is not None and request.trans_b else resident)
    return library.wrap(out, request.a) if request.out is None else request.out


def on_cpu(library: HostLibrary, request: Request) -> Any:
    """`multiply` on the CPU, whether or not there is a GPU.

    Raises:
        InvalidType, InvalidValue: as `multiply`.
    """
    work, out = prepare(library, request)
    by_numpy(work)
    return library.wrap(out, request.a)


def _on_gpus(work: Request, gpus: list[Gpu], resident: View | None) -> None:
    """In one launch, where little is moved to one device and has room there; else in tiles. Operands whose batch would
    not merge on the device are copied first."""
    from . import small_host

    copies: dict[str, tuple[int, ...]] = {}
    if work.out.ndim > 2:
        copies = packed_problem(work, layouts(work, resident and resident._replace(pointer=0))[1])[1]
    if resident is not None and "b" in copies:
        raise InvalidValue(f"b {work.b.shape} is prepared in a layout that this batch cannot use; pass b itself")
    packed: dict[str, Any] = {name: np.array(np.broadcast_to(getattr(work, name), shape), order="C")
                              for name, shape in copies.items() if name != "out"}
    work = work._replace(**packed)
    if len(gpus) == 1 and sum(x.nbytes for x in (work.a, work.b, work.c, work.out) if x is not None) < TILED_BYTES:
        with activated(gpus[0].index):
            if small_host.run(work, gpus[0], resident):
                return
    multi_gpu.run(work, gpus, resident=resident)


def prepare(library: HostLibrary, request: Request) -> tuple[Request, Array]:
    """``request`` checked, as NumPy matrices: transposes, 1-D operands and the broadcast of ``c`` made views; and the
    result as the caller has it, whose memory is that of its ``out``."""
    arrays = {name: library.host(x, name) for name, x in request.arrays().items()}
    views = {name: host_view(x) for name, x in arrays.items()}
    refuse_overlap(views, request.beta, arrays)
    shape = canonical_request(request, views).shape  # what no kernel takes as it lies is NumPy's affair
    out = arrays["out"] if "out" in arrays else np.empty(shape, np.float32)
    a, b = (transposed_if(arrays[name], flag) for name, flag in (("a", request.trans_a), ("b", request.trans_b)))
    dropped = (-2,) * (a.ndim == 1) + (-1,) * (b.ndim == 1)
    c = None if request.beta == 0 else np.expand_dims(np.broadcast_to(arrays["c"], shape), dropped)
    return request._replace(a=a[None, :] if a.ndim == 1 else a, b=b[:, None] if b.ndim == 1 else b, c=c,
                            out=np.expand_dims(out, dropped), trans_a=False, trans_b=False), out


def survey(library: HostLibrary, request: Request, gpu: Gpu | None) -> tuple[dict[str, View], Problem]:
    """Where the arrays lie, and the problem that they make as they are laid out on a device."""
    refuse_scheme(request, [] if gpu is None else [gpu])
    views = {name: host_view(library.host(x, name)) for name, x in request.arrays().items()}
    work, _ = prepare(library, request)
    return views, packed_problem(work, layouts(work)[1])[0]


def refuse_scheme(request: Request, gpus: list[Gpu]) -> None:
    """NumPy has no tensor cores: it runs ``"emulated"`` in float32, but no scheme that is asked for by name.

    Raises:
        InvalidValue: a scheme, and no GPU.
    """
    if not gpus and request.precision not in ("ieee", "emulated", REPRODUCIBLE):
        raise InvalidValue(f"precision = {request.precision!r} needs a GPU, and there is none here; use 'emulated' or "
                           "'ieee', which NumPy runs in float32, or see: peakgemm doctor")

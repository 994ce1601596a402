"""The door of `certify`: arrays of any library, whose checksums are enqueued."""

from __future__ import annotations

import secrets
from math import inf
from typing import Any

import numpy as np

from ..arrays import locate
from ..arrays.base import HOST
from ..calls.prepared import Prepared
from ..calls.request import check_precision, scales
from ..errors import InvalidValue
from ..kernels.linalg import checksums
from ..linalg.call import Operation, run
from ..linalg.program import Matrix, Program
from .constants import Model
from .verdict import Certificate


def certify(a: Any, b: Any, c: Any, *, alpha: Any = 1.0, beta: Any = None, c0: Any = None, precision: str = "ieee",
            stream: Any = None, seed: int | None = None) -> Certificate:
    """What ``c``, a product of any library or device, may be off, and whether it is: docs/certificate.md.

    ``c`` is checked against ``alpha a b + beta c0`` with random vectors in FP64, by reading each array once, and once
    more where something is wrong. On the GPU that is enqueued, not waited for: the arrays may change behind it.

    Args:
        a, b: float32, as for `matmul`; ``b`` may be what `prepare` made of it.
        c: the result, of the shape that `matmul` gives it.
        alpha, beta, c0: of what was computed, as `gemm` has them; ``c0`` as it was before.
        precision: how ``c`` was computed, whose bounds hold: ``"ieee"``: FP32 multiply-adds, or products and sums, in
            any order; or as for `matmul`.
        stream: as for `matmul`.
        seed: of the random vectors, from 1 to 2^64 - 1; None: drawn, at each run.

    Raises:
        InvalidType: no float32 arrays, complex ones too, or of different libraries.
        InvalidValue: shapes that do not match, different devices, or an ``alpha`` or ``beta`` that is not finite.
        OutOfMemory: no room for the sums, some hundredths of the arrays' size.
    """
    precision = check_precision(precision)
    alpha, beta = scales(alpha, beta, c0)
    if not (abs(alpha) < inf and abs(beta) < inf):
        raise InvalidValue(f"alpha = {alpha}, beta = {beta}: such a product is not finite anywhere, and certify has "
                           "nothing to check; pass finite ones")
    if seed is not None and not (isinstance(seed, int) and 0 < seed < 1 << 64):
        raise InvalidValue(f"seed = {seed}; pass an integer from 1 to 2**64 - 1, or None for one that is drawn")
    c = np.asarray(c) if isinstance(c, np.generic) else c  # NumPy's product of two vectors
    arrays = {"a": a, "b": b.array if isinstance(b, Prepared) else b, "c": c} | ({"c0": c0} if beta else {})
    library, index = locate(arrays)
    arrays = {name: x.detach() if library.name == "torch" else x for name, x in arrays.items()}
    a, b, full = arrays["a"], arrays["b"], tuple(c.shape)
    row, column = len(a.shape) == 1, len(b.shape) == 1
    arrays["a"], arrays["b"] = a[None, :] if row else a, b[:, None] if column else b
    shape, k = _checked(full, row, column, **{name: tuple(x.shape) for name, x in arrays.items() if name != "c"})
    m, n = shape[-2:]
    if "c0" in arrays and (row or column or tuple(arrays["c0"].shape[-2:]) != (m, n)):  # kernels read matrices
        c0 = arrays["c0"]
        arrays["c0"] = (library.copy(c0, full) if index != HOST else
                        library.wrap(np.array(np.broadcast_to(library.host(c0, "c0"), full)), c0))
    dropped = (..., None, slice(None)) if row and not column else (..., *[None] * (row + column))
    arrays |= {name: arrays[name][dropped] for name in list(arrays)[2:] if row or column}
    m, n = shape[-2:]
    swapped = n > m  # the product's shorter lines are checked: as rows of it, or of its transpose
    model = Model((*shape[:-2], n, m) if swapped else shape, k, alpha, beta, precision)
    if 0 in shape:
        return Certificate(model, swapped=swapped)
    names = {"a": "b", "b": "a"} if swapped else {"a": "a", "b": "b"}
    names |= {"c": "c", "c0": "c0"}
    steps = checksums.passes(multiplies=alpha != 0 and k > 0, adds="c0" in arrays)
    m, n = model.shape[-2:]
    shapes, judging = {"a": (m, k), "b": (k, n), "c": (m, n), "c0": (m, n)}, model.judging(n)
    layout = checksums.Layout(steps, shapes)
    used = {step.matrix for step in steps}

    def record(program: Program, matrices: dict[str, Matrix]) -> None:
        read = {name: matrices[x].mT if swapped else matrices[x] for name, x in names.items() if x in matrices}
        out, count = matrices["out"], matrices["out"].shape[0]
        floats = (checksums.workspace_floats(program.arch, *shapes[name], count) for name in used)
        workspace = program.allocate(max(floats))
        program.kernel(checksums.start(program.arch, count, layout, seed or 0), c=out)
        for step in steps:
            matrix = read[step.matrix]
            for launch in checksums.checksums(program.arch, step, layout, *shapes[step.matrix], matrix.layout, count,
                                              judging):
                program.kernel(launch, a=matrix, c=out, workspace=workspace)

    def on_cpu(out: Any, **given: Any) -> Any:
        drawn = seed or secrets.randbits(64) | 1
        read = {name: np.broadcast_to(given[x], (*shape[:-2], *given[x].shape[-2:]))
                for name, x in names.items() if x in given}
        kept = np.empty((*shape[:-2], 1, layout.size))
        for place in np.ndindex(shape[:-2]):
            matrices = {name: x[place].T if swapped else x[place] for name, x in read.items()}
            kept[place][0] = checksums.by_numpy(steps, layout, matrices, drawn, judging)
        return kept.view(np.float32)

    operands = {x: arrays[x] for name, x in names.items() if name in used}
    kept = run(Operation("certify", operands, (*shape[:-2], 1, 2 * layout.size), record, on_cpu,
                         (alpha, beta, precision, seed), stream=stream, reproducible=False))
    return Certificate(model, kept, layout, swapped)


def _checked(c: tuple[int, ...], row: bool, column: bool, a: tuple[int, ...], b: tuple[int, ...],
             c0: tuple[int, ...] = ()) -> tuple[tuple[int, ...], int]:
    """The product's shape, of matrices, and inner dimension; where A was a ``row`` or B a ``column`` C lacks that.

    Raises:
        InvalidValue: shapes that do not match.
    """
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
        fits = min(len(a), len(b)) > 1 and a[-1] == b[-2] and np.broadcast_shapes(c0, c) == c
        fits = fits and c == (*batch, *a[-2:-1] * (not row), *b[-1:] * (not column))
    except ValueError:
        fits = False
    if not fits:
        raise InvalidValue(f"certify: a {a}, b {b}, c {c}{f', c0 {c0}' * bool(c0)} are not the operands and the result "
                           "of a product; pass a (..., M, K), b (..., K, N), c (..., M, N), and c0 that fits c")
    return (*batch, a[-2], b[-1]), a[-1]

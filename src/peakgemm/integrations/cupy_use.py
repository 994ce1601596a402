"""`peakgemm.cupy.use`: CuPy's products and linear algebra rerouted, with its own functions as the fallback.

Names in ``cupy`` and ``cupy.linalg`` are replaced, and methods of ``cupy.ndarray``, which is a class of Python's on top
of the compiled one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial, update_wrapper
from math import isqrt, prod
from threading import local
from typing import Any

import cupy

from .. import linalg
from ..arrays.base import dtype_name
from ..errors import PeakgemmError
from . import use
from .linalg_sizes import FASTER
from .use import Block

_METHODS = {"__matmul__": "matmul", "dot": "dot"}
_FURTHER = {"einsum": {"optimize"}, "tensordot": {"axes", "out"}}  # arguments that are taken; of others ``out``
# By CuPy's names: the kind of `FASTER`, and what computes it without waiting for the device to find a singular matrix.
_LINALG: dict[str, tuple[str, Callable[..., Any]]] = {
    "cholesky": ("factor", lambda a, **options: linalg.cholesky_ex(a, **options)[0]),
    "solve": ("lu", lambda a, b, **options: linalg.solve_ex(a, b, **options)[0]),
    "inv": ("lu", lambda a, **options: linalg.inv_ex(a, **options)[0]),
    "det": ("lu", linalg.det), "slogdet": ("lu", lambda a, **options: tuple(linalg.slogdet(a, **options))),
    "qr": ("orthogonal", lambda a, **options: linalg.qr_ex(a, **options)[:2])}


class Rerouted(use.Rerouted):
    """CuPy's functions; see `use.Rerouted`. ``products``: peakgemm's by CuPy's names."""

    library = "cupy"

    def __init__(self, products: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self._undo: list[Callable[[], None]] = []
        self._theirs = local()  # whether one of CuPy's functions runs, in a thread: what it calls is its own
        self._left: list[str] = []
        for name, ours in products.items():
            original = getattr(cupy, name)
            function = _like(original, partial(self._product, name, ours, original))
            for owner in (cupy, cupy.linalg):
                if vars(owner).get(name) is original:
                    self._replace(owner, name, function)
        for method, name in _METHODS.items():
            original = getattr(cupy.ndarray, method)
            self._replace(cupy.ndarray, method, _like(original, partial(self._product, name, products[name], original)))
        for name in _LINALG:
            original = getattr(cupy.linalg, name)
            self._replace(cupy.linalg, name, _like(original, partial(self._algebra, name, original)))

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        had = vars(owner).get(name)
        try:
            setattr(owner, name, value)
        except TypeError:  # a CuPy whose ndarray is the compiled class: its methods stay
            self._left.append(name)
            return
        self._undo.append(partial(delattr, owner, name) if had is None else partial(setattr, owner, name, had))

    def enter(self, block: Block) -> None:
        """Let ``block`` hold."""
        super().enter(block)
        if self._left and self.recorder is not None:
            self.recorder.note(f"ndarray's {' and '.join(self._left)} stayed with cupy {cupy.__version__}, which is "
                               "too old to reroute them")

    def restore(self) -> None:
        """Give CuPy its own functions back."""
        while self._undo:
            self._undo.pop()()

    def _original(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """By CuPy, with what it calls in turn."""
        self._theirs.run = True
        try:
            return original(*args, **kwargs)
        finally:
            self._theirs.run = False

    def _product(self, op: str, ours: Callable[..., Any], original: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self._theirs, "run", False):
            return original(*args, **kwargs)
        (precision, _, chosen, *_), recorder = self.blocks[-1], self.recorder
        arrays, result, theirs = [x for x in args if hasattr(x, "dtype")], None, None
        why = _obstacle(op, args, kwargs)
        shapes = ("x".join(map(str, x.shape)) for x in arrays)
        shape = " ".join([*(x for x in args[:1] if isinstance(x, str)), *shapes])
        if not why and chosen is not None:
            why = self.broken or ("TF32 allowed" if _allows_tf32() else "")
        if not why:
            if recorder is not None and recorder.due():
                options = {name: x for name, x in kwargs.items() if name != "out"}
                theirs = recorder.guarded(lambda: (self._original(original, *args, **options), self._original(
                    original, *(abs(x) if isinstance(x, cupy.ndarray) else x for x in args), **options)))
            try:
                options = {"optimize": kwargs.get("optimize") or "auto"} if op == "einsum" else kwargs
                result = self.clocked(op, shape, "", None, lambda: ours(*args, precision=precision, **options))
            except (PeakgemmError, ImportError) as error:  # before anything ran: CuPy's own behaviour holds
                why = self.refused(error)
        if why:
            result = self.clocked(op, shape, why, None, lambda: self._original(original, *args, **kwargs))
        inner, flops = (0, 0.0) if recorder is None else _operations(op, args, arrays, result)
        if theirs is not None and recorder is not None and not why:
            recorder.guarded(partial(recorder.compare, cupy, result, theirs, inner))
        self.count(op, shape, flops, why)
        return result

    def span(self, like: Any) -> Any:
        """Between events on the current stream."""
        stream = cupy.cuda.get_current_stream()
        if cupy.cuda.runtime.streamIsCapturing(stream.ptr):
            return None
        begin = stream.record()

        def end() -> tuple[Callable[[], bool], Callable[[], float]]:
            last = stream.record()
            return lambda: last.done, partial(cupy.cuda.get_elapsed_time, begin, last)

        return end

    def _algebra(self, op: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        precision, is_asked = self.blocks[-1][:2]
        if not is_asked or getattr(self._theirs, "run", False):
            return original(*args, **kwargs)
        why, result, (kind, ours) = "sizes at which CuPy is faster, or other arguments", None, _LINALG[op]
        if not kwargs and all(type(x) is cupy.ndarray and x.dtype == "float32" and x.ndim > 1 and x.size and
                              x.shape[:-1] == args[0].shape[:-1] for x in args) and _ignores_failures():
            rows, columns = (max if kind == "orthogonal" else min)(args[0].shape[-2:]), min(args[0].shape[-2:])
            if FASTER[kind].hold(prod(args[0].shape[:-2]), rows, columns):
                try:
                    result, why = ours(*args, precision=precision), ""
                except (PeakgemmError, ImportError) as error:
                    why = self.refused(error)
        self.count(op, "x".join(map(str, getattr(args[0], "shape", ()))), 0.0, why)
        return self._original(original, *args, **kwargs) if why else result


def _like(original: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """A function, or method, in the place of CuPy's own, whose attributes it has."""
    def function(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return update_wrapper(function, original)


def _obstacle(op: str, args: Any, kwargs: Any) -> str:
    """Why a product is not ours."""
    operands, out = args[1:] if op == "einsum" and isinstance(args[0], str) else args[:2], kwargs.get("out")
    written = [] if out is None else [out]
    dtypes = {dtype_name(getattr(x, "dtype", "")) for x in (*operands, *written)}
    if not {*kwargs} <= _FURTHER.get(op, {"out"}) or (op != "einsum" and len(args) > 2 + (op == "tensordot")):
        return "further arguments"
    if not all(type(x) is cupy.ndarray for x in (*operands, *written)):
        return "other kinds of array"
    if dtypes not in ({"float32"}, {"complex64"}):
        return " and ".join(sorted(dtypes))
    if len(operands) < 2:
        return "one operand"
    return "vectors" if op != "einsum" and min(x.ndim for x in operands) < 2 else ""


def _operations(op: str, args: Any, arrays: Any, result: Any) -> tuple[int, float]:
    """K, and the floating-point operations of a product where they are FP32."""
    kinds = {dtype_name(x.dtype) for x in arrays}
    if len(arrays) < 2 or kinds not in ({"float32"}, {"complex64"}):
        return 0, 0.0
    each = 8.0 if kinds == {"complex64"} else 2.0
    if op == "einsum" and isinstance(args[0], str):
        inner, cost = _cost_of(args[0], *(x.shape for x in arrays))
        return inner, each / 2 * cost
    a, b = arrays[:2]
    inner = a.shape[-1] if op == "matmul" else isqrt(a.size * b.size // max(result.size, 1))
    return inner, each * result.size * inner


@lru_cache(1024)
def _cost_of(subscripts: str, *shapes: tuple[int, ...]) -> tuple[int, float]:
    """Terms of the sums of a contraction, and its operations on real numbers."""
    from opt_einsum import contract_path

    _, path = contract_path(subscripts, *shapes, shapes=True)
    return (prod(size for label, size in path.size_dict.items() if label not in path.output_subscript),
            float(path.opt_cost))


def _allows_tf32() -> bool:
    from cupy._core import _routines_linalg as routines

    return bool(routines.get_compute_type(cupy.dtype("float32")) == routines.COMPUTE_TYPE_TF32)


def _ignores_failures() -> bool:
    """Whether a singular matrix gives what it gives, as by CuPy's default: to look at it would wait."""
    import cupyx  # type: ignore[import-not-found]

    return bool(cupyx.geterr()["linalg"] in ("ignore", None))


def make_use(products: Mapping[str, Callable[..., Any]], precision: str, linalg: bool = False,
             recorder: Any = None) -> use.Use:
    """A block in which CuPy's products are ``products``, in ``precision``."""
    return use.Use("cupy", partial(Rerouted, products), Block(precision, linalg, recorder))

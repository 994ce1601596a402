"""`peakgemm.cupy.use`: CuPy's products and linear algebra rerouted, with its own functions as the fallback.

Names in ``cupy`` and ``cupy.linalg`` are replaced, and methods of ``cupy.ndarray``, which is a class of Python's on top
of the compiled one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from math import isqrt, prod
from typing import Any

import cupy

from .. import linalg
from ..errors import InvalidType, InvalidValue, OutOfMemory
from . import use
from .linalg_sizes import FASTER
from .use import Block

_METHODS = {"__matmul__": "matmul", "dot": "dot"}


class _Function:
    """A function in the place of CuPy's own, whose attributes it has."""

    def __init__(self, original: Any, call: Callable[..., Any]) -> None:
        update_wrapper(self, original, updated=())
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["__wrapped__"], name)


class Rerouted(use.Rerouted):
    """CuPy's functions; see `use.Rerouted`. ``products``: peakgemm's by CuPy's names."""

    library = "cupy"

    def __init__(self, products: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self._undo: list[Callable[[], None]] = []
        for name, ours in products.items():
            original = getattr(cupy, name)
            call = partial(self._product, name, ours, original)
            self._replace(cupy, name, _Function(original, call))
            if getattr(cupy.linalg, name, None) is original:
                self._replace(cupy.linalg, name, getattr(cupy, name))
        for method, name in _METHODS.items():
            self._replace(cupy.ndarray, method, _method(partial(self._product, name, products[name],
                                                                getattr(cupy.ndarray, method)), method))
        for name in _LINALG:
            original = getattr(cupy.linalg, name)
            self._replace(cupy.linalg, name, _Function(original, partial(self._algebra, name, original)))

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        had = vars(owner).get(name)
        try:
            setattr(owner, name, value)
        except TypeError:  # a CuPy whose ndarray is the compiled class: its methods stay
            return
        self._undo.append(partial(delattr, owner, name) if had is None else partial(setattr, owner, name, had))

    def restore(self) -> None:
        """Give CuPy its own functions back."""
        while self._undo:
            self._undo.pop()()

    def _product(self, op: str, ours: Callable[..., Any], original: Any, *args: Any, **kwargs: Any) -> Any:
        (precision, _, chosen), recorder = self.blocks[-1], self.recorder
        arrays = [x for x in args if hasattr(x, "dtype")]
        why, result = _obstacle(op, args, kwargs), None
        if not why and chosen is not None and _allows_tf32():
            why = "TF32 allowed"
        shape: Any = ()
        flops = 0.0
        if not why:
            is_checked = recorder is not None and recorder.due()
            theirs = self._by_cupy(original, args, kwargs) if is_checked else None
            try:
                if op == "einsum":
                    kwargs = {**kwargs, "optimize": kwargs.get("optimize") or "auto"}
                result = ours(*args, precision=precision, **kwargs)
            except (InvalidType, InvalidValue, OutOfMemory) as error:  # before anything ran: CuPy's behaviour holds
                why = f"refused: {str(error).partition(';')[0]}"
            else:
                if recorder is not None:
                    shape, inner, flops = _sizes(op, args, result)
                    if arrays[0].dtype.kind == "c":
                        flops *= 4
                    if theirs is not None:
                        self._guarded(partial(recorder.compare, cupy, result, theirs, inner))
        if why and recorder is not None:
            shape = " x ".join("x".join(map(str, x.shape)) for x in arrays)
            if not why.startswith(("float16", "float64", "vectors")) and len(arrays) == 2:
                flops = 2.0 * prod(arrays[0].shape) * (arrays[1].shape[-1] if arrays[1].ndim > 1 else 1)
        self.count(op, shape, flops, why)
        return original(*args, **kwargs) if why else result

    def _by_cupy(self, original: Any, args: Any, kwargs: Any) -> Any:
        """What CuPy makes of a call, and of absolute values; None where it cannot."""
        kwargs = {name: x for name, x in kwargs.items() if name != "out"}
        return self._guarded(lambda: (original(*args, **kwargs), original(
            *(abs(x) if isinstance(x, cupy.ndarray) else x for x in args), **kwargs)))

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception:  # CuPy's own, of memory or of a capture: the program goes on without the check
            assert self.recorder is not None
            self.recorder.not_compared()
            return None

    def _algebra(self, op: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        precision, is_asked, _ = self.blocks[-1]
        if not is_asked:
            return original(*args, **kwargs)
        why, result = "sizes at which CuPy is faster, or other arguments", None
        if args and all(type(x) is cupy.ndarray and x.dtype == "float32" and x.ndim > 1 and x.size for x in args) and (
                _ignores_failures()):
            try:
                result = _LINALG[op](precision, *args, **kwargs)
            except (InvalidType, InvalidValue, OutOfMemory, TypeError) as error:
                why = f"refused: {str(error).partition(';')[0]}"
        shape = tuple(args[0].shape) if args and hasattr(args[0], "shape") else ()
        self.count(op, shape, 0.0, "" if result is not None else why)
        return original(*args, **kwargs) if result is None else result


def _method(call: Callable[..., Any], name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, *args, **kwargs)

    method.__name__ = name
    return method


def _obstacle(op: str, args: Any, kwargs: Any) -> str:
    """Why a product is not ours."""
    out = kwargs.get("out")
    operands = args[1:] if op == "einsum" and isinstance(args[0], str) else args[:2]
    dtypes = {str(getattr(x, "dtype", "")) for x in (*operands, *([] if out is None else [out]))}
    if not {*kwargs} <= ({"optimize"} if op == "einsum" else {"axes", "out"} if op == "tensordot" else {"out"}):
        return "further arguments"
    if op != "einsum" and len(args) > 2 + (op == "tensordot"):
        return "further arguments"
    if not all(type(x) is cupy.ndarray for x in operands) or not (out is None or type(out) is cupy.ndarray):
        return "other kinds of array"
    if dtypes not in ({"float32"}, {"complex64"}):
        return " and ".join(sorted(dtypes))
    if len(operands) < 2:
        return "one operand"
    if op != "einsum" and min(x.ndim for x in operands) < 2:
        return "vectors"
    return ""


def _sizes(op: str, args: Any, result: Any) -> tuple[Any, int, float]:
    """``(*batch, M, N, K)``, or an einsum's subscripts with its shapes; K; and the operations."""
    if op == "einsum":
        from opt_einsum import contract_path

        shapes = [tuple(x.shape) for x in args[1:]]
        _, path = contract_path(args[0], *shapes, shapes=True)
        inner = prod(size for label, size in path.size_dict.items() if label not in path.output_subscript)
        return f"{args[0]} {' '.join('x'.join(map(str, x)) for x in shapes)}", inner, float(path.opt_cost)
    a, b = args[:2]
    inner = a.shape[-1] if op == "matmul" else isqrt(a.size * b.size // max(result.size, 1))
    batch = result.shape[:-2] if op == "matmul" else ()
    m, n = (a.shape[-2], b.shape[-1]) if op == "matmul" else (x.size // max(inner, 1) for x in (a, b))
    return (*batch, m, n, inner), inner, 2.0 * result.size * inner


def _allows_tf32() -> bool:
    from cupy._core import _routines_linalg as routines

    if not hasattr(routines, "get_compute_type"):
        return False
    tf32 = getattr(routines, "COMPUTE_TYPE_TF32", 3)
    return bool(routines.get_compute_type(cupy.dtype("float32")) == tf32)


def _ignores_failures() -> bool:
    """Whether a singular matrix gives what it gives, as by CuPy's default: to look at it would wait."""
    import cupyx  # type: ignore[import-not-found]

    return bool(cupyx.geterr()["linalg"] in ("ignore", None))


def _large(kind: str, a: Any, columns: int = 1) -> None:
    """Refuse what CuPy does faster.

    Raises:
        InvalidValue: it is that small.
    """
    if not FASTER[kind].hold(prod(a.shape[:-2]), a.shape[-1], columns):
        raise InvalidValue("a size at which CuPy is faster")


def _cholesky(precision: str, a: Any) -> Any:
    _large("factor, ieee" if precision == "ieee" else "factor", a)
    return linalg.cholesky_ex(a, precision=precision)[0]


def _solve(precision: str, a: Any, b: Any) -> Any:
    _large("lu", a)
    if a.shape[:-1] != b.shape[:-1]:
        raise InvalidValue("b does not match a")
    return linalg.solve_ex(a, b, precision=precision)[0]


def _inv(precision: str, a: Any) -> Any:
    _large("lu", a)
    return linalg.inv_ex(a, precision=precision)[0]


def _det(precision: str, a: Any) -> Any:
    _large("lu", a)
    return linalg.det(a, precision=precision)


def _slogdet(precision: str, a: Any) -> Any:
    _large("lu", a)
    return tuple(linalg.slogdet(a, precision=precision))


def _qr(precision: str, a: Any, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "complete"):
        raise InvalidValue(f"mode {mode!r}")
    sizes = sorted(a.shape[-2:])
    if not FASTER["orthogonal"].hold(prod(a.shape[:-2]), sizes[1], sizes[0]):
        raise InvalidValue("a size at which CuPy is faster")
    q, r, _ = linalg.qr_ex(a, mode=mode, precision=precision)
    return q, r


_LINALG: dict[str, Callable[..., Any]] = {"cholesky": _cholesky, "solve": _solve, "inv": _inv, "det": _det,
                                          "slogdet": _slogdet, "qr": _qr}


def make_use(products: Mapping[str, Callable[..., Any]], precision: str, linalg: bool = False,
             recorder: Any = None) -> use.Use:
    """A block in which CuPy's products are ``products``, in ``precision``."""
    return use.Use("cupy", partial(Rerouted, products), Block(precision, linalg, recorder))

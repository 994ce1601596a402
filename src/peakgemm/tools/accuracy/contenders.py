"""What can be judged: GEMMs by name, or anybody's own function."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from ... import api
from ...calls.request import PRECISIONS, check_precision
from ...errors import InvalidType, InvalidValue, MissingComponent
from .arrays import Arrays, Torch, check
from .precisions import precisions

Multiply = Callable[[Any, Any], Any]  # (a, b) -> c
Full = Callable[[Any, Any, Any, float, float], Any]  # (a, b, c, alpha, beta) -> result
_OF_LIBRARIES = tuple(x.name for x in precisions() if x.measurable and x.library != "peakgemm")
# What torch.set_float32_matmul_precision calls each of torch's modes, and cuBLAS's, which is asked through torch.
_TORCH = {"torch": "highest", "cublas": "highest", "cublas-tf32": "high", "torch:ieee": "highest",
          "torch:tf32": "high", **{f"torch:{mode}": mode for mode in ("highest", "high", "medium")}}
NAMES = ("numpy", "torch", "cublas", "cublas-tf32", "triton-tf32x3", *(f"peakgemm:{p}" for p in PRECISIONS),
         *_OF_LIBRARIES)


@dataclass(frozen=True, slots=True)
class Gemm:
    """A GEMM under judgement. Its operands are copies, so that it can spoil none; its result is looked at first.

    ``full`` None: it has no alpha and beta.
    """

    name: str
    arrays: Arrays
    plain: Multiply
    full: Full | None

    def multiply(self, a: Any, b: Any) -> Any:
        """``a (M, K)`` times ``b (K, N)``.

        Raises:
            InvalidType, InvalidValue: the result is no float32 array ``(M, N)`` of the operands' module.
        """
        copies = self.arrays.copy(a), self.arrays.copy(b)
        return check(self.arrays, self.plain(*copies), (a.shape[0], b.shape[1]))

    def scaled(self, a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
        """``alpha a b + beta c``; raises as `multiply`."""
        assert self.full is not None
        first, second, third = (self.arrays.copy(x) for x in (a, b, c))
        return check(self.arrays, self.full(first, second, third, alpha, beta), (a.shape[0], b.shape[1]))


def make(what: str | Callable[..., Any], arrays: Arrays) -> Gemm:
    """A contender by name (`NAMES`, or ``package.module:function``), or from a function.

    Raises:
        InvalidValue: an unknown name, or a function that cannot be imported or called with two or five arguments.
        InvalidType: what is named is no function.
        MissingComponent: it cannot run here; the message says why.
    """
    if not isinstance(what, str):
        return _own(f"{what.__module__}:{getattr(what, '__qualname__', type(what).__name__)}", what, arrays)
    if what not in NAMES:
        if ":" in what and not what.startswith("peakgemm:"):
            return _own(what, _load(what), arrays)
        raise InvalidValue(f"unknown contender {what!r}; valid ones: {', '.join(NAMES)}, or package.module:function")
    if what == "numpy":
        return _numpy(arrays)
    if what in _TORCH:
        return _torch(what, arrays)
    library, _, mode = what.partition(":")
    make_it = {"peakgemm": _ours, "jax": _jax, "triton-tf32x3": _triton}[library]
    return make_it(what, mode, arrays)


def _need_gpu(name: str, arrays: Arrays) -> None:
    if arrays.name != "torch":
        raise MissingComponent(f"{name} runs on a GPU, and the data lie in the host's memory; it needs an NVIDIA GPU, "
                               "torch with CUDA, and no --host")


def _ours(name: str, precision: str, arrays: Arrays) -> Gemm:
    try:
        check_precision(precision)
    except InvalidValue as error:  # known, but not in this version
        raise MissingComponent(str(error)) from None

    def full(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
        return api.gemm(a, b, c, alpha=alpha, beta=beta, precision=precision)

    return Gemm(name, arrays, partial(api.matmul, precision=precision), full)


def _numpy(arrays: Arrays) -> Gemm:
    """NumPy has no alpha and beta; this is what they mean in BLAS."""
    def full(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
        product = arrays.host(a) @ arrays.host(b) if alpha else np.zeros((a.shape[0], b.shape[1]), np.float32)
        scaled = np.float32(alpha) * product
        return arrays.take(scaled + np.float32(beta) * arrays.host(c) if beta else scaled)

    return Gemm("numpy", arrays, lambda a, b: arrays.take(arrays.host(a) @ arrays.host(b)), full)


def _torch(name: str, arrays: Arrays) -> Gemm:
    """torch's product on a GPU, its switch set for the call; under the name ``torch`` on the host as well."""
    if name != "torch":
        _need_gpu(name, arrays)
    own = arrays if isinstance(arrays, Torch) else Torch("cpu")

    @contextmanager
    def precision_set() -> Iterator[None]:
        before = own.xp.get_float32_matmul_precision()
        own.xp.set_float32_matmul_precision(_TORCH[name])
        try:
            yield
        finally:
            own.xp.set_float32_matmul_precision(before)

    def run(function: Any, *operands: Any, **scales: float) -> Any:
        with precision_set():
            if own is arrays:
                return function(*operands, **scales)
            return own.host(function(*map(own.take, operands), **scales))

    return Gemm(name, arrays, partial(run, own.xp.mm),
                lambda a, b, c, alpha, beta: run(own.xp.addmm, c, a, b, alpha=alpha, beta=beta))


def _triton(name: str, _: str, arrays: Arrays) -> Gemm:
    _need_gpu(name, arrays)
    try:
        module = import_module("...bench.triton_gemm", __name__)
    except ImportError as error:
        raise MissingComponent(f"Triton cannot be imported ({error}); run: pip install triton") from None

    def plain(a: Any, b: Any) -> Any:
        out = a.new_zeros((a.shape[0], b.shape[1]))
        if out.numel() and a.shape[1]:
            module.multiply(a, b, out, "tf32x3")
        return out

    return Gemm(name, arrays, plain, None)


def _jax(name: str, mode: str, arrays: Arrays) -> Gemm:
    """``jnp.matmul`` at a precision, compiled; arrays go in and out by DLPack."""
    try:
        import jax
    except ImportError as error:
        raise MissingComponent(f"{name} needs jax, which cannot be imported ({error}); run: pip install jax") from None
    wanted = "gpu" if arrays.name == "torch" else "cpu"
    try:
        device = jax.devices(wanted)[0]
    except RuntimeError as error:
        raise MissingComponent(f"{name}: the data lie on the {wanted.upper()}, where this jax cannot compute "
                               f"({error}); run: pip install 'jax[cuda13]'") from None
    multiply = jax.jit(lambda a, b: jax.numpy.matmul(a, b, precision=mode))

    def plain(a: Any, b: Any) -> Any:
        if arrays.name == "torch":
            left, right = (jax.dlpack.from_dlpack(x.contiguous()) for x in (a, b))
            return arrays.xp.from_dlpack(multiply(left, right))
        return np.array(multiply(*(jax.device_put(x, device) for x in (a, b))))

    ones = jax.device_put(np.ones((8, 8), np.float32), device)
    try:
        multiply(ones, ones).block_until_ready()
    except Exception as error:  # XLA's own, of several classes
        raise MissingComponent(f"{name}: jax {jax.__version__} does not run it on the {wanted.upper()} "
                               f"({str(error).partition(chr(10))[0]})") from None
    return Gemm(name, arrays, plain, None)


def _load(name: str) -> Any:
    """``package.module:function`` (or ``...:object.function``), as Python finds it from the current folder."""
    module, _, path = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target: Any = import_module(module)
    except Exception as error:  # a user's module may fail in any way
        raise InvalidValue(f"{name}: importing {module!r} failed ({type(error).__name__}: {error}); name a module that "
                           "Python finds from here, as package.module:function") from None
    for part in path.split("."):
        if not hasattr(target, part):
            raise InvalidValue(f"{name}: {module!r} has no {path!r}; name a function that it has")
        target = getattr(target, part)
    return target


def _own(name: str, function: Any, arrays: Arrays) -> Gemm:
    """Somebody's function: with five parameters or more it takes ``(a, b, c, alpha, beta)``, else ``(a, b)``."""
    if not callable(function):
        raise InvalidType(f"{name} is a {type(function).__name__}; name a function (a, b) -> c")
    if _takes(function, 5):
        def plain(a: Any, b: Any) -> Any:
            return function(a, b, arrays.take(np.zeros((a.shape[0], b.shape[1]), np.float32)), 1.0, 0.0)
        return Gemm(name, arrays, function if _takes(function, 2) else plain, function)
    if not _takes(function, 2):
        raise InvalidValue(f"{name} cannot be called with two arguments; write it as (a, b) -> c or as "
                           "(a, b, c, alpha, beta) -> result")
    return Gemm(name, arrays, function, None)


def _takes(function: Any, count: int) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in that does not tell: a product of two
        return count == 2
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True

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
from . import named
from .arrays import Arrays, Torch, check

Multiply = Callable[[Any, Any], Any]  # (a, b) -> c
Full = Callable[[Any, Any, Any, float, float], Any]  # (a, b, c, alpha, beta) -> result
NAMES = ("numpy", "torch", "cublas", "cublas-tf32", "triton-tf32x3", *(f"peakgemm:{p}" for p in PRECISIONS),
         *named.NAMES)


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
    if what == "numpy":
        return Gemm(what, arrays, partial(_numpy, arrays), partial(_numpy_full, arrays))
    if what == "torch" and arrays.name == "numpy":
        torch = Torch("cpu").xp
        return Gemm(what, arrays, partial(_torch_on_host, torch), partial(_torch_full_on_host, torch))
    if what in ("torch", "cublas", "cublas-tf32"):
        _need_gpu(what, arrays)
        tf32 = what == "cublas-tf32"
        return Gemm(what, arrays, partial(_cublas, arrays.xp, tf32), partial(_cublas_full, arrays.xp, tf32))
    if what == "triton-tf32x3":
        _need_gpu(what, arrays)
        try:
            module = import_module(".triton_tf32x3", __package__)
        except ImportError as error:
            raise MissingComponent(f"Triton cannot be imported ({error}); run: pip install triton") from None
        return Gemm(what, arrays, module.multiply, None)
    if what.startswith("peakgemm:"):
        return _ours(what, arrays)
    if what in named.NAMES:
        library, _, mode = what.partition(":")
        if library == "jax":
            return Gemm(what, arrays, named.InJax(mode, arrays).plain, None)
        _need_gpu(what, arrays)
        run = named.InTorch(mode, arrays.xp)
        return Gemm(what, arrays, run.plain, run.full)
    if ":" in what:
        return _own(what, _load(what), arrays)
    raise InvalidValue(f"unknown contender {what!r}; valid ones: {', '.join(NAMES)}, or package.module:function")


def _need_gpu(name: str, arrays: Arrays) -> None:
    if arrays.name != "torch":
        raise MissingComponent(f"{name} runs on a GPU, and the data lie in the host's memory; it needs an NVIDIA GPU, "
                               "torch with CUDA, and no --host")


def _ours(name: str, arrays: Arrays) -> Gemm:
    precision = name.partition(":")[2]
    if precision not in PRECISIONS:
        raise InvalidValue(f"unknown contender {name!r}; valid ones: {', '.join(NAMES)}, or package.module:function")
    try:
        check_precision(precision)
    except InvalidValue as error:  # known, but not in this version
        raise MissingComponent(str(error)) from None

    def full(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
        return api.gemm(a, b, c, alpha=alpha, beta=beta, precision=precision)

    return Gemm(name, arrays, partial(api.matmul, precision=precision), full)


def _load(name: str) -> Any:
    """``package.module:function`` (or ``...:object.function``), as Python finds it from the current folder."""
    module, _, path = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
    except Exception as error:  # a user's module may fail in any way
        raise InvalidValue(f"{name}: importing {module!r} failed ({type(error).__name__}: {error}); name a module that "
                           "Python finds from here, as package.module:function") from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise InvalidValue(f"{name}: {module!r} has no {path!r}; name a function that it has")
        found = getattr(found, part)
    return found


def _own(name: str, function: Any, arrays: Arrays) -> Gemm:
    """Somebody's function: with five parameters or more it takes ``(a, b, c, alpha, beta)``, else ``(a, b)``."""
    if not callable(function):
        raise InvalidType(f"{name} is a {type(function).__name__}; name a function (a, b) -> c")
    if _takes(function, 5):
        def plain(a: Any, b: Any) -> Any:
            return function(a, b, arrays.full((a.shape[0], b.shape[1]), 0.0), 1.0, 0.0)
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


def _numpy(arrays: Arrays, a: Any, b: Any) -> Any:
    return arrays.take(arrays.host(a) @ arrays.host(b))


def _numpy_full(arrays: Arrays, a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
    """NumPy has no alpha and beta; this is what they mean in BLAS."""
    shape = (a.shape[0], b.shape[1])
    result = np.float32(alpha) * (arrays.host(a) @ arrays.host(b)) if alpha else np.zeros(shape, np.float32)
    return arrays.take(result + np.float32(beta) * arrays.host(c) if beta else result)


def _torch_on_host(torch: Any, a: Any, b: Any) -> Any:
    return torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()


def _torch_full_on_host(torch: Any, a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
    return torch.addmm(*map(torch.from_numpy, (c, a, b)), alpha=alpha, beta=beta).numpy()


@contextmanager
def _tf32(torch: Any, on: bool) -> Iterator[None]:
    """TF32 in cuBLAS on or off, and as it was afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = on
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _cublas(torch: Any, tf32: bool, a: Any, b: Any) -> Any:
    with _tf32(torch, tf32):
        return torch.mm(a, b)


def _cublas_full(torch: Any, tf32: bool, a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
    with _tf32(torch, tf32):
        return torch.addmm(c, a, b, alpha=alpha, beta=beta)

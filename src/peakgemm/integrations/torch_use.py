"""`use`: torch's FP32 products and linear algebra rerouted to peakgemm, with torch's kernels as the fallback."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from functools import partial
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arrays.torch import PLAIN
from ..calls import eager
from ..calls.request import check_precision
from ..errors import InvalidValue, MissingComponent
from ..linalg.complex import gemm as complex_gemm
from . import torch_linalg

_NUMBERS = {torch.float32: (int, float), torch.complex64: (int, float, complex)}  # not bool, which torch refuses


class _Call(NamedTuple):
    """``alpha a b + beta c``, into ``out`` where that is given; ``rank`` 2 or 3."""

    rank: int
    a: Tensor
    b: Tensor
    c: Tensor | None = None
    alpha: Any = 1
    beta: Any = 0
    out: Tensor | None = None

    def is_ours(self) -> bool:
        """Whether peakgemm runs it. All else is torch's, its errors included; so is what `eager.run` refuses."""
        rank, a, b, c, alpha, beta, out = self
        return (a.dim() == b.dim() == rank and (rank == 2 or a.shape[0] == b.shape[0])
                and (out is None or out.shape == (*a.shape[:-1], b.shape[-1]))  # torch resizes another one
                and type(alpha) in _NUMBERS.get(a.dtype, ()) and type(beta) in _NUMBERS[a.dtype]
                and all(x is None or (type(x) in PLAIN and x.dtype is a.dtype) for x in (a, b, c, out)))


# torch's ops -> the rank of their operands. Names that end with _ write to their first argument.
_OPS = {"mm": 2, "mm.out": 2, "addmm": 2, "addmm.out": 2, "addmm_": 2,
        "bmm": 3, "bmm.out": 3, "baddbmm": 3, "baddbmm.out": 3, "baddbmm_": 3}


def _read(op: str, *args: Tensor, beta: Any = 1, alpha: Any = 1, out: Tensor | None = None) -> _Call:
    """What ``op`` was asked for: a product, or the sum of its first argument and one."""
    if len(args) == 2:
        return _Call(_OPS[op], *args, out=out)
    c, a, b = args
    return _Call(_OPS[op], a, b, c, alpha, beta, c if op.endswith("_") else out)


def _real_gemm(*tensors: Tensor, devices: Any = None, **options: Any) -> Any:
    return eager.run(*tensors, **options)


def _run(call: _Call, precision: str) -> Tensor:
    if call.a.is_complex():
        # Detached: this is below autograd, and the tensors say nothing of that.
        a, b, c, out = (None if x is None else x.detach() for x in (call.a, call.b, call.c, call.out))
        product: Tensor = complex_gemm(_real_gemm, a, b, c, alpha=call.alpha, beta=call.beta, out=out,
                                       precision=precision)
        return product if call.out is None else call.out
    result: Tensor = eager.run(call.a, call.b, call.c, alpha=float(call.alpha), beta=float(call.beta), out=call.out,
                               precision=precision)
    return result


class Block(NamedTuple):
    """What one ``with`` asks for; see `peakgemm.torch.use`."""

    precision: str
    linalg: bool


class Rerouted:
    """The rerouting in force: how many calls of each op peakgemm ran, and how many went on to torch.

    ``calls`` and ``fallbacks`` count by op, ``"mm"`` or ``"addmm.out"``; nested blocks share them. ``blocks`` are those
    that were entered, the innermost last, which holds.
    """

    def __init__(self, key: str, run: Callable[[_Call, str], Tensor]) -> None:
        self.blocks: list[Block] = []
        self.calls: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self._key, self._run = key, run
        self._library = torch.library.Library("aten", "IMPL")
        self._ops: set[str] = set()  # that are rerouted
        self._reroute(_OPS)

    def enter(self, block: Block) -> None:
        """Let ``block`` hold."""
        if block.linalg:
            self._reroute(torch_linalg.OPS)
        self.blocks.append(block)

    def _reroute(self, ops: Iterable[str]) -> None:
        try:
            # torch warns of the first kernel that is overridden: here that is the purpose.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*[Oo]verrid", category=UserWarning)
                for op in ops if self._key != "CUDA" or torch.version.cuda else ():  # torch without CUDA has none
                    if op not in self._ops:
                        original = torch.library.get_kernel(f"aten::{op}", self._key)
                        self._library.impl(op, self._kernel(op, original), self._key, with_keyset=True,
                                           allow_override=True)
                        self._ops.add(op)
        except BaseException:
            if not self.blocks:
                self.restore()
            raise

    def __str__(self) -> str:
        """What was changed and what was left, by op."""
        def counts(of: Counter[str]) -> str:
            return ", ".join(f"{count} {op}" for op, count in of.items()) or "nothing"

        precision, linalg = self.blocks[-1]
        return (f"peakgemm.torch.use(precision={precision!r}{', linalg=True' if linalg else ''}): peakgemm ran "
                f"{counts(self.calls)}; torch ran {counts(self.fallbacks)} (other dtypes, devices or shapes)")

    def restore(self) -> None:
        """Put torch's kernels back."""
        self._library._destroy()

    def _kernel(self, op: str, original: Any) -> Callable[..., Any]:
        is_product, is_linalg = op in _OPS, op in torch_linalg.OPS

        def rerouted(keys: Any, *args: Any, **kwargs: Any) -> Any:
            precision, linalg = self.blocks[-1]
            result = torch_linalg.reroute(op, precision, args, kwargs) if linalg and is_linalg else None
            try:
                if result is None and is_product and (call := _read(op, *args, **kwargs)).is_ours():
                    result = self._run(call, precision)
            except InvalidValue:
                result = None  # refused before anything ran (an overlap, a size): torch's own behaviour holds
            if result is not None:
                self.calls[op] += 1
                return result
            if linalg or is_product:
                self.fallbacks[op] += 1
            return original.call_boxed(keys, *args, **kwargs)
        return rerouted


_log = logging.getLogger("peakgemm")
_lock = RLock()
_reported: set[str] = set()  # dispatch keys whose first block has ended: what it did is said once
_active: dict[str, Rerouted] = {}  # by dispatch key


class Use(ContextDecorator):
    """What `peakgemm.torch.use` returns: a context manager and decorator that can be entered again and again."""

    def __init__(self, precision: str, key: str = "CUDA", run: Callable[[_Call, str], Tensor] = _run,
                 linalg: bool = False) -> None:
        if check_precision(precision) == "reproducible" and linalg:
            raise InvalidValue("linalg=True: linear algebra keeps no promise of reproducible=True, since its blocks "
                               "depend on the size; leave out one of the two")
        self._block = Block(precision, linalg)
        if not hasattr(torch.library, "get_kernel"):
            raise MissingComponent(f"peakgemm.torch.use() needs torch 2.9 or newer, this is {torch.__version__}; "
                                   "run: pip install -U torch")
        self._key, self._make = key, partial(Rerouted, key, run)

    def __enter__(self) -> Rerouted:
        with _lock:
            rerouted = _active.get(self._key) or self._make()
            rerouted.enter(self._block)
            _active[self._key] = rerouted
            return rerouted

    def __exit__(self, *exc: object) -> None:
        with _lock:
            rerouted = _active[self._key]
            if len(rerouted.blocks) > 1:
                rerouted.blocks.pop()
                return
            del _active[self._key]
            if self._key not in _reported:
                _reported.add(self._key)
                _log.info("%s", rerouted)
            rerouted.restore()

"""`use`: torch's FP32 products and linear algebra rerouted to peakgemm, with torch's kernels as the fallback."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arrays.torch import PLAIN
from ..calls.request import check_precision
from ..errors import InvalidValue, MissingComponent, PeakgemmError
from . import use
from .use import Block

_log = logging.getLogger("peakgemm")
_MOST_FAULTS = 1000  # that are kept
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

    @property
    def sizes(self) -> tuple[int, ...]:
        """``(M, N, K)``, a batch's before; empty where the operands are not of those dimensions."""
        if self.a.dim() != self.rank or self.b.dim() != self.rank:
            return ()
        return (*self.a.shape[:-1], self.b.shape[-1], self.a.shape[-1])

    def obstacle(self) -> str:
        """Why it is not ours."""
        tensors = [x for x in (self.a, self.b, self.c, self.out) if x is not None]
        if not all(type(x) in PLAIN for x in tensors):
            return "a tensor subclass"
        dtypes = {str(x.dtype).removeprefix("torch.") for x in tensors}
        if dtypes not in ({"float32"}, {"complex64"}):
            return " and ".join(sorted(dtypes))
        return "shapes or scales that torch refuses or converts"

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
    return _eager.run(*tensors, **options)


_eager: Any = None  # what multiplies is imported with the first product, not with the program that it is rerouted in


def _run(call: _Call, precision: str) -> Tensor:
    global _eager
    if _eager is None:
        from ..calls import eager as _eager
    if call.a.is_complex():
        from ..linalg.complex import gemm as complex_gemm

        # Detached: this is below autograd, and the tensors say nothing of that.
        a, b, c, out = (None if x is None else x.detach() for x in (call.a, call.b, call.c, call.out))
        product: Tensor = complex_gemm(_real_gemm, a, b, c, alpha=call.alpha, beta=call.beta, out=out,
                                       precision=precision)
        return product if call.out is None else call.out
    result: Tensor = _eager.run(call.a, call.b, call.c, alpha=float(call.alpha), beta=float(call.beta), out=call.out,
                                precision=precision)
    return result


class Rerouted(use.Rerouted):
    """torch's operators; see `use.Rerouted`. ``checked`` counts products with a certificate, ``faults`` says which are
    wrong, and by whom they were asked for."""

    library = "torch"

    def __init__(self, key: str, run: Callable[[_Call, str], Tensor]) -> None:
        super().__init__()
        self._key, self._run = key, run
        self._library = torch.library.Library("aten", "IMPL")
        self._ops: set[str] = set()  # that are rerouted
        self._linalg: Any = None
        self._certify: Any = None
        self.checked = 0
        self.faults: list[str] = []
        self._reroute(_OPS)

    def enter(self, block: Block) -> None:
        """Let ``block`` hold."""
        if block.linalg and self._linalg is None:
            from . import torch_linalg

            self._linalg = torch_linalg
            self._reroute(torch_linalg.OPS)
        if block.certify and self._certify is None:
            from . import torch_certify

            self._certify = torch_certify
        super().enter(block)

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

    def restore(self) -> None:
        """Put torch's kernels back."""
        self._library._destroy()

    def _kernel(self, op: str, original: Any) -> Callable[..., Any]:
        is_product = op in _OPS

        def rerouted(keys: Any, *args: Any, **kwargs: Any) -> Any:
            block, recorder, why = self.blocks[-1], self.recorder, ""
            precision, linalg, chosen = block.precision, block.linalg, block.recorder
            tf32 = is_product and chosen is not None and self._key == "CUDA" and _allows_tf32()
            if linalg and op in self._linalg.OPS and not tf32:
                first = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
                shape = tuple(first.shape)
                result = self.clocked(op, shape, "", first, lambda: self._linalg.reroute(op, precision, args, kwargs))
                if result is not None:
                    self.count(op, shape, shape[0] * prod(shape) if is_product else 0.0, "")  # half of a a^T
                    return result
                if not is_product:
                    self.count(op, shape, 0.0, "sizes at which torch is faster, or other arguments")
            if not is_product:
                return original.call_boxed(keys, *args, **kwargs)
            call, result = _read(op, *args, **kwargs), None
            sizes = () if recorder is None else call.sizes
            if not call.is_ours():
                why = call.obstacle() if recorder is not None else "not ours"
            elif chosen is not None and (self.broken or tf32):
                why = self.broken or "TF32 allowed"
            else:
                theirs = None
                if recorder is not None and recorder.due():
                    theirs = recorder.guarded(partial(_by_torch, op, original, keys, args, kwargs))
                check = block.certify and self._unless_it_fails(lambda: self._certify.begin(call, block.certify))
                try:
                    result = self.clocked(op, sizes, "", call.a, lambda: self._run(call, precision))
                except (PeakgemmError, ImportError) as error:  # before anything ran: torch's own behaviour holds
                    why = self.refused(error)
                if check and result is not None:
                    fault = self._unless_it_fails(lambda: check(result, precision))
                    if fault is not None:
                        self._judge(fault, block.on_fault)
                if theirs is not None and recorder is not None and result is not None:
                    recorder.guarded(partial(recorder.compare, torch, result, theirs, call.a.shape[-1]))
            try:
                return result if result is not None else self.clocked(
                    op, sizes, why, call.a, lambda: original.call_boxed(keys, *args, **kwargs))
            finally:
                if recorder is None:
                    (self.fallbacks if why else self.calls)[op] += 1
                else:
                    ours = sizes and call.a.dtype in _NUMBERS
                    self.count(op, sizes, (8.0 if call.a.is_complex() else 2.0) * prod(sizes) if ours else 0.0, why)
        return rerouted

    def span(self, like: Tensor) -> Any:
        """Between events."""
        if not like.is_cuda or torch.cuda.is_current_stream_capturing():
            return None
        stream = torch.cuda.current_stream(like.device)
        begin = stream.record_event(torch.cuda.Event(enable_timing=True))

        def end() -> tuple[Callable[[], bool], Callable[[], float]]:
            last = stream.record_event(torch.cuda.Event(enable_timing=True))
            return last.query, partial(begin.elapsed_time, last)

        return end

    def _unless_it_fails(self, work: Callable[[], Any]) -> Any:
        """Part of a certificate; None where there is no memory for it, say: the program goes on without."""
        try:
            return work()
        except Exception as error:
            if self.recorder is not None:
                self.recorder.checks["left_out"] += 1
            _log.warning("a product has no certificate: %s", error)
            return None

    def _judge(self, fault: str, on_fault: str) -> None:
        """Count a checked product, and report its ``fault``, if it has one."""
        self.checked += 1
        if self.recorder is not None:
            self.recorder.certified(fault)
        if fault:
            if len(self.faults) < _MOST_FAULTS:
                self.faults.append(fault)
            self._certify.report(fault, on_fault)

    def __str__(self) -> str:
        """`use.Rerouted`'s, and how many were checked."""
        checked = f"; {self.checked:,} were checked, {len(self.faults):,} are wrong" if self.blocks[-1].certify else ""
        return super().__str__() + checked


# By name, since `allow_tf32` raises where a program has used torch's newer switches.
_precision_of: Any = getattr(torch._C, "_get_fp32_precision_getter", None)


def _allows_tf32() -> bool:
    if _precision_of is not None:
        return bool(_precision_of("cuda", "matmul") == "tf32")
    return bool(torch.backends.cuda.matmul.allow_tf32)


def _by_torch(op: str, original: Any, keys: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
    """What torch makes of a call, and of absolute values, in memory of its own."""
    def run(change: Callable[[Any], Any]) -> Tensor:
        tensors = [change(x.clone() if i == 0 and op.endswith("_") else x) for i, x in enumerate(args)]
        options = {name: tensors[0].new_empty(x.shape) if name == "out" else change(x) for name, x in kwargs.items()}
        result: Tensor = original.call_boxed(keys, *tensors, **options)
        return result

    if args[0].is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a graph that is captured would hold the check")
    return run(lambda x: x), run(abs)


class Use(use.Use):
    """What `peakgemm.torch.use` returns."""

    def __init__(self, precision: str, key: str = "CUDA", run: Callable[[_Call, str], Tensor] = _run,
                 linalg: bool = False, recorder: Any = None, certify: float = 0.0, on_fault: str = "warn") -> None:
        use.check_linalg(check_precision(precision), linalg)
        use.check_share(certify)
        if on_fault not in use.ON_FAULT:
            raise InvalidValue(f"on_fault = {on_fault!r}; pass one of {', '.join(map(repr, use.ON_FAULT))}")
        if not hasattr(torch.library, "get_kernel"):
            raise MissingComponent(f"peakgemm.torch.use() needs torch 2.9 or newer, this is {torch.__version__}; "
                                   "run: pip install -U torch")
        super().__init__(key, partial(Rerouted, key, run), Block(precision, linalg, recorder, float(certify), on_fault))

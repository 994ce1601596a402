"""Every product call under every transform and tracer of torch: the calls, the transforms, and what a cell must give.

A cell is a call, a transform and what runs or records it. It gives what FP64 gives under the same transform, or it is
refused by name. What was recorded runs on other operands than it was recorded with.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.autograd.forward_ad as forward
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import peakgemm as pg
from peakgemm.errors import PeakgemmError
from peakgemm.integrations import torch_ops  # noqa: F401  (registers the op)
from peakgemm.integrations.torch_use import Use

Function = Callable[..., Any]
SHAPES = (5, 7), (7, 3), (5, 3)


def draw(device: str, seed: int) -> tuple[Any, ...]:
    """``a``, ``b`` and ``c``."""
    made = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*shape, generator=made).to(device) for shape in SHAPES)


# The calls: of a, b and c, and what they are in any arithmetic.

def _product(a: Any, b: Any, c: Any) -> Any:
    return a @ b


def _sum(a: Any, b: Any, c: Any) -> Any:
    return 2 * (a @ b) - 0.5 * c


def _matmul_out(a: Any, b: Any, c: Any) -> Any:
    return pg.matmul(a, b, out=torch.empty_like(c))


def _op_out(a: Any, b: Any, c: Any) -> Any:
    out = torch.empty_like(c)
    torch.ops.peakgemm.gemm_out(a, b, c, out, 2.0, -0.5, "ieee")
    return out


def calls(device: str) -> dict[str, tuple[Function, Function]]:
    """Each call, with its reference."""
    a, b, _ = draw(device, 0)
    plan, ready = pg.plan(a, b), pg.prepare(b.clone())
    kept = ready.array.double()
    return {
        "matmul": (lambda a, b, c: pg.matmul(a, b), _product),
        "vectors": (lambda a, b, c: pg.matmul(a[0], b[:, 0]), lambda a, b, c: a[0] @ b[:, 0]),
        "gemm": (lambda a, b, c: pg.gemm(a, b, c, alpha=2.0, beta=-0.5), _sum),
        "transposed": (lambda a, b, c: pg.gemm(a.mT, b.mT, c, alpha=2.0, beta=-0.5, trans_a=True, trans_b=True), _sum),
        "sgemm": (lambda a, b, c: pg.sgemm(2.0, a, b, -0.5, c), _sum),
        "addmm": (lambda a, b, c: pg.addmm(c, a, b, beta=-0.5, alpha=2.0), _sum),
        "bmm": (lambda a, b, c: pg.bmm(a[None], b[None]), lambda a, b, c: a[None] @ b[None]),
        "op": (lambda a, b, c: torch.ops.peakgemm.gemm(a, b, c, 2.0, -0.5, "ieee"), _sum),
        "op_out": (_op_out, _sum),
        "matmul_out": (_matmul_out, _product),
        "use_mm": (lambda a, b, c: torch.mm(a, b), _product),
        "use_addmm": (lambda a, b, c: torch.addmm(c, a, b, beta=-0.5, alpha=2.0), _sum),
        "use_bmm": (lambda a, b, c: torch.bmm(a[None], b[None]), lambda a, b, c: a[None] @ b[None]),
        "execute": (lambda a, b, c: plan.execute(a, b), _product),
        "prepared": (lambda a, b, c: pg.matmul(a, ready), lambda a, b, c: a @ kept.to(a.dtype)),
    }


# The transforms: each makes of a call a function of a, b, c.

def _loss(f: Function) -> Function:
    return lambda *x: f(*x).sin().sum()


def _tangents(x: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(y.flip(0) for y in x)


def _jvp(f: Function) -> Function:
    return lambda *x: torch.func.jvp(f, x, _tangents(x))


def _vjp(f: Function) -> Function:
    def run(*x: Any) -> Any:
        out, pull = torch.func.vjp(f, *x)
        return out, pull(out.cos())
    return run


def _linearize(f: Function) -> Function:
    def run(*x: Any) -> Any:
        out, push = torch.func.linearize(f, *x)
        return out, push(*_tangents(x))
    return run


def _dual(f: Function) -> Function:
    def run(*x: Any) -> Any:
        with forward.dual_level():
            return tuple(forward.unpack_dual(f(*map(forward.make_dual, x, _tangents(x)))))
    return run


def _backward(f: Function) -> Function:
    def run(*x: Any) -> Any:
        leaves = [y.detach().clone().requires_grad_() for y in x]
        return torch.autograd.grad(_loss(f)(*leaves), leaves, allow_unused=True, materialize_grads=True)
    return run


def _twice(f: Function) -> Function:
    def run(*x: Any) -> Any:
        leaves = [y.detach().clone().requires_grad_() for y in x]
        first = torch.autograd.grad(_loss(f)(*leaves), leaves, create_graph=True, allow_unused=True,
                                    materialize_grads=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves, allow_unused=True,
                                   materialize_grads=True)
    return run


def _dual_backward(f: Function) -> Function:
    def run(*x: Any) -> Any:
        leaves = [y.detach().clone().requires_grad_() for y in x]
        with forward.dual_level():
            tangent = forward.unpack_dual(f(*map(forward.make_dual, leaves, _tangents(leaves)))).tangent
            return torch.autograd.grad(tangent.sin().sum(), leaves, allow_unused=True, materialize_grads=True)
    return run


def _checkpointed(f: Function) -> Function:
    def run(*x: Any) -> Any:
        leaves = [y.detach().clone().requires_grad_() for y in x]
        _loss(lambda *y: checkpoint(f, *y, use_reentrant=False))(*leaves).backward()
        return [torch.zeros_like(y) if y.grad is None else y.grad for y in leaves]
    return run


def _stacked(x: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(torch.stack([y, -y, 2 * y]) for y in x)


def _vmapped(f: Function) -> Function:
    return lambda *x: torch.vmap(f)(*_stacked(x))


def _vmapped_a(f: Function) -> Function:
    return lambda a, b, c: torch.vmap(f, in_dims=(1, None, None))(torch.stack([a, -a], 1), b, c)


def _legacy(**options: Any) -> Function:
    return lambda f: lambda *x: torch.autograd.functional.jacobian(f, x, **options)


def _grads_batched(f: Function) -> Function:
    def run(*x: Any) -> Any:
        leaves = [y.detach().clone().requires_grad_() for y in x]
        out = f(*leaves)
        return torch.autograd.grad(out, leaves, torch.stack([out.detach().cos(), out.detach()]), is_grads_batched=True,
                                   allow_unused=True, materialize_grads=True)
    return run


ARGS = (0, 1, 2)
TRANSFORMS: dict[str, Function] = {
    "plain": lambda f: f,
    "func.grad": lambda f: torch.func.grad(_loss(f), ARGS),
    "func.vjp": _vjp,
    "func.jvp": _jvp,
    "func.linearize": _linearize,
    "func.jacrev": lambda f: torch.func.jacrev(f, ARGS),
    "func.jacfwd": lambda f: torch.func.jacfwd(f, ARGS),
    "func.hessian": lambda f: torch.func.hessian(_loss(f), ARGS),
    "func.functionalize": torch.func.functionalize,
    "grad of jvp": lambda f: torch.func.grad(lambda *x: _jvp(f)(*x)[1].sin().sum(), ARGS),
    "jvp of grad": lambda f: _jvp(torch.func.grad(_loss(f), ARGS)),
    "vmap": _vmapped,
    "vmap of a": _vmapped_a,
    "vmap of vmap": lambda f: lambda *x: torch.vmap(torch.vmap(f))(*_stacked(_stacked(x))),
    "vmap of grad": lambda f: _vmapped(torch.func.grad(_loss(f), ARGS)),
    "vmap of jvp": lambda f: _vmapped(_jvp(f)),
    "functionalize of grad": lambda f: torch.func.functionalize(torch.func.grad(_loss(f), ARGS)),
    "jvp of vmap": lambda f: _jvp(_vmapped(f)),
    "grad of vmap": lambda f: torch.func.grad(_loss(_vmapped(f)), ARGS),
    "dual": _dual,
    "dual, backward": _dual_backward,
    "backward": _backward,
    "backward twice": _twice,
    "backward, batched": _grads_batched,
    "checkpoint": _checkpointed,
    "jacobian": _legacy(),
    "jacobian, vectorized": _legacy(vectorize=True),
}


# What runs the transformed call, or records it with other operands first.

def _compiled(backend: str) -> Function:
    def record(f: Function, first: tuple[Any, ...]) -> Function:
        torch._dynamo.reset()
        run = torch.compile(f, backend=backend)
        run(*first)
        return run
    return record


def _exported(strict: bool) -> Function:
    class Module(torch.nn.Module):
        def __init__(self, f: Function) -> None:
            super().__init__()
            self.f = f

        def forward(self, a: Any, b: Any, c: Any) -> Any:
            return self.f(a, b, c)

    def record(f: Function, first: tuple[Any, ...]) -> Function:
        return torch.export.export(Module(f), first, strict=strict).run_decompositions().module()
    return record


def _fx(**options: Any) -> Function:
    return lambda f, first: make_fx(f, **options)(*first)


RECORDERS: dict[str, Function] = {
    "eager": lambda f, first: f,
    "compile eager": _compiled("eager"),
    "compile aot_eager": _compiled("aot_eager"),
    "compile inductor": _compiled("inductor"),
    "export": _exported(False),
    "export strict": _exported(True),
    "make_fx real": _fx(tracing_mode="real"),
    "make_fx fake": _fx(tracing_mode="fake", _allow_non_fake_inputs=True),
    "make_fx symbolic": _fx(tracing_mode="symbolic", _allow_non_fake_inputs=True),
    "make_fx pre-dispatch": _fx(pre_dispatch=True),
    "jit.trace": lambda f, first: torch.jit.trace(f, first),
}


# Where torch's own product is wrong or fails, nothing is asked: those cells are not run.
_FAILS: dict[str, set[str]] = {
    # checkpoint: of every autograd function that Python implements the compiler's guards read the saved tensors twice.
    "compile eager": {"checkpoint"},
    "compile aot_eager": {"func.functionalize", "functionalize of grad", "dual, backward", "backward twice"},
    "make_fx real": {"func.linearize"},
    "make_fx fake": {"dual, backward"},
    "make_fx symbolic": {"func.linearize", "dual, backward", "backward, batched", "jacobian, vectorized"},
}
_FAILS["compile inductor"] = _FAILS["compile aot_eager"] | {"backward, batched", "jacobian, vectorized"}
_VMAPS = {"vmap", "vmap of a", "vmap of vmap"}
_BACKWARDS = {"backward", "backward twice", "backward, batched", "jacobian", "jacobian, vectorized"}
_RIGHT: dict[str, set[str]] = {
    "export": {"plain"} | _VMAPS | _BACKWARDS,
    "export strict": {"plain"} | _VMAPS,
    "make_fx pre-dispatch": {"plain"} | _BACKWARDS,
    "jit.trace": {"plain", "func.jvp", "func.functionalize", "vmap", "vmap of a", "vmap of jvp", "jacobian"},
}


def cells() -> list[tuple[str, str]]:
    """What records, and what transforms, where torch's own product is right."""
    return [(recorder, transform) for recorder in RECORDERS for transform in TRANSFORMS
            if transform in _RIGHT.get(recorder, TRANSFORMS) and transform not in _FAILS.get(recorder, ())]


def recorded_calls(recorder: str) -> tuple[str, ...]:
    """The calls that differ to what records; Inductor compiles C++ for each."""
    return ("matmul", "gemm") if recorder == "compile inductor" else (
        "matmul", "gemm", "op", "op_out", "matmul_out", "use_addmm", "execute", "prepared")


def is_refused(call: str, transform: str, recorder: str, device: str) -> bool:
    """Whether a cell is refused: plans in all but plain calls, what is written in every transform, and under
    torch.jit.trace torch.func, and on a GPU backward passes."""
    if call == "execute":
        return transform != "plain" or not recorder.startswith(("eager", "compile"))
    if call.endswith("out"):
        return transform != "plain"
    recorded = {"plain", "func.functionalize"} | ({"jacobian"} if device == "cpu" else set())
    return recorder == "jit.trace" and not call.startswith("use") and transform not in recorded


# The compiler refuses these with an error of its own that names neither.
_UNNAMED = {("compile eager", "grad of vmap", "execute")}


def is_by_name(error: Exception) -> bool:
    """peakgemm's own, or torch's that names the op; the compiler's with the call that it cannot trace."""
    return isinstance(error, (PeakgemmError, torch._dynamo.exc.Unsupported)) or "peakgemm" in str(error)


_NOT_REFUSED = "not refused"


def check(device: str, recorder: str, transform: str, names: Iterable[str]) -> dict[str, str]:
    """Every call that is neither right nor refused as it should be, with what it gave."""
    wrong = {}
    for call in names:
        refused = is_refused(call, transform, recorder, device)
        try:
            got, want = run(device, call, transform, recorder)
            said = _NOT_REFUSED if refused else "" if agree(got, want) else f"{got} instead of {want}"
        except Exception as error:
            by_name = is_by_name(error) or (recorder, transform, call) in _UNNAMED
            said = "" if refused and by_name else f"{type(error).__name__}: {error}"
        if said and (said == _NOT_REFUSED or _is_right_in_torch(device, recorder, transform, call)):
            wrong[call] = said
    return wrong


def _is_right_in_torch(device: str, recorder: str, transform: str, call: str) -> bool:
    """Whether another release of torch does right by its own product in a cell; in a process of its own, for those that
    fail leave modes and levels behind."""
    return subprocess.run([sys.executable, __file__, device, call, transform, recorder], check=False).returncode == 0


def run(device: str, call: str, transform: str, recorder: str, own: bool = False) -> tuple[Any, Any]:
    """What a cell gives, or with ``own`` torch's product in its place, and what FP64 gives."""
    ours, reference = calls(device)[call]
    first, second = draw(device, 1), draw(device, 2)
    want = TRANSFORMS[transform](reference)(*(x.double() for x in second))
    rerouted = call.startswith("use") and not own
    with Use("ieee", key="CPU" if device == "cpu" else "CUDA") if rerouted else nullcontext() as ran:
        got = RECORDERS[recorder](TRANSFORMS[transform](reference if own else ours), first)(*second)
    assert ran is None or ran.calls
    return got, want


def agree(got: Any, want: Any) -> bool:
    """FP32 results within 1e-4 of FP64 ones, relative to the largest."""
    if isinstance(want, (tuple, list)):
        return len(got) == len(want) and all(map(agree, got, want))
    return got.shape == want.shape and got.dtype is torch.float32 and bool(
        ((got.double() - want).abs() <= 1e-4 * (1 + want.abs().max())).all())


if __name__ == "__main__":
    sys.exit(not agree(*run(*sys.argv[1:], own=True)))

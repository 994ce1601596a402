"""What people hand to a GEMM that is no plain array, for every argument of every public call, on the CPU or the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

import peakgemm as pg
from peakgemm.errors import PeakgemmError

M, N, K = 8, 4, 12
SENTINEL = -777.25


class Wrapped(torch.Tensor):
    """A tensor around another one, as DTensor and quantised weights are: its own address is 0. Runs every op."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype,
                                                   device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrap(x: Any) -> Any:
            return x.inner if isinstance(x, Wrapped) else x

        return func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))


class Ruleless(Wrapped):
    """One that runs no op."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def _freed(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.untyped_storage().resize_(0)  # as sharded training does between uses
    return x


def _misaligned(x: torch.Tensor) -> torch.Tensor:
    flat = torch.empty(x.numel() + 1, device=x.device)[1:]
    return flat.view(x.shape).copy_(x)


_FAKE = FakeTensorMode()
KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "plain": lambda x: x,
    "wrapped": Wrapped,
    "ruleless": Ruleless,
    "subclass": lambda x: x.as_subclass(type("Named", (torch.Tensor,), {})),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "fake": _FAKE.from_tensor,
    "meta": lambda x: x.to("meta"),
    "elsewhere": lambda x: x.cpu() if x.is_cuda else x.to("meta"),
    "NumPy": lambda x: x.cpu().numpy(),
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.to_sparse_csr() if x.dim() == 2 else x.to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "nested, jagged": lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged),
    "complex": lambda x: x + 1j,
    "half": lambda x: x.half(),
    "double": lambda x: x.double(),
    "bytes": lambda x: x.to(torch.uint8),
    "misaligned": _misaligned,
    "expanded": lambda x: x[..., :1, :].expand(x.shape),
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "zero-size": lambda x: x[..., :0, :],
    "vector": lambda x: x.reshape(-1),
    "freed": _freed,
    "negated": torch._neg_view,
    "a list": lambda x: x.tolist(),
    "a module": lambda x: torch.nn.Linear(2, 2),
    "nothing": lambda x: None,
    "a number": lambda x: 1.5,
}
_TAKES_VALUES = {"ruleless", "fake", "meta", "freed", "a list", "a module", "nothing", "a number", "NumPy", "nested",
                 "nested, jagged", "elsewhere"}  # whose values a reference does not look at


def _execute(x: dict[str, Any], **more: Any) -> Any:
    plain = operands(x["device"])
    made = pg.plan(plain["a"], plain["b"], plain["c"])
    return made.execute(x["a"], x["b"], x["c"], x["out"], **more)


CALLS: dict[str, tuple[Callable[[dict[str, Any]], Any], str, float]] = {
    # call: how, the arguments that it reads, the factor of c
    "matmul": (lambda x: pg.matmul(x["a"], x["b"], out=x["out"]), "a b out", 0.0),
    "matmul, new": (lambda x: pg.matmul(x["a"], x["b"]), "a b", 0.0),
    "gemm": (lambda x: pg.gemm(x["a"], x["b"], x["c"], out=x["out"]), "a b c out", 1.0),
    "gemm, new": (lambda x: pg.gemm(x["a"], x["b"], x["c"]), "a b c", 1.0),
    "emulated": (lambda x: pg.gemm(x["a"], x["b"], x["c"], out=x["out"], precision="emulated"), "a b c out", 1.0),
    "sgemm": (lambda x: pg.sgemm(1.0, x["a"], x["b"], 1.0, x["c"]), "a b c", 1.0),
    "mm": (lambda x: pg.mm(x["a"], x["b"], x["out"]), "a b out", 0.0),
    "addmm": (lambda x: pg.addmm(x["c"], x["a"], x["b"], out=x["out"]), "a b c out", 1.0),
    "bmm": (lambda x: pg.bmm(x["a"], x["b"]), "a b", 0.0),
    "plan": (lambda x: pg.plan(x["a"], x["b"], x["c"], out=x["out"]) and None, "a b c out", 0.0),
    "explain": (lambda x: pg.explain(x["a"], x["b"], x["c"], out=x["out"]) and None, "a b c out", 0.0),
    "prepare": (lambda x: pg.matmul(x["a"], pg.prepare(x["b"])), "b", 0.0),
    "execute": (_execute, "a b c out", 1.0),
    "workspace": (lambda x: _execute(x, workspace=x["workspace"]), "workspace", 1.0),
    "run_rung": (lambda x: pg.run_rung(9, x["a"], x["b"], x["out"]), "a b out", 0.0),
}


def operands(device: str, seed: int = 0) -> dict[str, Any]:
    """Plain ones for every argument, ``out`` full of a sentinel."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"a": (M, K), "b": (K, N), "c": (M, N)}
    arrays: dict[str, Any] = {x: torch.randn(*shape, generator=draw).to(device) for x, shape in shapes.items()}
    return arrays | {"out": torch.full((M, N), SENTINEL, device=device), "workspace": torch.empty(16, 4, device=device),
                     "device": device}


def cases() -> Iterator[tuple[str, str, str]]:
    """Call, argument, kind."""
    for call, (_, arguments, _) in CALLS.items():
        for argument in arguments.split():
            for kind in KINDS:
                yield call, argument, kind


def run(call: str, argument: str, kind: str, device: str) -> str:
    """One call: the right result, or a typed refusal with nothing written. Says which."""
    arrays = operands(device)
    how, _, beta = CALLS[call]
    if call == "bmm":
        arrays["a"], arrays["b"] = arrays["a"][None], arrays["b"][None]
    plain, arrays[argument] = arrays[argument], KINDS[kind](arrays[argument])
    untouched = arrays["out"]
    try:
        result = how(arrays)
    except PeakgemmError as error:
        text = str(error)
        assert len(text) > 20, "says nothing"
        assert argument == "out" or (untouched == SENTINEL).all(), "written before it was refused"
        assert argument != "out" or kind == "freed" or (plain == SENTINEL).all(), "written before it was refused"
        return text
    if result is None or kind in _TAKES_VALUES:
        return "taken"
    want = expected(arrays, beta)
    result = result.inner if isinstance(result, Wrapped) else result
    assert torch.allclose(result.double(), want, rtol=1e-5, atol=1e-5), "wrong"
    return "right"


def expected(arrays: dict[str, Any], beta: float) -> torch.Tensor:
    """In float64, by torch; where that refuses, peakgemm has to as well."""
    a, b, c = ((x.inner if isinstance(x, Wrapped) else x).detach().as_subclass(torch.Tensor).double()
               for x in (arrays["a"], arrays["b"], arrays["c"]))
    return a @ b + beta * c if beta else a @ b

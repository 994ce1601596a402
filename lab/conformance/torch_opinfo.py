"""torch's own descriptions of its operators, OpInfos, run with torch rerouted to peakgemm.

An operator's samples are run three times: by torch in FP64, by torch in FP32, and rerouted. The rerouted result has the
shape and dtype of torch's FP32 result; integers are the same; numbers are off FP64 by at most `FACTOR` times what
torch's own FP32 is, or what ``torch.testing.assert_close`` allows FP32, if that is more. A sample of which torch's
FP32 is off by more than 1e-3, the limit of torch's ``test_compare_cpu``, is not compared.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten

from peakgemm.errors import InvalidValue
from peakgemm.integrations import torch_linalg, torch_use
from peakgemm.integrations.linalg_sizes import Sizes

from .outcomes import Outcome, judged

# Operators whose forward or backward pass calls a product or a function of linear algebra that is rerouted.
OPS = ("__rmatmul__", "addbmm", "addmm", "baddbmm", "bmm", "cdist", "cholesky", "cholesky_inverse",
       "cholesky_solve", "corrcoef", "cov", "einsum", "linalg.cholesky", "linalg.cholesky_ex", "linalg.det",
       "linalg.inv", "linalg.lstsq", "linalg.lu_solve", "linalg.matrix_power", "linalg.multi_dot", "linalg.pinv",
       "linalg.qr", "linalg.slogdet", "linalg.solve", "linalg.solve_triangular", "linalg.tensorsolve",
       "lu_solve", "matmul", "mm", "nn.functional.bilinear", "nn.functional.linear", "tensordot",
       "triangular_solve")
FACTORS = ("cholesky", "cholesky_inverse", "cholesky_solve", "linalg.cholesky", "linalg.cholesky_ex",
           "linalg.solve_triangular", "triangular_solve")
COMPLEX = ("__rmatmul__", "addbmm", "addmm", "baddbmm", "bmm", "einsum", "linalg.matrix_power",
           "linalg.multi_dot", "matmul", "mm", "nn.functional.linear", "tensordot")
FACTOR, RTOL, ATOL = 4, 1.3e-6, 1e-5  # the last two are assert_close's of FP32
LIMIT = 1e-3
EXACT = {torch.float32: torch.float64, torch.complex64: torch.complex128}
Check = Callable[[Any, Any], Any]
Verdict = tuple[list[str], dict[str, int], str]  # reasons, calls, samples that were compared


def plain(op: Any, s: Any) -> Any:
    """The function."""
    result = op.op(s.input, *s.args, **s.kwargs)
    return signed(*result) if op.name == "linalg.qr" else result


def signed(q: Any, r: Any) -> tuple[Any, Any]:
    """Q and R with a positive diagonal of R: their signs are a library's own."""
    diagonal = r.detach().diagonal(dim1=-2, dim2=-1)
    signs = torch.where(diagonal < 0, -torch.ones_like(diagonal), 1)
    signs = torch.nn.functional.pad(signs, (0, r.shape[-2] - signs.shape[-1]), value=1)
    return q * signs[..., None, :] if q.numel() else q, r * signs[..., None]


def noncontiguous(op: Any, s: Any) -> Any:
    """Of operands that are strided."""
    return plain(op, s.noncontiguous())


def method(op: Any, s: Any) -> Any:
    """The tensor's method."""
    return op.method_variant(s.input, *s.args, **s.kwargs)


def in_place(op: Any, s: Any) -> Any:
    """The method that writes its tensor."""
    mine = s.input.clone()
    result = op.inplace_variant(mine, *s.args, **s.kwargs)
    assert result is mine
    return result


def out(op: Any, s: Any, lay: Callable[[Any], Any]) -> Any:
    """Into tensors as ``lay`` makes them for a result."""
    like = plain(op, s)
    outs = [lay(x) for x in ((like,) if isinstance(like, torch.Tensor) else like)]
    result = op.op(s.input, *s.args, **s.kwargs, out=outs[0] if isinstance(like, torch.Tensor) else tuple(outs))
    assert all(x is y for x, y in zip(tensors(result), outs, strict=True))
    return result


def gradients(op: Any, s: Any, order: int = 1) -> Any:
    """Of what requires one, for a fixed cotangent; order 2: of the sum of gradients, weighted again."""
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors((s.input, s.args, s.kwargs))]
    copies = iter(leaves)
    s = s.transform(lambda x: next(copies) if isinstance(x, torch.Tensor) else x)
    asked = [x for x in leaves if x.requires_grad]
    values = [x for x in tensors(s.output_process_fn_grad(plain(op, s))) if x.requires_grad]
    for _ in range(order):
        found = torch.autograd.grad(values, asked, [like(x) for x in values], create_graph=order > 1, allow_unused=True)
        values = [x for x in found if x is not None and (order == 1 or x.requires_grad)]
    return values


def tangents(op: Any, s: Any) -> Any:
    """Forward mode, along a fixed direction."""
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        dual = s.transform(lambda x: forward.make_dual(x.detach(), like(x))
                           if isinstance(x, torch.Tensor) and x.requires_grad else x)
        return [t for t in (forward.unpack_dual(x).tangent for x in tensors(plain(op, dual))) if t is not None]


CHECKS: dict[str, tuple[Check, Callable[[Any], bool]]] = {
    "function": (plain, lambda op: True),
    "noncontiguous": (noncontiguous, lambda op: True),
    "method": (method, lambda op: op.method_variant is not None),
    "in place": (in_place, lambda op: op.inplace_variant is not None),
    "out": (partial(out, lay=lambda x: torch.full_like(x, torch.nan if x.is_floating_point() else -1)),
            lambda op: op.supports_out),
    "out, empty": (partial(out, lay=lambda x: x.new_empty(0)), lambda op: op.supports_out),
    "out, strided": (partial(out, lay=lambda x: x.new_zeros((*x.shape, 2))[..., 1]), lambda op: op.supports_out),
    "gradients": (gradients, lambda op: op.supports_autograd),
    "second gradients": (partial(gradients, order=2), lambda op: op.supports_autograd and op.supports_gradgrad),
    "tangents": (tangents, lambda op: op.supports_forward_ad),
}


def like(x: Any) -> Any:
    """Numbers of the shape of ``x``, always the same, in its dtype."""
    draw = torch.Generator().manual_seed(x.numel())
    dtype = torch.complex64 if x.is_complex() else torch.float32
    return torch.randn(x.shape, generator=draw, dtype=dtype).to(x.device, x.dtype)


def tensors(tree: Any) -> list[Any]:
    """The tensors in it."""
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def exactly(sample: Any) -> Any:
    """The sample in FP64 on the CPU."""
    return sample.transform(lambda x: x.detach().to("cpu", EXACT.get(x.dtype, x.dtype)).requires_grad_(x.requires_grad)
                            if isinstance(x, torch.Tensor) else EXACT.get(x, x))


class Sample(NamedTuple):
    """What came of one: why it failed, if it did; whether there was something to compare."""

    reason: str = ""
    compared: bool = True


def compare(got: Any, theirs: Any, exact: Any) -> Sample:
    """A rerouted result beside torch's FP32 and FP64."""
    triples = list(zip(tensors(got), tensors(theirs), tensors(exact), strict=True))
    for x, y, _ in triples:
        if (x.shape, x.dtype, x.device) != (y.shape, y.dtype, y.device):
            return Sample(f"{tuple(x.shape)} {x.dtype}, torch {tuple(y.shape)} {y.dtype}")
    floats = [each for each in triples if each[1].dtype in EXACT]
    if not all(torch.allclose(y.cpu(), z.to(y.dtype), LIMIT, LIMIT, equal_nan=True) for _, y, z in floats):
        return Sample(compared=False)
    for x, y, z in triples:
        if y.dtype not in EXACT:
            if not torch.equal(x, y):
                return Sample(f"{x.tolist()}, torch {y.tolist()}")
        elif not (off := excess(x, z)) <= (allowed := FACTOR * max(1.0, excess(y, z))):
            return Sample(f"off by {off:.3g} of what assert_close allows, where {allowed:.3g} are allowed")
    return Sample()


def excess(x: Any, exact: Any) -> float:
    """The largest error, of what ``assert_close`` allows; infinity where one is NaN or infinite and the other not."""
    x = x.detach().cpu().to(exact.dtype)
    same = (x == exact) | (x.isnan() & exact.isnan())
    off = torch.where(same, 0.0, ((x - exact).abs() / (ATOL + RTOL * exact.abs())).nan_to_num(torch.inf))
    return float(off.max()) if off.numel() else 0.0


def run_check(op: Any, check: Check, samples: list[Any], block: Any) -> Verdict:
    """Why it failed, sample by sample, and the calls that peakgemm ran."""
    reasons, calls, compared = [], Counter[str](), 0
    for i, sample in enumerate(samples):
        try:
            theirs, exact = check(op, sample), check(op, exactly(sample))
        except Exception:  # torch does not have it for these arguments
            continue
        try:
            with block as ran:
                before = ran.calls.copy()
                got = check(op, sample)
                calls.update(ran.calls - before)
            found = compare(got, theirs, exact)
        except Exception as error:  # torch ran the same
            found = Sample(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        compared += found.compared
        if found.reason:
            reasons.append(f"sample {i}: {found.reason}")
    return reasons, dict(calls), f"{compared} of {len(samples)}"


def run_errors(op: Any, device: str, block: Any) -> Verdict:
    """What has to be refused, and is not, or in other words than torch's. A fallback is the rule here."""
    reasons, calls = [], Counter[str]()
    errors = list(op.error_inputs(device))
    for error in errors:
        s = error.sample_input
        with block as ran:
            before = ran.calls + ran.fallbacks
            try:
                op.op(s.input, *s.args, **s.kwargs)
                reasons.append(f"not refused: {error.error_regex}")
            except error.error_type as refused:
                if not re.search(error.error_regex, str(refused)):
                    reasons.append(f"{refused}, not {error.error_regex}")
            except Exception as other:
                reasons.append(f"{type(other).__name__}, not {error.error_type.__name__}")
            calls.update((ran.calls + ran.fallbacks) - before)
    return reasons, dict(calls), f"{len(errors)} of {len(errors)}"


def all_sizes() -> None:
    """Let peakgemm take what torch is faster at, too."""
    torch_linalg.FASTER = dict.fromkeys(torch_linalg.FASTER, Sizes(1, 1, 1, 1, 1))


def run(precision: str, on_gpu: bool, products: bool = True, part: int = 0, parts: int = 1) -> Iterator[Outcome]:
    """Every check of every operator, or of one in so many; without ``products`` torch computes those, and what is of
    them alone is left out."""
    all_sizes()
    device, key = ("cuda", "CUDA") if on_gpu else ("cpu", "CPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    warnings.filterwarnings("ignore", module="torch")
    names = OPS if products else FACTORS
    for op in [op for op in op_db if op.name in names and op.supports_dtype(torch.float32, device)][part::parts]:
        for dtype in (torch.float32, torch.complex64) if op.name in COMPLEX else (torch.float32,):
            torch.manual_seed(0)
            samples = list(op.sample_inputs(device, dtype, requires_grad=op.supports_autograd))
            block = torch_use.Use(precision, key, torch_use._run if products else left_to_torch, linalg=True)
            for name, (check, has) in CHECKS.items():
                if has(op):
                    test = f"{op.formatted_name}, {name}, {str(dtype)[6:]}, {precision}"
                    given = samples if "grad" in name or name == "tangents" else [_detached(s) for s in samples]
                    yield judged("torch OpInfo", test, *run_check(op, check, given, block))
            if op.error_inputs_func is not None and dtype is torch.float32:
                yield judged("torch OpInfo", f"{op.formatted_name}, errors, {precision}",
                             *run_errors(op, device, block))


def left_to_torch(call: Any, precision: str) -> Any:
    """For `torch_use.Use`: no product is peakgemm's."""
    raise InvalidValue("a product")


def _detached(sample: Any) -> Any:
    return sample.transform(lambda x: x.detach() if isinstance(x, torch.Tensor) else x)

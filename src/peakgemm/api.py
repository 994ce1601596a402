"""The public calls. Each checks its own arguments, then goes the shortest way that its arrays allow."""

from __future__ import annotations

import sys
from typing import Any

from .arrays import admit, locate
from .arrays.base import HOST, is_complex, is_traced
from .calls.plan import Explanation, Plan, multiply
from .calls.prepared import Prepared
from .calls.request import ALWAYS_REPRODUCIBLE, REPRODUCIBLE, Request, check_precision, flag, scales
from .errors import InvalidType, InvalidValue


def matmul(a: Any, b: Any, *, out: Any = None, precision: str = "ieee", reproducible: bool | None = None,
           stream: Any = None, devices: Any = None, certify: bool = False) -> Any:
    """``a b``, by the rules of the array API's ``matmul``, in IEEE float32.

    Args:
        a: float32, ``(..., M, K)`` or ``(K,)``; or complex64, as all arrays of the call (docs/arrays.md).
        b: float32, ``(..., K, N)`` or ``(K,)``, or what `prepare` made of it. Batch dimensions broadcast; a 1-D operand
            is a row (a) or a column (b), and its dimension is dropped from the result.
        out: written, where given: of the result's shape, any strides, no memory shared with an operand.
        precision: ``"ieee"``: FFMA arithmetic, nothing else. ``"emulated"``: on tensor cores where that is faster and
            the operands allow it, which is decided on the device, else FFMA; docs/accuracy.md has the bounds of both.
            ``"fp16x3"``, ``"tf32x3"``, ``"bf16x9"``: that scheme on tensor cores, with the same guard.
            `explain` says what runs. ``"emulated-3m"``, of complex64: ``"emulated"`` by three real products, not four.
        reproducible: every element is one chain of FMAs over k = 0 ... K - 1, so that its bits depend on its row of
            ``a``, its column of ``b`` and nothing else: docs/reproducible.md. None: as ``PEAKGEMM_REPRODUCIBLE`` says.
        stream: a torch, CuPy or cuda.core stream, a ``CUstream`` as an integer, or anything with ``__cuda_stream__``;
            None: the library's current stream of the arrays' device.
        devices: of arrays in the host's memory, on which GPUs: ``"all"``, an index, or several; without a GPU ``"all"``
            is NumPy. None: the current one. The result has the same bits on several GPUs of a kind.
        certify: whether to check the product as well: docs/certificate.md. Not of complex64.

    Returns:
        ``out``, or a new packed array of the operands' library on their device. On the GPU the product is enqueued, not
        waited for; NumPy's and CPU tensors' results are ready. With ``certify`` a named tuple of that, ``product``, and
        its ``certificate``, of which the same holds.

    Raises:
        InvalidType: not float32, no arrays, arrays of different libraries, or a ``reproducible`` that is no bool.
        InvalidValue: shapes that do not match, different devices, an ``out`` that overlaps an operand, is read-only or
            has another shape, a precision that there is not, a scheme that the GPU has no kernels for, or one with
            ``reproducible``.
        MissingComponent, CompileFailed, LaunchFailed: the GPU, its driver or the compiler.
        OutOfMemory: the GPU has no room for the operands that tensor cores need split; the message says how many bytes.
            It is the array library's own out-of-memory error, too. An IEEE product that finds no room for partial sums
            does without, slower.
    """
    if certify:
        return _certified(a, b, out=out, precision=precision, reproducible=reproducible, stream=stream, devices=devices)
    if is_complex(a):
        return _complex(a, b, out=out, precision=precision, reproducible=reproducible, stream=stream, devices=devices)
    if precision != "ieee" or reproducible is not None or ALWAYS_REPRODUCIBLE:
        precision = check_precision(precision, reproducible)
    torch = _seen_torch or _look_for_torch(a)
    if torch is not None and isinstance(a, torch.Tensor):
        return _torch(torch, a, b, None, 1.0, None, out, stream, precision=precision, devices=devices, plain=True)
    return _any(Request(a, b, out=out, precision=precision), stream, devices)


def gemm(a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = None, trans_a: bool = False,
         trans_b: bool = False, out: Any = None, precision: str = "ieee", reproducible: bool | None = None,
         stream: Any = None, devices: Any = None) -> Any:
    """``alpha op(a) op(b) + beta c``, ``op`` transposing the last two dimensions where asked.

    Args:
        a, b: as for `matmul`, of two dimensions or more.
        c: float32, broadcastable to the result ``(..., M, N)``; not read where ``beta`` is 0.
        alpha, beta: real numbers, rounded to float32, -0.0 to 0.0; complex ones of complex64 arrays. ``beta`` None: 1
            where ``c`` is given, else 0. With ``alpha`` 0 neither ``a`` nor ``b`` is read, as in BLAS: a NaN there does
            not reach the result.
        trans_a, trans_b: ``a`` is stored ``(..., K, M)``, ``b`` ``(..., N, K)``; no copy is made. A bool, 0 or 1, or
            BLAS's letters ``"N"``, ``"T"`` and ``"C"``, which also conjugates.
        out: as for `matmul`; it may be ``c`` itself (update in place), and shares no other memory with it.
        precision, reproducible, stream, devices: as for `matmul`.

    Returns, raises:
        As `matmul`; also InvalidValue where ``beta`` is not 0 and there is no ``c``.
    """
    try:
        if a.ndim < 2 or b.ndim < 2:  # under torch.jit.trace and torch.func to read a shape may crash
            name, shape = ("a", a.shape) if a.ndim < 2 else ("b", b.shape)
            raise InvalidValue(f"{name} has shape {tuple(shape)}; gemm wants matrices: use matmul, or add a dimension")
    except (AttributeError, TypeError, RuntimeError):  # no array: refused by name below
        pass
    if is_complex(a):
        return _complex(a, b, c, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b, out=out, precision=precision,
                        reproducible=reproducible, stream=stream, devices=devices)
    if precision != "ieee" or reproducible is not None or ALWAYS_REPRODUCIBLE:
        precision = check_precision(precision, reproducible)
    if not (trans_a is False and trans_b is False):
        trans_a, trans_b = flag(trans_a, "trans_a"), flag(trans_b, "trans_b")
    torch = _seen_torch or _look_for_torch(a)
    if torch is not None and isinstance(a, torch.Tensor):
        return _torch(torch, a, b, c, alpha, beta, out, stream, trans_a, trans_b, precision, devices)
    alpha, beta = scales(alpha, beta, c)
    return _any(Request(a, b, c, out, alpha, beta, trans_a, trans_b, precision), stream, devices)


def sgemm(alpha: Any, a: Any, b: Any, beta: Any = 0.0, c: Any = None, trans_a: int = 0, trans_b: int = 0,
          overwrite_c: int = 0) -> Any:
    """``alpha op(a) op(b) + beta c`` with the signature of ``scipy.linalg.blas.sgemm``, for arrays of any library.

    Args:
        alpha, beta: real numbers. ``beta`` is 0 by default, also with ``c``, as in SciPy.
        a, b: float32 matrices, ``(M, K)`` and ``(K, N)`` after ``op``.
        c: ``(M, N)``; without it a matrix of zeros is meant.
        trans_a, trans_b: 0, or 1 or 2 to transpose (the conjugate of a real matrix is itself); or as for `gemm`.
        overwrite_c: the result goes into ``c``. In SciPy that is an allowance; here it is done, or refused with an
            error where ``c`` cannot be written.

    Returns:
        ``c``, or a new matrix, row-major where SciPy's is column-major.

    Raises:
        As `gemm`; also InvalidValue for another ``trans`` or operands of other than two dimensions.
    """
    first, second = (True if trans == 2 and type(trans) is int else flag(trans, name)
                     for name, trans in (("trans_a", trans_a), ("trans_b", trans_b)))
    of_a, of_b = _shape(a, "a", 2, "sgemm"), _shape(b, "b", 2, "sgemm")
    if is_complex(a):
        raise InvalidType("a is complex; sgemm multiplies real matrices: use gemm, which takes complex64")
    if c is None:
        return gemm(a, b, alpha=alpha, trans_a=first, trans_b=second)
    want = (of_a[1] if first else of_a[0], of_b[0] if second else of_b[1])
    if _shape(c, "c", 2, "sgemm") != want:
        raise InvalidValue(f"c has shape {tuple(c.shape)}, the result has {want}; pass a c of that shape")
    return gemm(a, b, c, alpha=alpha, beta=beta, trans_a=first, trans_b=second,
                out=c if flag(overwrite_c, "overwrite_c") else None)


def mm(a: Any, b: Any, out: Any = None) -> Any:
    """``torch.mm``: the product of two matrices ``(M, K)`` and ``(K, N)``; no broadcast.

    Raises:
        As `matmul`; also InvalidValue for other than two dimensions.
    """
    _shape(a, "a", 2, "mm")
    _shape(b, "b", 2, "mm")
    return matmul(a, b, out=out)


def addmm(input: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None) -> Any:
    """``torch.addmm``: ``beta input + alpha a b``; ``input`` broadcasts to ``(M, N)``, not read where ``beta`` is 0.

    Raises:
        As `gemm`; also InvalidValue for other than two dimensions.
    """
    _shape(a, "a", 2, "addmm")
    _shape(b, "b", 2, "addmm")
    return gemm(a, b, input, alpha=alpha, beta=beta, out=out)


def bmm(a: Any, b: Any, out: Any = None) -> Any:
    """``torch.bmm``: products of matrices of two batches ``(B, M, K)`` and ``(B, K, N)``; no broadcast.

    Raises:
        As `matmul`; also InvalidValue for other than three dimensions or batches of different sizes.
    """
    of_a, of_b = _shape(a, "a", 3, "bmm"), _shape(b, "b", 3, "bmm")
    if of_a[0] != of_b[0]:
        raise InvalidValue(f"a {of_a} and b {of_b} have batches of {of_a[0]} and {of_b[0]}; bmm does not broadcast: "
                           "use matmul")
    return matmul(a, b, out=out)


def plan(a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = None, trans_a: bool = False,
         trans_b: bool = False, out: Any = None, precision: str = "ieee", reproducible: bool | None = None) -> Plan:
    """Decide a product once, compile its kernel, and run it many times with `Plan.execute`.

    Args:
        a, b, c, out: example operands, as for `gemm` (1-D ones too): their shapes, strides, device and alignment are
            planned for, their values are not looked at. ``out`` None: a packed row-major one.
        alpha, beta, trans_a, trans_b, precision, reproducible: as for `gemm`.

    Raises:
        As `gemm`.
    """
    precision = check_precision(precision, reproducible)
    request = _request(a, b, c, alpha, beta, trans_a, trans_b, out, precision)
    torch = _seen_torch or _look_for_torch(a)
    if torch is not None and isinstance(a, torch.Tensor):
        made: Plan = (_eager or _load_eager()).TorchPlan(request)
        return made
    return Plan(request)


def explain(a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = None, trans_a: bool = False,
            trans_b: bool = False, out: Any = None, precision: str = "ieee",
            reproducible: bool | None = None) -> Explanation:
    """Which kernel `gemm` or `matmul` would run on these operands, where, and why. Nothing is compiled or run.

    Args and errors are those of `plan`. ``print`` it, or read its fields.
    """
    precision = check_precision(precision, reproducible)
    return Plan(_request(a, b, c, alpha, beta, trans_a, trans_b, out, precision), explain_only=True).explain()


def replay(a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = None, trans_a: bool = False,
           trans_b: bool = False) -> Any:
    """`gemm` with ``reproducible=True`` on the CPU, bit for bit what every GPU gives: exact FMAs, some 200 million a
    second.

    Args:
        a, b, c, alpha, beta, trans_a, trans_b: as for `gemm` and `matmul`; arrays in the host's memory. Rows of ``a``
            and columns of ``b`` may be left out: each element depends on one of each.

    Returns:
        A new packed array of the operands' library.

    Raises:
        InvalidType, InvalidValue: as `gemm`; or arrays on a GPU.
    """
    request = _request(a, b, c, alpha, beta, trans_a, trans_b, None, REPRODUCIBLE)
    library, index = locate(request.arrays())
    if index != HOST:
        raise InvalidValue(f"replay runs on the CPU, a is on GPU {index}; copy the operands to the host")
    from .calls.host import products

    if library.name == "torch":
        _load_eager().refuse_gradients(request.arrays(), "replay")
    return products.on_cpu(library, request)


def prepare(b: Any, *, precision: str = "ieee", trans_b: bool = False,
            reproducible: bool | None = None) -> Prepared:
    """Make a constant right operand ready once: pass the result as ``b`` to `matmul`, `gemm` or `plan`.

    An array on the GPU whose strides no kernel takes is copied now, rather than in each product; one in the host's
    memory is put on the current GPU, if there is one. With ``"emulated"`` or a scheme a matrix on the GPU is split now,
    on the current stream: `matmul` and `gemm` with that precision and ``trans_b`` no longer split it, unless a kernel
    that splits it on the way is faster than one that reads it split; a plan does. ``b`` must not change afterwards.
    ``a @ prepare(b)`` is the product of that ``precision`` and ``trans_b``.

    Raises:
        As `matmul`.
    """
    precision = check_precision(precision, reproducible)
    return Prepared(b, _by_prepared, precision, trans_b)


def _by_prepared(a: Any, prepared: Prepared, *, precision: str, trans_b: bool) -> Any:
    """``a @ prepared``."""
    if trans_b:
        return gemm(a, prepared, trans_b=True, precision=precision)
    return matmul(a, prepared, precision=precision)


def _shape(x: Any, name: str, rank: int, call: str) -> tuple[int, ...]:
    """The shape of ``x``, which ``call`` wants with ``rank`` dimensions; what has none is refused at the door."""
    try:
        shape = tuple(x.shape)
    except (AttributeError, TypeError, RuntimeError):
        admit(x, name)
        raise
    if len(shape) != rank:
        raise InvalidValue(f"{name} has shape {shape}; {call} wants {rank} dimensions: use matmul or gemm")
    return shape


def _request(a: Any, b: Any, c: Any, alpha: Any, beta: Any, trans_a: bool, trans_b: bool, out: Any,
             precision: str) -> Request:
    alpha, beta = scales(alpha, beta, c)
    return Request(a, b.array if isinstance(b, Prepared) else b, c, out, alpha, beta, flag(trans_a, "trans_a"),
                   flag(trans_b, "trans_b"), precision)


def _complex(*arrays: Any, **options: Any) -> Any:
    from .linalg.complex import gemm as complex_gemm

    return complex_gemm(gemm, *arrays, **options)


def _certified(a: Any, b: Any, *, precision: str, reproducible: bool | None, stream: Any, **options: Any) -> Any:
    """`matmul`, and a certificate of its result."""
    from .certificate import Certified, certify

    if is_complex(a):
        raise InvalidType("a is complex, and certify checks float32 products; leave certify out")
    torch = _look_for_torch(a)
    if torch is not None and torch.compiler.is_compiling():  # which cannot trace NumPy's part
        certify = torch.compiler.disable(certify)
    product = matmul(a, b, precision=precision, reproducible=reproducible, stream=stream, **options)
    precision = check_precision(precision, reproducible)
    return Certified(product, certify(a, b, product, precision=precision, stream=stream))


def _any(request: Request, stream: Any, devices: Any) -> Any:
    """Arrays of any library but torch: values that JAX traces have no memory yet, all others are multiplied here."""
    if not is_traced(request[:3]):
        return multiply(request, stream, devices)
    for name, given in (("stream", stream), ("out", request.out), ("devices", devices)):
        if given is not None:
            raise InvalidValue(f"{name} was given for JAX arrays under jit, grad or vmap, where XLA places results and "
                               "work; leave it out")
    from .integrations import jax_primitive

    r = request.b.given_to(request) if isinstance(request.b, Prepared) else request
    return jax_primitive.multiply(r.a, r.b, r.c, r.alpha, r.beta, r.trans_a, r.trans_b, r.precision)


def _torch(torch: Any, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any, stream: Any,
           trans_a: bool = False, trans_b: bool = False, precision: str = "ieee", devices: Any = None,
           plain: bool = False) -> Any:
    """torch tensors: traced, differentiated, or straight to the kernel. ``plain``: of matmul."""
    if devices is not None:
        alpha, beta = scales(alpha, beta, c)
        return _load_eager().on_devices(Request(a, b, c, out, alpha, beta, trans_a, trans_b, precision), stream,
                                        devices)
    ready = None
    if isinstance(b, Prepared):
        ready, b = b.split_for(precision, trans_b), b.array
    eager = None if torch.compiler.is_dynamo_compiling() else _eager or _load_eager()
    tensor = torch.Tensor
    if (eager is None or (type(a) is not tensor and _is_special(torch, a))
            or (type(b) is not tensor and _is_special(torch, b))
            or (c is not None and type(c) is not tensor and _is_special(torch, c))
            or (out is not None and type(out) is not tensor and _is_special(torch, out)) or eager.modes()
            or eager.tracing() or (eager.function_modes() and eager.is_recorded())):
        if stream is not None:
            raise InvalidValue("stream is lost where torch's dispatcher runs the call (under torch.compile, in a "
                               "dispatch mode, while a tracer records, or of a tensor subclass); leave it out")
        from .integrations.torch_dispatch import dispatched

        return dispatched(a, b, c, alpha, beta, trans_a, trans_b, out, precision)
    try:
        differentiated = (((a.requires_grad or b.requires_grad or (c is not None and c.requires_grad)
                            or (out is not None and out.requires_grad)) and torch.is_grad_enabled())
                          or eager.forward._current_level >= 0 or eager.transforms_active())
    except AttributeError:  # not all are tensors: refused below
        differentiated = False
    if differentiated:
        from .integrations.torch_dispatch import differentiable

        return differentiable(a, b, c, alpha, beta, trans_a, trans_b, out, precision, stream)
    if plain and out is None and stream is None and precision == "ieee":
        return eager.product(a, b)
    return eager.run(a, b, c, alpha=alpha, beta=beta, out=out, stream=stream, trans_a=trans_a, trans_b=trans_b,
                     precision=precision, ready=ready)


def _is_special(torch: Any, x: Any) -> bool:
    """A subclass, fake or distributed say, which torch's dispatcher has to see."""
    return type(x) is not torch.nn.Parameter and isinstance(x, torch.Tensor) and type(x) is not torch.Tensor


def _refuse_script() -> Any:
    raise InvalidType("torch.jit.script cannot compile peakgemm's calls; write torch.ops.peakgemm.gemm(a, b, c, alpha, "
                      "beta, precision) there, after import peakgemm.integrations.torch_ops, or use torch.compile or "
                      "torch.jit.trace")


for _call in (matmul, gemm, sgemm, mm, addmm, bmm, plan, explain, replay, prepare):
    vars(_call)["__prepare_scriptable__"] = _refuse_script  # what torch.jit.script asks each function for

_seen_torch: Any = sys.modules.get("torch")  # torch, once one of its tensors has come


def _look_for_torch(a: Any) -> Any:
    """torch, where ``a`` looks like a tensor of it.

    Not by sys.modules: torch.compile traces this, would wrap every module there is, and fails where one of them imports
    others when it is looked at. Nor does it remember under torch.compile, whose code would be stale at once.
    """
    global _seen_torch
    if not hasattr(a, "requires_grad"):
        return None
    import torch

    if not torch.compiler.is_compiling():
        _seen_torch = torch
    return torch


_eager: Any = None  # the module, once torch tensors have come: an import statement would cost each call 0.3 us


def _load_eager() -> Any:
    global _eager
    from .calls import eager

    _eager = eager
    return eager

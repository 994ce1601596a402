"""Contractions of several arrays: `einsum`, `tensordot`, `dot`, `vecdot` and `multi_dot`.

opt_einsum says in which order pairs are contracted. A pair is one batched `peakgemm.matmul`: labels of both arrays that
stay are its batch, labels that are summed its K, those of one array its rows or columns. Dimensions of a group are
merged in the order of their strides, so that ``reshape`` gives views wherever there are any. A pair without a sum is
a product element by element, which the array library computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from math import prod
from operator import methodcaller, mul
from typing import Any, NamedTuple

from .api import matmul
from .arrays import library_of, locate
from .arrays.base import check_dtype
from .calls.request import check_precision
from .errors import InvalidType, InvalidValue

__all__ = ["dot", "einsum", "multi_dot", "tensordot", "vecdot"]

Multiply = Callable[..., Any]
Step = tuple[Callable[..., Any], tuple[int, ...]]
_LIMIT = 1024  # contractions whose steps are kept
_known: dict[Any, list[Step | None]] = {}
_EXACT = 30  # matrices of `multi_dot` whose order is the best one


class Term(NamedTuple):
    """An array, and a label for each of its dimensions: none has one element.

    ``steps`` is common to all terms of a contraction: what makes the array of each place from those of others, which
    are not used again. The operands' places come first.
    """

    array: Any
    labels: str
    place: int
    steps: list[Step | None]

    def then(self, function: Callable[..., Any], labels: str, *others: Term) -> Term:
        """What ``function`` makes of the arrays."""
        self.steps.append((function, (self.place, *(x.place for x in others))))
        return Term(function(self.array, *(x.array for x in others)), labels, len(self.steps) - 1, self.steps)


def einsum(subscripts: Any, *operands: Any, out: Any = None, optimize: Any = "auto", precision: str = "ieee",
           reproducible: bool | None = None) -> Any:
    """``numpy.einsum`` by peakgemm's products: ``einsum("bij,bjk->bik", a, b)``.

    Args:
        subscripts: as NumPy takes them, with ``...``, repeated labels and an implied result; or arrays and lists of
            labels in turn.
        operands: torch, CuPy, JAX or NumPy arrays, all float32 or all complex64. Dimensions of one element broadcast.
        out: written, where given: of the result's shape.
        optimize: which pairs are contracted first: a strategy of ``opt_einsum.contract``, or a path.
        precision, reproducible: as for `matmul`, for each product in turn.

    Returns:
        ``out``, or a new array or a view of one; of a single operand a view of it, where no sum is asked for.

    Raises:
        InvalidType, InvalidValue: as `matmul`; subscripts that are malformed or do not match the shapes.
    """
    key = _key_of(subscripts, operands, optimize, precision, reproducible) if out is None else None
    if (steps := _known.get(key)) is not None:
        return _repeated(steps, operands)
    from opt_einsum.parser import convert_interleaved_input

    try:
        if not isinstance(subscripts, str):
            subscripts, operands = convert_interleaved_input((subscripts, *operands))
        multiply = _checked(operands, out, precision, reproducible)
        # Of one pair the order is known; sizes stay out of it, for torch.compile(dynamic=True) and for the cache.
        shapes = tuple((2,) * x.ndim if len(operands) < 3 else tuple(map(int, x.shape)) for x in operands)
        if isinstance(optimize, Sequence) and optimize[:1] == ["einsum_path"]:  # numpy.einsum_path's
            optimize = optimize[1:]
        path = optimize if isinstance(optimize, str) or callable(optimize) else (
            tuple(map(tuple, optimize)) if isinstance(optimize, Sequence) else bool(optimize))
        inputs, output, order = _plan_of(subscripts, shapes, path)
    except (InvalidType, InvalidValue):
        raise
    except (IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidValue(f"einsum of {subscripts!r}, optimize={optimize!r}: {error}; write both as for numpy.einsum"
                           ) from None
    return _contract(operands, inputs, output, order, multiply, out, key)


def tensordot(a: Any, b: Any, axes: Any = 2, *, out: Any = None, precision: str = "ieee",
              reproducible: bool | None = None) -> Any:
    """``numpy.tensordot``: the sum over the last ``axes`` dimensions of ``a`` and the first of ``b``, or over the
    dimensions that ``axes`` lists of each.

    Args and errors are those of `einsum`; InvalidValue also for dimensions that are not there or differ.
    """
    multiply = _checked((a, b), out, precision, reproducible)
    try:
        of_a, of_b = (range(a.ndim - axes, a.ndim), range(axes)) if isinstance(axes, int) else (
            [x] if isinstance(x, int) else list(x) for x in axes)
        of_a, of_b = ([range(x.ndim)[axis] for axis in some] for x, some in ((a, of_a), (b, of_b)))
    except (IndexError, TypeError, ValueError):
        raise InvalidValue(f"axes = {axes!r} of arrays of {a.ndim} and {b.ndim} dimensions; pass a number, or a list "
                           "of dimensions of a and one of b") from None
    if [a.shape[i] for i in of_a] != [b.shape[i] for i in of_b] or len({*of_a}) < len(of_a) or len({*of_b}) < len(of_b):
        raise InvalidValue(f"the sum over dimensions {of_a} of a {tuple(a.shape)} and {of_b} of b {tuple(b.shape)}; "
                           "they must be distinct and of equal sizes")
    key = None if out is not None else _key_of((*of_a, -1, *of_b), (a, b), precision, reproducible)
    if (steps := _known.get(key)) is not None:
        return _repeated(steps, (a, b))
    left, right = list(_letters(a.ndim)), list(_letters(b.ndim, a.ndim))
    for i, j in zip(of_a, of_b, strict=True):
        right[j] = left[i]
    kept = [x for i, x in enumerate(left) if i not in of_a] + [x for j, x in enumerate(right) if j not in of_b]
    return _contract((a, b), ("".join(left), "".join(right)), "".join(kept), ((0, 1),), multiply, out, key)


def dot(a: Any, b: Any, *, out: Any = None, precision: str = "ieee", reproducible: bool | None = None) -> Any:
    """``numpy.dot``: the sum over the last dimension of ``a`` and the last but one of ``b``, or its only one.

    Args and errors are those of `einsum`.
    """
    _checked((a, b), out, precision, reproducible)
    axes = ([], []) if 0 in (a.ndim, b.ndim) else (-1, max(b.ndim - 2, 0))
    return tensordot(a, b, axes, out=out, precision=precision, reproducible=reproducible)


def vecdot(a: Any, b: Any, *, axis: int = -1, precision: str = "ieee", reproducible: bool | None = None) -> Any:
    """The array API's ``vecdot``: the sum of ``conj(a) b`` over ``axis``; the other dimensions broadcast.

    Args and errors are those of `einsum`.
    """
    _checked((a, b), None, precision, reproducible)
    if not all(-x.ndim <= axis < 0 for x in (a, b)) or a.shape[axis] != b.shape[axis]:
        raise InvalidValue(f"vecdot of a {tuple(a.shape)} and b {tuple(b.shape)} over axis = {axis}; both must have as "
                           "many elements there, counted from the last dimension, which is -1")
    terms = f"...{_letters(-axis)},...{_letters(-axis)}->...{_letters(-axis - 1, 1)}"
    return einsum(terms, a.conj() if "complex" in str(a.dtype) else a, b, precision=precision,
                  reproducible=reproducible)


def multi_dot(arrays: Sequence[Any], *, out: Any = None, precision: str = "ieee",
              reproducible: bool | None = None) -> Any:
    """See `peakgemm.linalg.multi_dot`."""
    if len(arrays) < 2:
        raise InvalidValue(f"multi_dot of {len(arrays)} array; pass two or more")
    _checked(arrays, out, precision, reproducible)
    shapes = [tuple(x.shape) for x in arrays]
    if any(len(x) != 2 for x in shapes[1:-1]) or not {len(shapes[0]), len(shapes[-1])} <= {1, 2} or any(
            x[-1] != y[0] for x, y in pairwise(shapes)):
        raise InvalidValue(f"multi_dot of arrays of shapes {shapes}; pass matrices of which each has as many columns "
                           "as the next one rows; the first and the last may have one dimension")
    names = _letters(len(arrays) + 1)
    terms = [names[i:i + 2] for i in range(len(arrays))]
    terms[0], terms[-1] = terms[0][2 - len(shapes[0]):], terms[-1][:len(shapes[-1])]
    kept = terms[0][:-1] + terms[-1][1:]
    # The best order takes long to find for many, and none is found where nothing is to be summed.
    order = "dp" if len(arrays) <= _EXACT and all(map(prod, shapes)) else "greedy"
    return einsum(f"{','.join(terms)}->{kept}", *arrays, out=out, optimize=order, precision=precision,
                  reproducible=reproducible)


def _letters(count: int, start: int = 0) -> str:
    from opt_einsum import get_symbol

    return "".join(get_symbol(start + i) for i in range(count))


def _checked(operands: Sequence[Any], out: Any, precision: str, reproducible: bool | None) -> Multiply:
    """What multiplies two matrices.

    Raises:
        InvalidType, InvalidValue: operands of several libraries or of a dtype that is not multiplied, an ``out`` that
            cannot be written, or a precision that there is not.
    """
    check_precision("emulated" if precision == "emulated-3m" else precision, reproducible)
    dtype = "complex64" if "complex" in str(getattr(operands[0], "dtype", "")) else "float32"
    named = {f"operand {i}": x for i, x in enumerate(operands)}
    if out is not None:
        locate({**named, "out": out}, dtype)
    libraries = {"torch" if hasattr(x, "requires_grad") else library_of(x, name).name for name, x in named.items()}
    if len(libraries) > 1:
        raise InvalidType(f"operands are arrays of {' and '.join(sorted(libraries))}; convert some, so that all are of "
                          "one library")
    for name, x in named.items():
        check_dtype(str(x.dtype).removeprefix("torch."), name, dtype)
    if out is not None and libraries == {"torch"}:
        from .calls import eager

        eager.refuse_gradients({**named, "out": out}, "a contraction with out", "it without out")
    return partial(matmul, precision=precision, reproducible=reproducible)


def _plan_of(subscripts: str, shapes: tuple[tuple[int, ...], ...], optimize: Any) -> Any:
    return _planned(subscripts, shapes, optimize)


vars(_plan_of)["_dynamo_marked_constant"] = True  # torch.compiler.assume_constant_result, without importing torch


@lru_cache(1024)
def _planned(subscripts: str, shapes: tuple[tuple[int, ...], ...], optimize: Any) -> tuple[tuple[str, ...], str, Any]:
    """The labels of each operand, those of the result, and which terms are contracted one after the other."""
    from opt_einsum import contract_path
    from opt_einsum.parser import parse_einsum_input

    inputs, output, _ = parse_einsum_input((subscripts, *shapes), shapes=True)
    path, _ = contract_path(f"{inputs}->{output}", *shapes, shapes=True, optimize=optimize)
    left = len(shapes)
    for chosen in path:
        if len({*chosen}) < len(chosen) or not all(0 <= i < left for i in chosen):
            raise ValueError(f"the path takes terms {tuple(chosen)} of {left}")
        left -= len(chosen) - 1
    return tuple(inputs.split(",")), output, tuple(path)


def _key_of(subscripts: Any, operands: Sequence[Any], *options: Any) -> Any:
    """What says which steps a contraction takes, and that its arguments have been checked; None where the steps may be
    others the next time."""
    try:
        is_torch = hasattr(operands[0], "requires_grad")
        if is_torch:
            import torch  # not by sys.modules, which torch.compile would trace

            if torch.compiler.is_compiling():
                return None
        key = (subscripts, options, *((type(x), x.dtype, tuple(x.shape), x.stride() if is_torch else
                                       getattr(x, "strides", None)) for x in operands))
        hash(key)  # no lists of labels
        return key if all(type(size) is int for x in operands for size in x.shape) else None  # others are symbolic
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None


def _repeated(steps: list[Step | None], operands: Sequence[Any]) -> Any:
    """The result of a contraction by ``steps``; what has been used is let go."""
    arrays = dict(enumerate(operands))
    for place in range(len(operands), len(steps)):
        function, sources = steps[place]  # type: ignore[misc]  # None of operands alone
        arrays[place] = function(*[arrays.pop(source) for source in sources])
    return arrays[len(steps) - 1]


def _contract(operands: Sequence[Any], inputs: Sequence[str], output: str, path: Any, multiply: Multiply,
              out: Any, key: Any = None) -> Any:
    sizes: dict[str, int] = {}
    for i, (x, labels) in enumerate(zip(operands, inputs, strict=True)):
        for label, size in zip(labels, x.shape, strict=True):
            if size != x.shape[labels.index(label)]:
                raise InvalidValue(f"operand {i} has shape {tuple(x.shape)} for {labels!r}; dimensions of one label "
                                   "must be equal within an operand")
            if sizes.setdefault(label, size) != size and 1 not in (size, sizes[label]):
                shapes = ", ".join(str(tuple(x.shape)) for x in operands)
                raise InvalidValue(f"{','.join(inputs)} of shapes {shapes}: {label!r} has sizes {sizes[label]} and "
                                   f"{size}; they must be equal, or 1")
            sizes[label] = size if sizes[label] == 1 else sizes[label]
    shape = tuple(sizes[label] for label in output)
    if out is not None and tuple(out.shape) != shape:
        raise InvalidValue(f"out has shape {tuple(out.shape)}, the result has {shape}; pass an out of that shape")
    target = None if out is None else _narrow(Term(out, output, 0, [None]))
    kept = "".join(label for label in output if sizes[label] != 1)
    steps: list[Step | None] = [None] * len(operands)
    terms = [_diagonal(_narrow(Term(x, labels, i, steps))) for i, (x, labels) in
             enumerate(zip(operands, inputs, strict=True))]
    for chosen in path:
        picked = [terms.pop(i) for i in sorted(chosen, reverse=True)][::-1]
        while len(picked) > 1:
            first, second, *picked = picked
            later = "".join(term.labels for term in (*terms, *picked))
            is_last = not terms and not picked
            picked.insert(0, _pair(first, second, kept, later, multiply, target if is_last else None))
        terms.append(picked[0])
    if target is not None and terms[0] is target:  # a product has written it
        return out
    result = _summed(terms[0], kept)
    final = result.then(partial(_shaped, order=[result.labels.index(label) for label in kept], shape=shape), output)
    if key is not None:
        if len(_known) >= _LIMIT:
            _known.clear()
        _known[key] = steps
    if out is None:
        return final.array
    out[...] = final.array * 1 if len(operands) == 1 else final.array  # which may be a view of memory that is written
    return out


def _pair(x: Term, y: Term, output: str, later: str, multiply: Multiply, target: Term | None) -> Term:
    """The product of two terms, summed over the labels that neither the ``output`` nor a ``later`` term has;
    ``target``, of whose array nothing is said, where that was written."""
    kept = output + later
    x, y = _summed(x, kept + y.labels), _summed(y, kept + x.labels)
    if later:  # labels that a later sum goes over lie beside each other, so that it needs no copy

        def changes(x: Term, y: Term) -> int:
            alone = [label in later for label in (*_by_stride(x), *_by_stride(y))
                     if (label in x.labels) != (label in y.labels) and label in kept]
            return sum(a != b for a, b in pairwise(alone))

        is_turned = changes(y, x) < changes(x, y)
    else:  # the result's rows come first in it
        is_turned = next((label for label in kept if (label in x.labels) != (label in y.labels)), "") in y.labels
    if is_turned:
        x, y = y, x
    shared = [label for label in _by_stride(x) if label in y.labels]
    batch = [label for label in dict.fromkeys(kept) if label in shared]
    rows = [label for label in _by_stride(x) if label not in shared]
    columns = [label for label in _by_stride(y) if label not in shared]
    larger = x if prod(x.array.shape) >= prod(y.array.shape) else y  # what would cost more to copy
    inner = [label for label in _by_stride(larger) if label in shared and label not in batch]
    sizes = {**dict(zip(x.labels, x.array.shape, strict=True)), **dict(zip(y.labels, y.array.shape, strict=True))}
    labels = "".join((*batch, *rows, *columns))

    def size(labels: list[str]) -> tuple[int, ...]:
        return tuple(sizes[label] for label in labels)

    def view(term: Term, *groups: list[str]) -> Term:
        """The dimensions of each group of labels as one."""
        order = [term.labels.index(label) for group in (batch, *groups) for label in group]
        shape = None if all(len(group) == 1 for group in groups) else (
            *size(batch), *(prod(size(group)) for group in groups))
        if shape is None and order == list(range(len(order))):
            return term
        return term.then(partial(_shaped, order=order, shape=shape), term.labels)

    if not inner:
        shapes = (*size(batch), *size(rows), *(1 for _ in columns)), (
            *size(batch), *(1 for _ in rows), *size(columns))
        left, right = (term.then(partial(_shaped, order=[term.labels.index(label) for label in (*batch, *some)],
                                         shape=shape), term.labels)
                       for term, some, shape in zip((x, y), (rows, columns), shapes, strict=True))
        return left.then(mul, labels, right)
    if target is not None and len(rows) <= 1 and len(columns) <= 1 and {*labels} == {*target.labels}:
        multiply(view(x, rows, inner).array, view(y, inner, columns).array, out=view(target, rows, columns).array)
        return target
    product = view(x, rows, inner).then(multiply, labels, view(y, inner, columns))
    return product if len(rows) == len(columns) == 1 else product.then(
        partial(_shaped, order=None, shape=(*size(batch), *size(rows), *size(columns))), labels)


def _narrow(x: Term) -> Term:
    """Without the dimensions of one element, which broadcast: a view."""
    shape = tuple(size for size in x.array.shape if size != 1)
    if len(shape) == len(x.labels):
        return x
    labels = "".join(label for label, size in zip(x.labels, x.array.shape, strict=True) if size != 1)
    return x.then(partial(_shaped, order=None, shape=shape), labels)


def _diagonal(x: Term) -> Term:
    """Of a label that is there twice, the elements where both indices are equal."""
    for label in dict.fromkeys(x.labels):
        while x.labels.count(label) > 1:
            first = x.labels.index(label)
            second = x.labels.index(label, first + 1)
            x = x.then(methodcaller("diagonal", 0, first, second),
                       x.labels[:first] + x.labels[first + 1:second] + x.labels[second + 1:] + label)
    return x


def _summed(x: Term, kept: str) -> Term:
    """Without the labels that no other term and no result has."""
    axes = tuple(i for i, label in enumerate(x.labels) if label not in kept)
    labels = "".join(label for label in x.labels if label in kept)
    return x.then(methodcaller("sum", axes), labels) if axes else x


def _shaped(x: Any, order: list[int] | None, shape: tuple[int, ...] | None) -> Any:
    """Dimensions in another order, then another shape; None: as they are."""
    if order is not None and order != list(range(len(order))):
        x = x.permute(order) if hasattr(x, "permute") else x.transpose(*order)
    return x if shape is None else x.reshape(shape)


def _by_stride(x: Term) -> list[str]:
    """The labels from the largest stride to the smallest; as they are where an array does not tell its strides, or may
    have others the next time."""
    if hasattr(x.array, "requires_grad"):
        import torch  # not by sys.modules, which torch.compile would trace

        if torch.compiler.is_compiling():
            return list(x.labels)
        strides = x.array.stride()
    else:
        strides = getattr(x.array, "strides", None) or range(len(x.labels), 0, -1)
    return [label for _, label in sorted(zip(strides, x.labels, strict=True), key=lambda pair: -abs(pair[0]))]

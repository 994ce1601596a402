"""`peakgemm.jax.use`: the float32 products in a function's jaxpr, and in those within it, by peakgemm."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any

import jax
from jax.extend import core as jex
from jax.extend.core.primitives import dot_general_p

_log = logging.getLogger("peakgemm")
# Primitives that hold jaxprs which are traced again as they are; what they do with them is left to them.
_REWRITTEN = frozenset({"jit", "pjit", "closed_call", "core_call", "scan", "while", "cond", "checkpoint", "remat2",
                        "custom_jvp_call", "custom_vjp_call"})
_OTHER_PRODUCTS = frozenset({"conv_general_dilated", "ragged_dot", "ragged_dot_general", "scaled_dot"})


@dataclass(frozen=True, slots=True)
class Report:
    """What a rewriting did; each of ``changed`` and ``left`` counts places in the program, not runs of them.

    Attributes:
        precision: what runs the products that were changed.
        changed: by their operands' shapes, ``"float32[8,4] x float32[4,2]"``.
        left: with the reason.
    """

    precision: str
    changed: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"peakgemm.jax.use(precision={self.precision!r}): {self.changed.total()} products by peakgemm, "
                 f"{self.left.total()} left"]
        lines += [f"  peakgemm: {count} x {what}" for what, count in self.changed.items()]
        lines += [f"  left: {count} x {what}" for what, count in self.left.items()]
        return "\n".join(lines)


class Rewritten:
    """What `peakgemm.jax.use` returns.

    Attributes:
        report: of the last call's trace; None before the first.
    """

    def __init__(self, function: Callable[..., Any], precision: str, product: Callable[..., Any]) -> None:
        """``product`` takes the place of dot_general, in ``precision``."""
        update_wrapper(self, function)
        self._function, self._precision, self._product = function, precision, product
        self.report: Report | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = {i: x for i, x in enumerate(leaves) if hasattr(x, "dtype")}  # numbers may decide what is computed

        def of_arrays(arrays: dict[int, Any]) -> Any:
            positional, keywords = jax.tree.unflatten(tree, [arrays.get(i, x) for i, x in enumerate(leaves)])
            return self._function(*positional, **keywords)

        closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(arrays)
        report = Report(self._precision)
        results = self._run(closed.jaxpr, closed.consts, jax.tree.leaves(arrays), report)
        if self.report is None:
            _log.info("%s", report)
        self.report = report
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    def _run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], report: Report) -> list[Any]:
        """The results of ``jaxpr`` with other products."""
        values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

        def read(atoms: Sequence[Any]) -> list[Any]:
            return [x.val if isinstance(x, jex.Literal) else values[x] for x in atoms]

        for eqn in jaxpr.eqns:
            with getattr(eqn.ctx, "manager", None) or nullcontext():
                values.update(zip(eqn.outvars, self._equation(eqn, read(eqn.invars), report), strict=True))
        return read(jaxpr.outvars)

    def _equation(self, eqn: Any, operands: list[Any], report: Report) -> Sequence[Any]:
        name, params = eqn.primitive.name, eqn.params
        if eqn.primitive is dot_general_p or name in _OTHER_PRODUCTS:
            shapes = " x ".join(x.aval.str_short() for x in eqn.invars[:2])
            if name in _OTHER_PRODUCTS:
                report.left[f"{name} {shapes}: peakgemm has no such product"] += 1
            elif {str(x.aval.dtype) for x in (*eqn.invars, *eqn.outvars)} == {"float32"}:
                report.changed[shapes] += 1
                a, b = operands
                return [self._product(a, b, params["dimension_numbers"])]
            else:
                report.left[f"dot_general {shapes}: not float32"] += 1
        elif name in _REWRITTEN:
            params = {name: self._within(x, report) for name, x in params.items()}
        elif count := sum(_count(x) for x in _jaxprs(params)):
            report.left[f"{name} with products inside: it is not rewritten; call peakgemm.jax within it"] += count
        bound = eqn.primitive.get_bind_params(params)
        if isinstance(bound, tuple):  # before jax 0.10: functions apart
            operands, bound = [*bound[0], *operands], bound[1]
        results = eqn.primitive.bind(*operands, **bound)
        return results if eqn.primitive.multiple_results else [results]

    def _within(self, value: Any, report: Report) -> Any:
        """A parameter with the jaxprs in it rewritten."""
        if isinstance(value, jex.ClosedJaxpr) and _count(value.jaxpr):
            return jax.make_jaxpr(lambda *args: self._run(value.jaxpr, value.consts, args, report))(
                *(jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in value.jaxpr.invars))
        if isinstance(value, jex.Jaxpr):
            new = self._within(jex.ClosedJaxpr(value, ()), report)
            return new.jaxpr if not new.consts else value
        if isinstance(value, (tuple, list)) and any(isinstance(x, jex.ClosedJaxpr) for x in value):
            return type(value)(self._within(x, report) for x in value)
        return value


def _jaxprs(params: dict[str, Any]) -> list[Any]:
    """The jaxprs in an equation's parameters."""
    values = [x for value in params.values() for x in (value if isinstance(value, (tuple, list)) else (value,))]
    return [x.jaxpr if isinstance(x, jex.ClosedJaxpr) else x for x in values
            if isinstance(x, (jex.ClosedJaxpr, jex.Jaxpr))]


def _count(jaxpr: Any) -> int:
    """Products in a jaxpr and in those within it."""
    return sum((eqn.primitive is dot_general_p or eqn.primitive.name in _OTHER_PRODUCTS)
               + sum(_count(x) for x in _jaxprs(eqn.params)) for eqn in jaxpr.eqns)

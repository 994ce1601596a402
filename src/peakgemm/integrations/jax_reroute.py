"""Every float32 ``dot_general`` that JAX compiles while a block holds, by peakgemm: another rule of lowering.

The rule is asked when a program is lowered, after differentiation and batching. So nothing of the program is traced
anew, and what was compiled before is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import jax
from jax.interpreters import mlir
from jax.lax import dot_general_p  # jax.extend has it too, and takes 17 ms to import

from ..errors import MissingComponent, PeakgemmError
from . import use
from .use import Block

_FP32 = ("HIGHEST", "F32_F32_F32")  # names of precisions that are FP32 on a GPU


class Rerouted(use.Rerouted):
    """JAX's products; see `use.Rerouted`. ``product`` is `peakgemm.jax.dot_general`.

    Raises:
        MissingComponent: a JAX whose rules lie elsewhere.
    """

    library = "jax"

    def __init__(self, platform: str, product: Callable[..., Any]) -> None:
        super().__init__()
        self._platform, self._product = platform, product
        try:
            from jax._src.dispatch import prim_requires_devices_during_lowering
            from jax._src.interpreters.mlir import _lowerings, _platform_specific_lowerings

            self._rules = _platform_specific_lowerings[platform]
            self._own = self._rules.get(dot_general_p)
            self._default = (self._own or _lowerings[dot_general_p]).rule
            self._asks = prim_requires_devices_during_lowering
        except (ImportError, AttributeError, KeyError) as error:
            raise MissingComponent(f"peakgemm cannot reroute the products of jax {jax.__version__} ({error}); call "
                                   "peakgemm.jax.use(function)") from None
        mlir.register_lowering(dot_general_p, self._lowered, platform=platform)
        self._asks.add(dot_general_p)
        jax.clear_caches()

    def restore(self) -> None:
        """Give JAX its own rule back; what was compiled meanwhile goes."""
        self._rules.pop(dot_general_p)
        if self._own is not None:
            self._rules[dot_general_p] = self._own
        self._asks.discard(dot_general_p)
        self._watch(None)
        jax.clear_caches()

    def _watch(self, told: Any) -> None:
        """Let the handler tell of what it runs. It is imported with the first product, not with the program."""
        from . import jax_handler

        jax_handler.watch = told

    def _ran(self, request: Any) -> None:
        """XLA has called the handler."""
        shape = [int(size) for size in request.out]
        inner = int(request.a[-2 if request.trans_a else -1])
        if self.recorder is not None:
            self.recorder.add("jax", "dot_general", (*shape, inner), 2.0 * prod(shape) * inner)

    def _lowered(self, ctx: Any, a: Any, b: Any, *, dimension_numbers: Any, precision: Any, **params: Any) -> Any:
        block, avals = self.blocks[-1], (*ctx.avals_in, *ctx.avals_out)
        why = _obstacle(avals, dimension_numbers,
                        precision if block.recorder is not None and self._platform == "cuda" else "HIGHEST")
        if not why:
            self._watch(self._ran)
            product = partial(self._product, dimension_numbers=dimension_numbers, precision=block.precision)
            try:
                results = mlir.lower_fun(product, multiple_results=False)(ctx, a, b)
                self.calls["dot_general"] += 1
                return results
            except PeakgemmError as error:
                why = f"refused: {str(error).partition(';')[0]}"
        shapes = " x ".join(x.str_short() for x in ctx.avals_in)
        self.count("dot_general", f"{shapes} (compiled)", 0.0, why)
        return self._default(ctx, a, b, dimension_numbers=dimension_numbers, precision=precision, **params)


def _obstacle(avals: Any, dimension_numbers: Any, precision: Any) -> str:
    """Why a product is not ours."""
    dtypes = sorted({str(x.dtype) for x in avals})
    if dtypes != ["float32"]:
        return " and ".join(dtypes)
    if not all(isinstance(size, int) for x in avals for size in x.shape):
        return "symbolic sizes"
    (sum_a, _), (batch_a, _) = dimension_numbers
    inner = prod(avals[0].shape[i] for i in (*sum_a, *batch_a))
    if any(prod(x.shape) <= inner for x in avals[:2]):
        return "vectors"
    names = {getattr(x, "name", str(x)) for x in (precision if isinstance(precision, tuple) else (precision,))}
    return "" if names <= {*_FP32} else "TF32 allowed; JAX_DEFAULT_MATMUL_PRECISION=highest forbids it"


def make_use(precision: str, product: Callable[..., Any], platform: str = "cuda", recorder: Any = None) -> use.Use:
    """A block in which JAX's products are peakgemm's, in ``precision``."""
    return use.Use(f"jax {platform}", partial(Rerouted, platform, product), Block(precision, recorder=recorder))

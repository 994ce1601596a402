"""Contenders by the names that users of torch and JAX know: ``torch:tf32``, ``jax:highest``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...calls.precisions import precisions
from ...errors import MissingComponent
from .arrays import Arrays

NAMES = tuple(x.name for x in precisions() if x.measurable and x.library != "peakgemm")


class InTorch:
    """torch's product on a GPU, with its switches set for the call."""

    def __init__(self, mode: str, torch: Any) -> None:
        self._mode, self._torch = {"ieee": "highest", "tf32": "high"}.get(mode, mode), torch

    @contextmanager
    def _set(self) -> Iterator[None]:
        before = self._torch.get_float32_matmul_precision()
        self._torch.set_float32_matmul_precision(self._mode)
        try:
            yield
        finally:
            self._torch.set_float32_matmul_precision(before)

    def plain(self, a: Any, b: Any) -> Any:
        """``a b``."""
        with self._set():
            return self._torch.mm(a, b)

    def full(self, a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
        """``alpha a b + beta c``."""
        with self._set():
            return self._torch.addmm(c, a, b, alpha=alpha, beta=beta)


class InJax:
    """``jnp.matmul`` at a precision, compiled; arrays go in and out by DLPack.

    Raises:
        MissingComponent: no jax, or none with a GPU build where the data lie on a GPU.
    """

    def __init__(self, mode: str, arrays: Arrays) -> None:
        try:
            import jax
        except ImportError as error:
            raise MissingComponent(f"jax:{mode} needs jax, which cannot be imported ({error}); run: pip install jax"
                                   ) from None
        self._jax, self._arrays = jax, arrays
        wanted = "gpu" if arrays.name == "torch" else "cpu"
        try:
            self._device = jax.devices(wanted)[0]
        except RuntimeError as error:
            raise MissingComponent(f"jax:{mode}: the data lie on the {wanted.upper()}, where this jax cannot compute "
                                   f"({error}); run: pip install 'jax[cuda13]'") from None
        self._multiply = jax.jit(lambda a, b: jax.numpy.matmul(a, b, precision=mode))
        one = jax.device_put(np.ones((8, 8), np.float32), self._device)
        try:
            self._multiply(one, one).block_until_ready()
        except Exception as error:  # XLA's own, of several classes
            raise MissingComponent(f"jax:{mode}: jax {jax.__version__} does not run it on the {wanted.upper()} "
                                   f"({str(error).partition(chr(10))[0]})") from None

    def plain(self, a: Any, b: Any) -> Any:
        """``a b``."""
        if self._arrays.name == "torch":
            left, right = (self._jax.dlpack.from_dlpack(x.contiguous()) for x in (a, b))
            return self._arrays.xp.from_dlpack(self._multiply(left, right))
        left, right = (self._jax.device_put(x, self._device) for x in (a, b))
        return np.array(self._multiply(left, right))

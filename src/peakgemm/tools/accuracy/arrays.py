"""The two array modules that the suite's data lie in: NumPy in the host's memory, torch on a GPU.

Both answer to the same operators and to ``xp.where``, ``xp.exp`` and their like; what differs between them is here.
Random numbers are drawn in FP64 and rounded once, where the test says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from ...errors import InvalidType, InvalidValue, MissingComponent
from ...runtime import device

Shape = tuple[int, ...]
LOWEST, HIGHEST = -320, 320  # exponents of `power`
_POWERS = np.ldexp(1.0, np.arange(LOWEST, HIGHEST + 1))


class Draw(Protocol):
    """A seeded stream of random arrays, float64 but for `integers` and `permutation`."""

    def normal(self, shape: Shape) -> Any:
        """N(0, 1)."""

    def uniform(self, shape: Shape) -> Any:
        """U[0, 1)."""

    def integers(self, low: int, high: int, shape: Shape) -> Any:
        """Integers from ``low`` to ``high``, both included, as int64."""

    def permutation(self, n: int) -> Any:
        """0 to n - 1 in random order, int64."""


class Arrays(Protocol):
    """An array module; ``xp`` holds its functions."""

    name: str
    xp: Any
    single_type: Any

    def draw(self, seed: int) -> Draw:
        """A stream of random arrays; the same seed gives the same stream on the same device."""

    def single(self, x: Any) -> Any:
        """Rounded to float32, to nearest even; beyond FLT_MAX to an infinity."""

    def double(self, x: Any) -> Any:
        """As float64, exactly."""

    def full(self, shape: Shape, value: float) -> Any:
        """A constant float32 array."""

    def range(self, n: int) -> Any:
        """0 to n - 1, int64."""

    def power(self, exponent: Any) -> Any:
        """2 to an int64 array of exponents from -320 to 320, exact, float64."""

    def take(self, x: Any) -> Any:
        """A NumPy array as one of this module."""

    def host(self, x: Any) -> Any:
        """An array of this module as NumPy's."""

    def copy(self, x: Any) -> Any:
        """A packed copy."""

    def bits(self, x: Any) -> Any:
        """float32's bits as int32."""

    def is_own(self, x: Any) -> bool:
        """Whether ``x`` is an array of this module, in its place."""

    def ways(self) -> dict[str, AbstractContextManager[Any]]:
        """Circumstances under which a call must give the same bits."""


class NumpyDraw:
    """NumPy's default generator."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)

    def normal(self, shape: Shape) -> Any:
        return self._draw.standard_normal(shape)

    def uniform(self, shape: Shape) -> Any:
        return self._draw.random(shape)

    def integers(self, low: int, high: int, shape: Shape) -> Any:
        return self._draw.integers(low, high + 1, shape)

    def permutation(self, n: int) -> Any:
        return self._draw.permutation(n)


class Numpy:
    """Arrays in the host's memory."""

    name = "numpy"
    xp: Any = np
    single_type: Any = np.float32

    def draw(self, seed: int) -> Draw:
        return NumpyDraw(seed)

    def single(self, x: Any) -> Any:
        return np.asarray(x).astype(np.float32)

    def double(self, x: Any) -> Any:
        return x.astype(np.float64)

    def full(self, shape: Shape, value: float) -> Any:
        return np.full(shape, value, np.float32)

    def range(self, n: int) -> Any:
        return np.arange(n)

    def power(self, exponent: Any) -> Any:
        return _POWERS[exponent - LOWEST]

    def take(self, x: Any) -> Any:
        return x

    def host(self, x: Any) -> Any:
        return x

    def copy(self, x: Any) -> Any:
        return np.array(x, order="C")

    def bits(self, x: Any) -> Any:
        return np.ascontiguousarray(x).view(np.int32)

    def is_own(self, x: Any) -> bool:
        return isinstance(x, np.ndarray)

    def ways(self) -> dict[str, AbstractContextManager[Any]]:
        return {f"call {i}": nullcontext() for i in (2, 3)}


class TorchDraw:
    """A torch generator on the device."""

    def __init__(self, torch: Any, place: str, seed: int) -> None:
        self._torch = torch
        self._how = {"generator": torch.Generator(device=place).manual_seed(seed), "device": place}

    def normal(self, shape: Shape) -> Any:
        return self._torch.randn(shape, dtype=self._torch.float64, **self._how)

    def uniform(self, shape: Shape) -> Any:
        return self._torch.rand(shape, dtype=self._torch.float64, **self._how)

    def integers(self, low: int, high: int, shape: Shape) -> Any:
        return self._torch.randint(low, high + 1, shape, **self._how)

    def permutation(self, n: int) -> Any:
        return self._torch.randperm(n, **self._how)


class Torch:
    """torch tensors, on ``place``: ``cuda``, or ``cpu`` for a trial.

    Raises:
        MissingComponent: torch is not installed, or has no GPU to put them on.
    """

    name = "torch"

    def __init__(self, place: str = "cuda") -> None:
        try:
            self.xp: Any = import_module("torch")
        except ImportError:
            raise MissingComponent("torch is not installed; run: pip install torch") from None
        if place == "cuda" and not self.xp.cuda.is_available():
            raise MissingComponent("torch sees no GPU; install a CUDA build of torch, or leave the data on the host")
        self.single_type = self.xp.float32
        self._place = place
        self._powers = self.xp.from_numpy(_POWERS.copy()).to(place)

    def draw(self, seed: int) -> Draw:
        return TorchDraw(self.xp, self._place, seed)

    def single(self, x: Any) -> Any:
        return x.to(self.xp.float32)

    def double(self, x: Any) -> Any:
        return x.to(self.xp.float64)

    def full(self, shape: Shape, value: float) -> Any:
        return self.xp.full(shape, value, dtype=self.xp.float32, device=self._place)

    def range(self, n: int) -> Any:
        return self.xp.arange(n, device=self._place)

    def power(self, exponent: Any) -> Any:
        return self._powers[exponent - LOWEST]

    def take(self, x: Any) -> Any:
        return self.xp.from_numpy(np.ascontiguousarray(x)).to(self._place)

    def host(self, x: Any) -> Any:
        return x.cpu().numpy()

    def copy(self, x: Any) -> Any:
        return x.clone(memory_format=self.xp.contiguous_format)

    def bits(self, x: Any) -> Any:
        return x.contiguous().view(self.xp.int32)

    def is_own(self, x: Any) -> bool:
        return isinstance(x, self.xp.Tensor) and x.device.type == self._place

    def ways(self) -> dict[str, AbstractContextManager[Any]]:
        plain: dict[str, AbstractContextManager[Any]] = {f"call {i}": nullcontext() for i in (2, 3)}
        if self._place != "cuda":
            return plain
        return {**plain, "another stream": self._stream(load=False), "under load": self._stream(load=True)}

    @contextmanager
    def _stream(self, load: bool) -> Iterator[None]:
        """Another current stream; ``load``: while a third one multiplies."""
        cuda = self.xp.cuda
        cuda.synchronize()
        if load:
            with cuda.stream(cuda.Stream()):
                work = self.xp.ones(2048, 2048, device=self._place)
                for _ in range(20):
                    self.xp.mm(work, work)
        with cuda.stream(cuda.Stream()):
            yield
        cuda.synchronize()


def find(host: bool = False) -> Arrays:
    """torch on the GPU at hand; NumPy with ``host``, or where there is no GPU or no torch for it."""
    if host or device.find() is None:
        return Numpy()
    try:
        return Torch()
    except MissingComponent:
        return Numpy()


def check(arrays: Arrays, result: Any, shape: Shape) -> Any:
    """A GEMM's result, if it is what an FP32 GEMM returns.

    Raises:
        InvalidType: no array of the module that the operands came in, or not float32.
        InvalidValue: another shape.
    """
    if not arrays.is_own(result):
        raise InvalidType(f"returned a {type(result).__name__}; return the product as a {arrays.name} array, where the "
                          "operands are")
    if result.dtype != arrays.single_type:
        raise InvalidType(f"returned {result.dtype}; an FP32 GEMM returns float32")
    if tuple(result.shape) != shape:
        raise InvalidValue(f"returned shape {tuple(result.shape)}, not {shape}; return op(A) op(B) whole")
    return result

"""Where cuBLAS FP32 comes from: torch or CuPy, whichever is installed, with TF32 off.

A peer gives random operands, the baseline product, an FP64 reference and graph capture, all on one
stream that our kernels are launched on too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ...errors import MissingComponent
from ...runtime import device

EPSILON = 2.0**-23  # of float32


class Peer(Protocol):
    """What the timer and the ladder need of an array library."""

    name: str
    stream: Any
    captures_cublas: bool  # whether CUDA graphs of `multiply` can be made

    def random(self, rows: int, columns: int, seed: int) -> Any:
        """Standard normal float32, rows x columns, on the GPU."""

    def full(self, rows: int, columns: int, value: float) -> Any:
        """A constant float32 matrix on the GPU."""

    def strided(self, flat: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """An array over the memory of a flat one; ``strides`` in elements."""

    def copy(self, source: Any, to: Any) -> None:
        """Enqueue a copy on the device."""

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        """Enqueue cuBLAS's FP32 product on the stream; with a batch dimension, or without."""

    def errors(self, a: Any, b: Any, products: list[Any]) -> list[float]:
        """Largest componentwise error of each product: max |C - AB| / (eps |A||B|), in FP64; NaN counts as inf."""

    def record(self) -> Any:
        """A timing event on the stream."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """``run`` as a CUDA graph; the result replays it."""

    def versions(self) -> dict[str, str]:
        """Names and versions of what was measured."""


def find_peer() -> Peer:
    """torch's peer, else CuPy's.

    Raises:
        MissingComponent: neither is installed with a GPU build.
    """
    reasons = []
    for make in (TorchPeer, CupyPeer):
        try:
            return make()
        except Exception as error:
            reasons.append(f"{make.__name__.removesuffix('Peer').lower()}: {error}")
    raise MissingComponent("timing against cuBLAS needs torch or CuPy on this GPU "
                           f"({'; '.join(reasons)}); run: pip install cupy-cuda13x")


@contextmanager
def visiting() -> Iterator[Peer]:
    """A peer in somebody else's process: the libraries' current streams and TF32 switch are as before afterwards.

    Raises:
        MissingComponent: see `find_peer`.
    """
    undo: list[Callable[[], Any]] = []
    try:
        import torch

        if torch.cuda.is_available():
            stream, tf32 = torch.cuda.current_stream(), torch.backends.cuda.matmul.allow_tf32
            undo += [lambda: torch.cuda.set_stream(stream),
                     lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)]
    except ImportError:
        pass
    try:
        import cupy

        before = cupy.cuda.get_current_stream()
        undo.append(before.use)
    except Exception:  # not installed, or without a driver
        pass
    try:
        yield find_peer()
    finally:
        for step in undo:
            step()


def _stream(handle: int) -> Any:
    """A library's stream as one of cuda.core, which is told of the context that it belongs to."""
    from cuda.core import Stream

    device.introduce(device.current() or 0)
    return Stream.from_handle(handle)


def _event(stream: Any) -> Any:
    from cuda.core import EventOptions

    return stream.record(options=EventOptions(timing_enabled=True))


class TorchPeer:
    """cuBLAS as torch calls it: ``torch.mm`` with TF32 off and no reduced precision."""

    name = "torch"
    captures_cublas = True

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU")
        self._torch = torch
        torch.backends.cuda.matmul.allow_tf32 = False
        self._torch_stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._torch_stream)
        self.stream = _stream(self._torch_stream.cuda_stream)

    def random(self, rows: int, columns: int, seed: int) -> Any:
        generator = self._torch.Generator(device="cuda").manual_seed(seed)
        return self._torch.randn(rows, columns, generator=generator, device="cuda", dtype=self._torch.float32)

    def full(self, rows: int, columns: int, value: float) -> Any:
        return self._torch.full((rows, columns), value, device="cuda", dtype=self._torch.float32)

    def strided(self, flat: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        return flat.as_strided(shape, strides)

    def copy(self, source: Any, to: Any) -> None:
        to.copy_(source)

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        (self._torch.bmm if a.ndim == 3 else self._torch.mm)(a, b, out=out)

    def errors(self, a: Any, b: Any, products: list[Any]) -> list[float]:
        a64, b64 = a.double(), b.double()
        exact, scale = a64 @ b64, (a64.abs() @ b64.abs()).mul_(EPSILON).clamp_(min=1e-300)
        worst = [((c.double() - exact).abs_() / scale).nan_to_num_(nan=float("inf")) for c in products]
        return [float(w.max()) if w.numel() else 0.0 for w in worst]

    def record(self) -> Any:
        return _event(self.stream)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        graph = self._torch.cuda.CUDAGraph()
        self._torch.cuda.synchronize()
        with self._torch.cuda.graph(graph, stream=self._torch_stream):
            run()
        return graph.replay  # type: ignore[no-any-return]

    def versions(self) -> dict[str, str]:
        import ctypes

        handle, version = self._torch.cuda.current_blas_handle(), ctypes.c_int()
        found = {"torch": self._torch.__version__}
        try:
            ctypes.CDLL("libcublas.so.13").cublasGetVersion_v2(ctypes.c_void_p(handle), ctypes.byref(version))
            found["cublas"] = f"{version.value // 10000}.{version.value // 100 % 100}.{version.value % 100}"
        except OSError:
            found["cublas"] = "of torch " + str(self._torch.version.cuda)
        return found


class CupyPeer:
    """cuBLAS as CuPy calls it, with CuPy's TF32 switch off (its default)."""

    name = "cupy"
    captures_cublas = False  # CuPy refuses to call cuBLAS while a stream is captured

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        cupy.cuda.Device().compute_capability  # noqa: B018  raises where there is no GPU
        self._cupy_stream = cupy.cuda.Stream(non_blocking=True)
        self._cupy_stream.use()
        self.stream = _stream(self._cupy_stream.ptr)

    def random(self, rows: int, columns: int, seed: int) -> Any:
        return self._cupy.random.default_rng(seed).standard_normal((rows, columns), dtype=self._cupy.float32)

    def full(self, rows: int, columns: int, value: float) -> Any:
        return self._cupy.full((rows, columns), value, dtype=self._cupy.float32)

    def strided(self, flat: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        return self._cupy.lib.stride_tricks.as_strided(flat, shape, [4 * step for step in strides])

    def copy(self, source: Any, to: Any) -> None:
        to[...] = source

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        self._cupy.matmul(a, b, out=out)

    def errors(self, a: Any, b: Any, products: list[Any]) -> list[float]:
        xp = self._cupy
        a64, b64 = a.astype(xp.float64), b.astype(xp.float64)
        exact, scale = a64 @ b64, xp.maximum(abs(a64) @ abs(b64) * EPSILON, 1e-300)
        return [float(xp.nan_to_num(abs(c - exact) / scale, nan=xp.inf).max()) if c.size else 0.0 for c in products]

    def record(self) -> Any:
        return _event(self.stream)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self._cupy_stream.synchronize()
        self._cupy_stream.begin_capture()
        run()
        graph = self._cupy_stream.end_capture()
        return lambda: graph.launch(self._cupy_stream)

    def versions(self) -> dict[str, str]:
        cublas = self._cupy.cuda.cublas
        version = cublas.getVersion(self._cupy.cuda.device.get_cublas_handle())
        return {"cupy": self._cupy.__version__,
                "cublas": f"{version // 10000}.{version // 100 % 100}.{version % 100}"}

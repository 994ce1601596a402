"""Where cuBLAS FP32 comes from: torch or CuPy, whichever is installed, with TF32 off.

A peer gives random operands, the baseline product and graph capture, all on one stream that our kernels are launched
on too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import MissingComponent
from ...runtime import device


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
    """A peer in somebody else's process: the library's current stream and TF32 switch are as before afterwards.

    Raises:
        MissingComponent: see `find_peer`.
    """
    peer = find_peer()
    try:
        yield peer
    finally:
        peer.leave()


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
    captures_cublas = True  # whether CUDA graphs of `multiply` can be made

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU")
        self._torch = torch
        self._before = torch.cuda.current_stream(), torch.backends.cuda.matmul.allow_tf32
        self._torch_stream = torch.cuda.Stream()
        self.stream = _stream(self._torch_stream.cuda_stream)  # a failure must leave the library as it was
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.cuda.set_stream(self._torch_stream)

    def leave(self) -> None:
        """Put the library's current stream and TF32 switch back as they were."""
        stream, self._torch.backends.cuda.matmul.allow_tf32 = self._before
        self._torch.cuda.set_stream(stream)

    def random(self, rows: int, columns: int, seed: int) -> Any:
        """Standard normal float32, rows x columns, on the GPU."""
        generator = self._torch.Generator(device="cuda").manual_seed(seed)
        return self._torch.randn(rows, columns, generator=generator, device="cuda", dtype=self._torch.float32)

    def full(self, rows: int, columns: int, value: float) -> Any:
        """A constant float32 matrix on the GPU."""
        return self._torch.full((rows, columns), value, device="cuda", dtype=self._torch.float32)

    def strided(self, flat: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """An array over the memory of a flat one; ``strides`` in elements."""
        return flat.as_strided(shape, strides)

    def copy(self, source: Any, to: Any) -> None:
        """Enqueue a copy on the device."""
        to.copy_(source)

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        """Enqueue cuBLAS's FP32 product on the stream; with a batch dimension, or without."""
        (self._torch.bmm if a.ndim == 3 else self._torch.mm)(a, b, out=out)

    def record(self) -> Any:
        """A timing event on the stream."""
        return _event(self.stream)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """``run`` as a CUDA graph; the result replays it."""
        graph = self._torch.cuda.CUDAGraph()
        self._torch.cuda.synchronize()
        with self._torch.cuda.graph(graph, stream=self._torch_stream):
            run()
        return graph.replay  # type: ignore[no-any-return]

    def versions(self) -> dict[str, str]:
        """Names and versions of what was measured."""
        import ctypes

        handle, version = self._torch.cuda.current_blas_handle(), ctypes.c_int()
        names = {"torch": self._torch.__version__}
        try:
            ctypes.CDLL("libcublas.so.13").cublasGetVersion_v2(ctypes.c_void_p(handle), ctypes.byref(version))
            names["cublas"] = f"{version.value // 10000}.{version.value // 100 % 100}.{version.value % 100}"
        except OSError:
            names["cublas"] = "of torch " + str(self._torch.version.cuda)
        return names


class CupyPeer:
    """cuBLAS as CuPy calls it, with CuPy's TF32 switch off (its default). The methods are `TorchPeer`'s."""

    name = "cupy"
    captures_cublas = False  # CuPy refuses to call cuBLAS while a stream is captured

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        cupy.cuda.Device().compute_capability  # noqa: B018  raises where there is no GPU
        self._before = cupy.cuda.get_current_stream()
        self._cupy_stream = cupy.cuda.Stream(non_blocking=True)
        self.stream = _stream(self._cupy_stream.ptr)
        self._cupy_stream.use()

    def leave(self) -> None:
        self._before.use()

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


Peer = TorchPeer | CupyPeer

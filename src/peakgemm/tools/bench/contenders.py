"""Others than cuBLAS that multiply FP32 matrices: torch, CuPy, Triton, CUTLASS, each as its users call it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from ...errors import InvalidValue, MissingComponent
from .peers import Peer

Multiply = Callable[[], Any]  # enqueues the product; returns the result where it is not written to ``out``


class Contender(Protocol):
    """Something to interleave with cuBLAS. ``capture``: whether CUDA graphs of it can be made."""

    name: str
    capture: bool

    def work(self, a: Any, b: Any, out: Any) -> Multiply:
        """The product of a peer's arrays, on the peer's stream, in plain FP32."""

    def versions(self) -> dict[str, str]:
        """Name and version of what was measured."""


class TorchMatmul:
    """``torch.matmul(a, b)`` with a new result, as users of torch write it; TF32 is off in the peer."""

    name, capture = "torch", True

    def __init__(self, peer: Peer) -> None:
        if peer.name != "torch":
            raise MissingComponent("torch with CUDA is not installed; run: pip install torch")
        self._torch: Any = import_module("torch")

    def work(self, a: Any, b: Any, out: Any) -> Multiply:
        return lambda: self._torch.matmul(a, b)

    def versions(self) -> dict[str, str]:
        return {"torch": self._torch.__version__}


class Cupy:
    """``cupy.matmul``; CuPy lets no graph be captured of what calls cuBLAS, so its calls are timed eagerly."""

    name, capture = "cupy", False

    def __init__(self, peer: Peer) -> None:
        try:
            self._cupy: Any = import_module("cupy")
            self._stream = self._cupy.cuda.ExternalStream(int(peer.stream.handle))
        except Exception as error:  # not installed, or for another CUDA
            raise MissingComponent(f"CuPy cannot be used ({error}); run: pip install cupy-cuda13x") from None
        self._stream.use()

    def work(self, a: Any, b: Any, out: Any) -> Multiply:
        first, second, result = (self._cupy.from_dlpack(x) for x in (a, b, out))

        def run() -> None:
            self._cupy.matmul(first, second, out=result)
        return run

    def versions(self) -> dict[str, str]:
        return {"cupy": self._cupy.__version__}


class Triton:
    """``tl.dot`` with ``input_precision="ieee"``, the fastest of a handful of tiles (`triton_gemm`)."""

    name, capture = "triton", True

    def __init__(self, peer: Peer) -> None:
        if peer.name != "torch":
            raise MissingComponent("Triton takes torch tensors, and torch with CUDA is not installed; run: pip "
                                   "install torch")
        try:
            self._module: Any = import_module(".triton_gemm", __package__)
        except ImportError as error:
            raise MissingComponent(f"Triton cannot be imported ({error}); run: pip install triton") from None

    def work(self, a: Any, b: Any, out: Any) -> Multiply:
        return lambda: self._module.multiply(a, b, out)

    def versions(self) -> dict[str, str]:
        try:
            return {"triton": version("triton")}
        except PackageNotFoundError:  # part of another distribution
            return {"triton": str(self._module.triton.__version__)}


CONTENDERS: dict[str, Callable[[Peer], Contender]] = {"torch": TorchMatmul, "cupy": Cupy, "triton": Triton}


def names(text: str) -> list[str]:
    """Contenders by name: ``cublas,cupy``. cuBLAS is always there, named or not, and is left out of the answer.

    Raises:
        InvalidValue: an unknown name; the message lists those there are.
    """
    found = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in found:
        if name not in CONTENDERS and name != "cublas":
            raise InvalidValue(f"unknown peer {name!r}; valid ones: cublas, {', '.join(CONTENDERS)}")
    return [name for name in found if name != "cublas"]

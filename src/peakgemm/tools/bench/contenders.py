"""Others than cuBLAS that multiply FP32 matrices: torch, CuPy, Triton, CUTLASS, each as its users call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from ...errors import MissingComponent
from .peers import Peer
from .products import Make
from .suites import words


@dataclass(frozen=True)
class Contender:
    """Something to interleave with cuBLAS.

    Attributes:
        name: in ``--peers`` and in records.
        work: of a peer's arrays A, B and C a call that enqueues the product in plain FP32 on the peer's stream.
        versions: name and version of what is measured.
        capture: whether CUDA graphs of it can be made.
    """

    name: str
    work: Make
    versions: Mapping[str, str]
    capture: bool = True


def _torch(peer: Peer) -> Contender:
    """``torch.matmul(a, b)`` with a new result, as users of torch write it; TF32 is off in the peer."""
    if peer.name != "torch":
        raise MissingComponent("torch with CUDA is not installed; run: pip install torch")
    torch: Any = import_module("torch")
    return Contender("torch", lambda a, b, out: partial(torch.matmul, a, b), {"torch": torch.__version__})


def _cupy(peer: Peer) -> Contender:
    """``cupy.matmul``; CuPy lets no graph be captured of what calls cuBLAS, so its calls are timed eagerly."""
    try:
        cupy: Any = import_module("cupy")
        cupy.cuda.ExternalStream(int(peer.stream.handle)).use()
    except Exception as error:  # not installed, or for another CUDA
        raise MissingComponent(f"CuPy cannot be used ({error}); run: pip install cupy-cuda13x") from None

    def work(a: Any, b: Any, out: Any) -> Callable[[], Any]:
        first, second, result = (cupy.from_dlpack(x) for x in (a, b, out))

        def run() -> None:
            cupy.matmul(first, second, out=result)
        return run
    return Contender("cupy", work, {"cupy": cupy.__version__}, capture=False)


def _triton(peer: Peer) -> Contender:
    """``tl.dot`` with ``input_precision="ieee"``, the fastest of a handful of tiles (`triton_gemm`)."""
    if peer.name != "torch":
        raise MissingComponent("Triton takes torch tensors, and torch with CUDA is not installed; run: pip install "
                               "torch")
    try:
        module: Any = import_module(".triton_gemm", __package__)
    except ImportError as error:
        raise MissingComponent(f"Triton cannot be imported ({error}); run: pip install triton") from None
    return Contender("triton", lambda a, b, out: partial(module.multiply, a, b, out),
                     {"triton": str(module.triton.__version__)})


CONTENDERS: dict[str, Callable[[Peer], Contender]] = {"torch": _torch, "cupy": _cupy, "triton": _triton}


def names(text: str) -> list[str]:
    """Contenders by name: ``cublas,cupy``. cuBLAS is always there, named or not, and is left out of the answer.

    Raises:
        InvalidValue: an unknown name; the message lists those there are.
    """
    return [name for name in words(text, "peer", ("cublas", *CONTENDERS)) if name != "cublas"]
